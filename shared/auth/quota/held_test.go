package quota

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// take takes n for a principal and returns how many were granted.
func take(t *testing.T, h *Held, p auth.Principal, n int) (releases []func()) {
	t.Helper()
	for range n {
		release, err := h.Take(t.Context(), p)
		switch {
		case err == nil:
			releases = append(releases, release)
		case !fault.Is(err, fault.Exhausted) || fault.LimitOf(err) != "calls":
			t.Fatalf("got error %v, want the limit calls", err)
		}
	}
	return releases
}

func TestAPrincipalHoldsAsMuchAsItsQuotaAllows(t *testing.T) {
	h := NewHeld("calls", "calls", Same(2), 5)
	alice, bob := auth.Principal{ID: "alice", Workspace: "w"}, auth.Principal{ID: "bob", Workspace: "w"}
	of := take(t, h, alice, 3)
	if len(of) != 2 {
		t.Fatalf("AUT-07: alice got %d, want 2", len(of))
	}
	if n := len(take(t, h, bob, 3)); n != 2 {
		t.Errorf("AUT-07: bob got %d while alice holds all of hers, want 2", n)
	}
	of[0]()
	if n := len(take(t, h, alice, 2)); n != 1 {
		t.Errorf("AUT-07: after a release alice got %d, want 1", n)
	}
	if n := len(take(t, h, auth.Principal{ID: "carol"}, 2)); n != 1 {
		t.Errorf("carol got %d of the one that is left of the total, want 1", n)
	}
}

func TestAnonymousCallersAreBoundByTheTotal(t *testing.T) {
	h := NewHeld("calls", "calls", Same(2), 5)
	anonymous := auth.Principal{ID: "anonymous", Anonymous: true}
	of := take(t, h, anonymous, 7)
	if len(of) != 5 {
		t.Errorf("got %d, want 5", len(of))
	}
	for _, release := range of {
		release()
	}
	if len(h.held.of) != 0 || h.held.all != 0 {
		t.Errorf("%d principals and %d calls are remembered after all were released", len(h.held.of), h.held.all)
	}
}
