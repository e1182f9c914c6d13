package admin

import (
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/switches"
)

func (h *Handler) listSwitches(c *call) (any, error) {
	after, limit := c.page()
	if c.err != nil {
		return nil, c.err
	}
	found, next, err := h.Switches.List(c.Context(), c.who.Workspace, after, limit)
	if err != nil {
		return nil, err
	}
	return listOf(c, found, next, itself), nil
}

func (h *Handler) readSwitch(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	sw, err := h.Switches.Get(c.Context(), c.who.Workspace, name)
	if err == nil && sw == nil {
		err = fault.New(fault.NotFound, "%s is not paused", name)
	}
	return sw, err
}

// paused is a switch as the caller sets it.
func (h *Handler) paused(c *call, name switches.Name, reason string) switches.Switch {
	return switches.Switch{
		Name: name, State: switches.StatePaused, By: c.who.ID, At: time.Now().UTC(), Reason: reason, Operator: c.operator,
	}
}

func (h *Handler) putSwitch(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	var in reasoned
	if err := c.body(&in); err != nil {
		return nil, err
	}
	if in.State != "" && in.State != switches.StatePaused {
		return nil, fault.New(fault.Invalid, "state is %.100q (allowed: paused)", in.State)
	}
	before, err := h.Switches.Get(c.Context(), c.who.Workspace, name)
	if err != nil {
		return nil, err
	}
	if id, ok := name.SubscriptionID(); ok {
		s, err := h.subscription(c, id)
		if err != nil {
			return nil, err
		}
		if err := h.setSubscription(c, s, in.Reason, true); err != nil {
			return nil, err
		}
	} else {
		if before == nil {
			if err := h.known(c, name); err != nil {
				return nil, err
			}
		}
		after := h.paused(c, name, in.Reason)
		err := h.change(c, "switch.pause", string(name), before, after, func() error {
			return h.Switches.Pause(c.Context(), c.who.Workspace, after)
		})
		if err != nil {
			return nil, err
		}
	}
	return h.readSwitch(c)
}

// known refuses the switch of an event type that there is not: it would pause nothing, and look as if it did.
func (h *Handler) known(c *call, name switches.Name) error {
	event, ok := strings.CutPrefix(string(name), string(switches.Event("")))
	if !ok {
		return nil
	}
	cat, err := h.Catalogs.Catalog(c.Context(), c.who.Workspace)
	if err != nil || cat.ByName(event) != nil { // what cannot be looked up may be paused
		return nil
	}
	return fault.New(fault.NotFound, "there is no event type %.100q in the catalog", event)
}

func (h *Handler) deleteSwitch(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	before, err := h.Switches.Get(c.Context(), c.who.Workspace, name)
	if err != nil || before == nil {
		return noContent, err // it is resumed already
	}
	if id, ok := name.SubscriptionID(); ok {
		s, err := h.subscription(c, id)
		if err == nil {
			return noContent, h.setSubscription(c, s, "", false)
		}
		if !fault.Is(err, fault.NotFound) {
			return nil, err
		}
	}
	return noContent, h.change(c, "switch.resume", string(name), before, nil, func() error {
		if _, err := h.Switches.Resume(c.Context(), c.who.Workspace, name); err != nil {
			return err
		}
		return h.release(c, name)
	})
}

// release begins to bring back what waits for a switch; the job of every minute goes on with it.
func (h *Handler) release(c *call, name switches.Name) error {
	_, err := h.Switches.ReleaseOf(c.Context(), c.who.Workspace, name)
	return err
}

func (h *Handler) listAudit(c *call) (any, error) {
	before, limit := c.page()
	since, until := c.span()
	if c.err != nil {
		return nil, c.err
	}
	entries, next, err := h.trail.List(c.Context(), c.who.Workspace, since, until, before, limit)
	if err != nil {
		return nil, err
	}
	return listOf(c, entries, next, itself), nil
}
