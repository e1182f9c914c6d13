package admin

import (
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// visible are the subscriptions that a caller may see: an operator those of the workspace, an owner their own.
type visible struct {
	subscriptions *subscription.Service
	lists         *subscription.Lists
}

// find finds the one that is meant, if the caller may see it.
func (v visible) find(c *call, id string) (*subscription.Selected, error) {
	s, err := v.subscriptions.Find(c.Context(), c.who.Workspace, id)
	if err != nil {
		return nil, err
	}
	if s == nil || !c.operator && s.Principal != c.who.ID {
		return nil, fault.New(fault.NotFound, "there is no such subscription")
	}
	return s, nil
}

// maxOwn is over how many subscriptions of an owner one list goes.
const maxOwn = 100

// owned holds an owner to subscriptions of their own: to the one that is named, or else to all, which it returns.
// One that must be there is not found if it is not; an operator may ask for what was delivered to one that is gone.
func (v visible) owned(c *call, id string, must bool) (own []string, err error) {
	switch {
	case c.operator && !must:
		return nil, nil
	case id != "":
		_, err := v.find(c, id)
		return nil, err
	}
	found, next, err := v.lists.Select(c.Context(), c.who.Workspace, subscription.Choice{Principal: c.who.ID}, "", maxOwn)
	if err == nil && next != "" {
		err = fault.New(fault.Invalid, "you have more than %d subscriptions: name one", maxOwn)
	}
	own = []string{}
	for _, s := range found {
		own = append(own, s.ID)
	}
	return own, err
}
