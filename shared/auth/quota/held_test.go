package quota

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
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
	expect.Equal(t, "AUT-07: bob's share while alice holds all of hers", len(take(t, h, bob, 3)), 2)
	of[0]()
	expect.Equal(t, "AUT-07: alice's share after a release", len(take(t, h, alice, 2)), 1)
	expect.Equal(t, "carol's share of the one that is left of the total", len(take(t, h, auth.Principal{ID: "carol"}, 2)), 1)
}

func TestAnonymousCallersAreBoundByTheTotal(t *testing.T) {
	h := NewHeld("calls", "calls", Same(2), 5)
	anonymous := auth.Principal{ID: "anonymous", Anonymous: true}
	of := take(t, h, anonymous, 7)
	expect.Equal(t, "the holders", len(of), 5)
	for _, release := range of {
		release()
	}
	if len(h.held.of) != 0 || h.held.all != 0 {
		t.Errorf("%d principals and %d calls are remembered after all were released", len(h.held.of), h.held.all)
	}
}
