package admin

import (
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// switchHandlers list and show switches, set and remove them.
type switchHandlers struct {
	switches      *switches.Set
	subscriptions *subscriptionHandlers
	catalogs      catalog.Source
}

func (h *switchHandlers) list(c *call) (any, error) {
	after, limit := c.page()
	if c.err != nil {
		return nil, c.err
	}
	found, next, err := h.switches.List(c.Context(), c.who.Workspace, after, limit)
	if err != nil {
		return nil, err
	}
	return listOf(c, found, next, itself), nil
}

func (h *switchHandlers) read(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	sw, err := h.switches.Get(c.Context(), c.who.Workspace, name)
	if err == nil && sw == nil {
		err = fault.New(fault.NotFound, "%s is not paused", name)
	}
	return sw, err
}

// pausedBy is a switch as the caller sets it.
func pausedBy(c *call, name switches.Name, reason string) switches.Switch {
	return switches.Switch{
		Name: name, State: switches.StatePaused, By: c.who.ID, At: time.Now().UTC(), Reason: reason, Operator: c.operator,
	}
}

func (h *switchHandlers) put(c *call) (any, error) {
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
	before, err := h.switches.Get(c.Context(), c.who.Workspace, name)
	if err != nil {
		return nil, err
	}
	if id, ok := name.SubscriptionID(); ok {
		s, err := h.subscriptions.visible.find(c, id)
		if err != nil {
			return nil, err
		}
		if err := h.subscriptions.setPaused(c, s, in.Reason, true); err != nil {
			return nil, err
		}
	} else {
		if before == nil {
			if err := h.known(c, name); err != nil {
				return nil, err
			}
		}
		after := pausedBy(c, name, in.Reason)
		err := c.change("switch.pause", string(name), before, after, func() error {
			return h.switches.Pause(c.Context(), c.who.Workspace, after)
		})
		if err != nil {
			return nil, err
		}
	}
	return h.read(c)
}

// known refuses the switch of an event type that there is not: it would pause nothing, and look as if it did.
func (h *switchHandlers) known(c *call, name switches.Name) error {
	event, ok := strings.CutPrefix(string(name), string(switches.Event("")))
	if !ok {
		return nil
	}
	cat, err := h.catalogs.Catalog(c.Context(), c.who.Workspace)
	if err != nil || cat.ByName(event) != nil { // what cannot be looked up may be paused
		return nil
	}
	return fault.New(fault.NotFound, "there is no event type %.100q in the catalog", event)
}

func (h *switchHandlers) remove(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	before, err := h.switches.Get(c.Context(), c.who.Workspace, name)
	if err != nil || before == nil {
		return noContent, err // it is resumed already
	}
	if id, ok := name.SubscriptionID(); ok {
		s, err := h.subscriptions.visible.find(c, id)
		if err == nil {
			return noContent, h.subscriptions.setPaused(c, s, "", false)
		}
		if !fault.Is(err, fault.NotFound) {
			return nil, err
		}
	}
	return noContent, c.change("switch.resume", string(name), before, nil, func() error {
		if _, err := h.switches.Resume(c.Context(), c.who.Workspace, name); err != nil {
			return err
		}
		return requeue(c, h.switches, name)
	})
}

// requeue begins to bring back what waits for a switch; the job of every minute goes on with it.
func requeue(c *call, set *switches.Set, name switches.Name) error {
	_, err := set.RequeueOf(c.Context(), c.who.Workspace, name)
	return err
}
