package admin

import (
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// erasure is what was erased, or in a dry run what would be, by kind.
type erasure struct {
	Principal string         `json:"principal"`
	DryRun    bool           `json:"dryRun"`
	Counts    map[string]int `json:"counts"`
	// Complete is false if there is more: whoever asks again goes on.
	Complete bool `json:"complete"`
}

// principalHandler erases principals.
type principalHandler struct{ eraser *erase.Eraser }

func (h *principalHandler) erase(c *call) (any, error) {
	out := erasure{Principal: c.PathValue("id"), DryRun: c.oneOf("dryRun", "true", "false") == "true"}
	if out.Principal == "" || len(out.Principal) > 500 {
		c.fail("the principal is %.100q (allowed: 1 to 500 bytes)", out.Principal)
	}
	if c.err != nil {
		return nil, c.err
	}
	run := func() error {
		done, err := h.eraser.Erase(c.Context(), c.who.Workspace, out.Principal, out.DryRun)
		out.Counts, out.Complete = done.Counts, done.Complete
		return err
	}
	if out.DryRun {
		err := run()
		return out, err
	}
	if out.Principal == c.who.ID && !c.who.Anonymous { // without authentication there is no other
		return nil, fault.New(fault.Conflict, "an operator is erased by another one")
	}
	err := c.change("principal.erase", erase.Pseudonym(c.who.Workspace, out.Principal), nil, nil, run)
	return out, err
}
