package admin

import (
	"encoding/json"
	"errors"

	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// change makes a change with its entry in the audit trail. Before and after are nil for what is not there.
func (c *call) change(action, target string, before, after any, do func() error) error {
	via := "api"
	if c.Header.Get("Sec-Fetch-Site") == "same-origin" { // which no script can set
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
	before, limit := c.page()
	since, until := c.span()
	if c.err != nil {
		return nil, c.err
	}
	entries, next, err := c.trail.List(c.Context(), c.who.Workspace, since, until, before, limit)
	if err != nil {
		return nil, err
	}
	return listOf(c, entries, next, itself), nil
}
