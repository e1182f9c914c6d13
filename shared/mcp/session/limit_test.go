package session_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
)

func TestASessionThatIsNeverUsedExpiresSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *hooked, s *session.Store) {
		used, unused := create(t, s), createUnused(t, s)
		time.Sleep(11 * time.Minute)
		load(t, s, used.ID)
		if _, err := s.Load(t.Context(), unused.ID, alice, false); !errors.Is(err, session.ErrNone) {
			t.Errorf("AUT-07: 11 minutes after initialize, the unused session gives %v, want %v", err, session.ErrNone)
		}
	})
}

func TestTheSessionThatWasUnusedForLongestIsSurplus(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *hooked, s *session.Store) {
		s.Max = func(context.Context, auth.Principal) int { return 3 }
		var made []*session.Session
		for range 3 {
			if surplus, err := s.Surplus(t.Context(), alice); err != nil || surplus != nil {
				t.Fatalf("with %d sessions, %v is surplus (error %v), want none", len(made), surplus, err)
			}
			made = append(made, create(t, s))
			time.Sleep(time.Minute)
		}
		time.Sleep(13 * time.Hour)
		load(t, s, made[0].ID) // prolonged
		surplus, err := s.Surplus(t.Context(), alice)
		if err != nil || surplus == nil || surplus.Key != made[1].Key {
			t.Fatalf("AUT-07: surplus is %+v (error %v), want the second session", surplus, err)
		}
		if _, err := s.Remove(t.Context(), surplus); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(t.Context(), made[1].ID, alice, false); !errors.Is(err, session.ErrNone) {
			t.Errorf("the removed session gives %v, want %v", err, session.ErrNone)
		}
		if surplus, err := s.Surplus(t.Context(), auth.Principal{ID: "anonymous", Workspace: alice.Workspace, Anonymous: true}); err != nil || surplus != nil {
			t.Errorf("without authentication %v is surplus (error %v), want none", surplus, err)
		}
	})
}
