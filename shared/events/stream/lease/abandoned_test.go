package lease

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// smallFleet has the two slots of a deployment with default parameters. Its instances do not notice that a client left.
func smallFleet(db store.DB, refuse bool) *Shared {
	return &Shared{DB: db, Max: same(100), Fleet: 2, Life: 5 * time.Minute, Check: 15 * time.Second, Refuse: refuse}
}

// abandon opens a stream whose client leaves: it ends when it is superseded or at its maximum age.
func abandon(t *testing.T, s *Shared, p auth.Principal) (ended <-chan struct{}) {
	t.Helper()
	done, release := make(chan struct{}), make(chan func(), 1)
	end := sync.OnceFunc(func() {
		(<-release)()
		close(done)
	})
	r, err := s.Take(t.Context(), p, end)
	if err != nil {
		t.Fatal(err)
	}
	release <- r
	time.AfterFunc(s.Life, end)
	time.Sleep(time.Second) // the clock orders them
	return done
}

func hasEnded(stream <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-stream:
		return true
	default:
		return false
	}
}

func TestAbandonedStreams(t *testing.T) {
	anonymous := auth.Principal{Workspace: "default", ID: "anonymous", Anonymous: true}
	for name, p := range map[string]auth.Principal{"a principal": alice, "an anonymous caller": anonymous} {
		t.Run("AWS-19 two abandoned streams in all slots make room for the next of "+name, func(t *testing.T) {
			over(t, func(t *testing.T, db store.DB, _ *Shared) {
				fleet := smallFleet(db, false)
				first, second := abandon(t, fleet, p), abandon(t, fleet, p)
				third := abandon(t, fleet, p)
				if _, err := fleet.Take(t.Context(), p, func() {}); fault.LimitOf(err) != "streams" {
					t.Errorf("while the first stream still runs, a fourth got %v; want the limit streams", err)
				}
				time.Sleep(20 * time.Second)
				if !hasEnded(first) || hasEnded(second) || hasEnded(third) {
					t.Errorf("after 20 s ended are first %t, second %t, third %t; want only the first", hasEnded(first), hasEnded(second), hasEnded(third))
				}
				fourth := abandon(t, fleet, p)
				time.Sleep(20 * time.Second)
				if !hasEnded(second) || hasEnded(third) || hasEnded(fourth) {
					t.Errorf("20 s after the fourth ended are second %t, third %t, fourth %t; want only the second", hasEnded(second), hasEnded(third), hasEnded(fourth))
				}
				time.Sleep(5 * time.Minute)
				for range 2 { // the counts are right again
					abandon(t, fleet, alice)
				}
			})
		})
	}
	t.Run("AWS-19 a principal without streams does not end those of others", func(t *testing.T) {
		over(t, func(t *testing.T, db store.DB, _ *Shared) {
			fleet := smallFleet(db, false)
			first := abandon(t, fleet, alice)
			abandon(t, fleet, alice)
			if _, err := fleet.Take(t.Context(), other, func() {}); fault.LimitOf(err) != "streams" {
				t.Errorf("got %v, want the limit streams", err)
			}
			time.Sleep(20 * time.Second)
			if hasEnded(first) {
				t.Error("another principal's stream has ended")
			}
		})
	})
	t.Run("AWS-19 where the operator wants streams refused, no stream ends for another", func(t *testing.T) {
		over(t, func(t *testing.T, db store.DB, _ *Shared) {
			fleet := smallFleet(db, true)
			first := abandon(t, fleet, alice)
			abandon(t, fleet, alice)
			if _, err := fleet.Take(t.Context(), alice, func() {}); fault.LimitOf(err) != "streams" {
				t.Errorf("got %v, want the limit streams", err)
			}
			time.Sleep(20 * time.Second)
			if hasEnded(first) {
				t.Error("a stream has ended")
			}
		})
	})
}
