package admin

import (
	"encoding/json"
	"errors"

	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// change makes a change and writes its entry in the audit trail. Before and after are nil if the object does not exist then.
func (c *call) change(action, target string, before, after any, do func() error) error {
	via := "api"
	if c.Header.Get("Sec-Fetch-Site") == "same-origin" { // only browsers can set this header
		via = "console"
	}
	was, err := json.Marshal(before)
	is, err2 := json.Marshal(after)
	if err := errors.Join(err, err2); err != nil {
		return fault.Wrap(fault.Internal, err, "encode an audit entry")
	}
	e := audit.Entry{By: c.who.ID, Via: via, Action: action, Target: target, Before: was, After: is}
	return c.trail.Do(c.Context(), c.who.Workspace, e, do)
}

func listAudit(c *call) (any, error) {
	entries, next, err := c.trail.List(c.Context(), c.who.Workspace, c.Since, c.Until, c.After, c.Limit)
	if err != nil {
		return nil, err
	}
	return newList(c, entries, next, asIs), nil
}

// erasure counts the erased items by kind. For a dry run, it counts the items that an erasure would remove.
type erasure struct {
	Principal string         `json:"principal"`
	DryRun    bool           `json:"dryRun"`
	Counts    map[string]int `json:"counts"`
	// Complete is false if there are more items. Repeating the request erases them.
	Complete bool `json:"complete"`
}

// principalHandler erases principals.
type principalHandler struct{ eraser *erase.Eraser }

func (h *principalHandler) erase(c *call) (any, error) {
	out := erasure{Principal: c.PathValue("id"), DryRun: c.DryRun}
	if out.Principal == "" || len(out.Principal) > 500 {
		return nil, fault.New(fault.Invalid, "the principal is %.100q (allowed: 1 to 500 bytes)", out.Principal)
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
	if out.Principal == c.who.ID && !c.who.Anonymous { // without authentication there is only one principal
		return nil, fault.New(fault.Conflict, "operators cannot erase themselves; another operator has to do it")
	}
	err := c.change("principal.erase", erase.Pseudonym(c.who.Workspace, out.Principal), nil, nil, run)
	return out, err
}
