package subscription

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/test/expect"
)

// resealAll seals all secrets again, by adding a prefix to secrets without one, and returns how many pages it took.
func (f *fixture) resealAll(prefix string, before func(b Binding)) (pages int) {
	f.t.Helper()
	var at Position
	for more := true; more; pages++ {
		var err error
		at, more, err = f.Records.Reseal(f.t.Context(), at, func(_ context.Context, sealed []byte, b Binding) ([]byte, error) {
			if before != nil {
				before(b)
			}
			if bytes.HasPrefix(sealed, []byte(prefix)) {
				return nil, nil
			}
			return append([]byte(prefix), sealed...), nil
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
	return pages
}

// secrets returns the sealed secrets of the default workspace, from the records and from the items under the pattern.
func (f *fixture) secrets(p auth.Principal, pattern string) (all [][]byte) {
	f.t.Helper()
	err := f.Lists.Each(f.t.Context(), p.Workspace, p.ID, func(s *Subscription) error {
		all = append(all, s.Target.Secret)
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	found, err := Subscribers(f.t.Context(), f.db, p.Workspace, pattern, Range{}, 1000)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, s := range found.List {
		all = append(all, s.Target.Secret)
	}
	return all
}

func TestReseal(t *testing.T) {
	t.Run("given subscriptions of several workspaces and pages, when they are sealed again, then records and pattern items have the new secret", func(t *testing.T) {
		f := newFixture(t, Options{})
		const n = resealPage + 1
		for i := range n {
			f.register(alice, RegisterRequest{URIs: []string{build}, Target: fmt.Sprintf("https://a.example/%d", i)})
		}
		f.register(auth.Principal{ID: "carol", Workspace: "other", Scopes: auth.Scopes()}, RegisterRequest{URIs: []string{build}, Target: "https://c.example/"})
		expect.Equal(t, "pages", f.resealAll("new:", nil), 3)
		secrets := f.secrets(alice, build)
		expect.Equal(t, "secrets", len(secrets), 2*n)
		for _, s := range secrets {
			if !bytes.HasPrefix(s, []byte("new:")) || bytes.HasPrefix(s, []byte("new:new:")) {
				t.Fatalf("got the secret %q, want one that was sealed again once", s)
			}
		}
	})
	t.Run("given a subscription that changes at the same time, when it is sealed again, then the change stays", func(t *testing.T) {
		f := newFixture(t, Options{})
		got := f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"})
		id := got.Subscription.ID
		paused := false
		f.resealAll("new:", func(Binding) {
			if !paused {
				paused = true
				if _, err := f.SetPaused(t.Context(), "default", "alice", id, true); err != nil {
					t.Error(err)
				}
			}
		})
		sub, err := f.Lookup(t.Context(), "default", "alice", id)
		if err != nil || sub.Paused == 0 || !bytes.HasPrefix(sub.Target.Secret, []byte("new:")) {
			t.Errorf("got %+v, %v; want a paused subscription with the new secret", sub, err)
		}
	})
	t.Run("given a disabled subscription, when it is visited, then it stays disabled", func(t *testing.T) {
		f := newFixture(t, Options{})
		got := f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"})
		id := got.Subscription.ID
		if ended, err := f.Disable(t.Context(), "default", "alice", id, "because", got.Subscription.Resumed); err != nil || !ended {
			t.Fatal(ended, err)
		}
		visits := 0
		f.resealAll("new:", func(Binding) { visits++ })
		if n := len(f.subscribers(build)); visits != 1 || n != 0 {
			t.Errorf("got %d visits and %d subscribers, want 1 and 0", visits, n)
		}
	})
	t.Run("given a secret that cannot be sealed again, then the error is returned and the position stays", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"})
		broken := errors.New("broken")
		next, more, err := f.Records.Reseal(t.Context(), Position{}, func(context.Context, []byte, Binding) ([]byte, error) { return nil, broken })
		if !errors.Is(err, broken) || more || next != (Position{}) {
			t.Errorf("got %v, %v, %v; want the beginning and the error", next, more, err)
		}
	})
}
