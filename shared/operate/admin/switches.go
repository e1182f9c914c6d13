package admin

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

type switchHandlers struct {
	switches      *switches.Set
	subscriptions *subscriptionHandlers
	catalogs      catalog.Source
}

// switchView is a switch with the number of messages that it holds back.
type switchView struct {
	switches.Switch
	Waiting *switches.Waiting `json:"waiting,omitempty"`
}

// maxCountedSwitches is the number of switches in one response for which the server counts the messages that they hold back. A count
// takes four queries, so the response shows the other switches without it.
const maxCountedSwitches = 20

// list responds with a page of the list of switches. For the first [maxCountedSwitches] switches, the page also has the number of
// messages that each of them holds back. Switches of a single subscription are not counted here, because the API shows their number with
// the subscription.
func (h *switchHandlers) list(c *call) (any, error) {
	found, next, err := h.switches.List(c.Context(), c.principal.Workspace, c.After, c.Limit)
	if err != nil {
		return nil, err
	}
	views := make([]switchView, len(found))
	counted := 0
	for i, sw := range found {
		views[i].Switch = sw
		if _, one := sw.Name.SubscriptionID(); one || counted == maxCountedSwitches {
			continue
		}
		counted++
		if views[i], err = h.view(c, sw); err != nil {
			return nil, err
		}
	}
	return newList(c, views, next, asIs), nil
}

func (h *switchHandlers) view(c *call, sw switches.Switch) (switchView, error) {
	waiting, err := h.switches.CountWaiting(c.Context(), c.principal.Workspace, sw.Name)
	return switchView{sw, &waiting}, err
}

func (h *switchHandlers) read(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	sw, err := h.switches.Get(c.Context(), c.principal.Workspace, name)
	switch {
	case err != nil:
		return nil, err
	case sw == nil:
		return nil, fault.New(fault.NotFound, "%s is not paused", name)
	}
	return h.view(c, *sw)
}

func newSwitch(c *call, name switches.Name, reason string) switches.Switch {
	return switches.Switch{
		Name: name, State: switches.StatePaused, By: c.principal.ID, At: time.Now().UTC(), Reason: reason, Operator: c.operator,
	}
}

func (h *switchHandlers) put(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	in, err := c.readReason()
	if err != nil {
		return nil, err
	}
	if in.State != "" && in.State != switches.StatePaused {
		return nil, fault.New(fault.Invalid, "state is %.100q (allowed: paused)", in.State)
	}
	before, err := h.switches.Get(c.Context(), c.principal.Workspace, name)
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
			if err := h.checkEventType(c, name); err != nil {
				return nil, err
			}
		}
		after := newSwitch(c, name, in.Reason)
		err := c.change("switch.pause", string(name), before, after, func() error {
			return h.switches.Pause(c.Context(), c.principal.Workspace, after)
		})
		if err != nil {
			return nil, err
		}
	}
	return h.read(c)
}

// checkEventType refuses a switch for an event type that does not exist. Such a switch would look effective but pause
// nothing. If the catalog cannot be read, checkEventType allows the switch.
func (h *switchHandlers) checkEventType(c *call, name switches.Name) error {
	event, ok := strings.CutPrefix(string(name), string(switches.EventSwitch("")))
	if !ok {
		return nil
	}
	cat, err := h.catalogs.Catalog(c.Context(), c.principal.Workspace)
	if err != nil || cat.ByName(event) != nil {
		return nil
	}
	return fault.New(fault.NotFound, "there is no event type %.100q in the catalog", event)
}

func (h *switchHandlers) remove(c *call) (any, error) {
	name, err := switches.Parse(c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	before, err := h.switches.Get(c.Context(), c.principal.Workspace, name)
	if err != nil || before == nil {
		return noContent, err
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
		if _, err := h.switches.Resume(c.Context(), c.principal.Workspace, name); err != nil {
			return err
		}
		return requeue(c, h.switches, name)
	})
}

// requeue is called after a switch was removed. It puts the messages that the switch has held back into their queues again. If there are
// very many, it puts back only a part, and a periodic job puts back the rest.
func requeue(c *call, set *switches.Set, name switches.Name) error {
	_, err := set.RequeueOf(c.Context(), c.principal.Workspace, name)
	return err
}

type noteHandlers struct{ switches *switches.Set }

func (h *noteHandlers) list(c *call) (any, error) {
	if c.Origin == "" {
		notes, next, err := h.switches.ListNotes(c.Context(), c.principal.Workspace, c.After, c.Limit)
		return newList(c, notes, next, asIs), err
	}
	byOrigin, err := h.switches.NotesOf(c.Context(), c.principal.Workspace, c.Origin)
	if err != nil {
		return nil, err
	}
	notes := []switches.Note{}
	if n := byOrigin[c.Origin]; n != nil {
		notes = append(notes, *n)
	}
	return newList(c, notes, "", asIs), nil
}

// parseOrigin returns the origin in the request's path, in the spelling in which the server stores it.
func (h *noteHandlers) parseOrigin(c *call) (string, error) {
	name, err := switches.Parse(string(switches.OriginSwitch(c.PathValue("name"))))
	return strings.TrimPrefix(string(name), string(switches.OriginSwitch(""))), err
}

func (h *noteHandlers) currentNote(c *call, origin string) (*switches.Note, error) {
	notes, err := h.switches.NotesOf(c.Context(), c.principal.Workspace, origin)
	return notes[origin], err
}

func (h *noteHandlers) put(c *call) (any, error) {
	origin, err := h.parseOrigin(c)
	if err != nil {
		return nil, err
	}
	var in struct {
		Text string `json:"text"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, err
	}
	in.Text = strings.TrimSpace(in.Text)
	if n := utf8.RuneCountInString(in.Text); n == 0 || n > maxReason {
		return nil, fault.New(fault.Invalid, "text has %d characters (allowed: 1 to %d)", n, maxReason)
	}
	before, err := h.currentNote(c, origin)
	if err != nil {
		return nil, err
	}
	after := switches.Note{Origin: origin, Text: in.Text, By: c.principal.ID, At: time.Now().UTC()}
	return after, c.change("note.write", origin, before, after, func() error {
		return h.switches.SetNote(c.Context(), c.principal.Workspace, after)
	})
}

func (h *noteHandlers) remove(c *call) (any, error) {
	origin, err := h.parseOrigin(c)
	if err != nil {
		return nil, err
	}
	before, err := h.currentNote(c, origin)
	if err != nil || before == nil {
		return noContent, err
	}
	return noContent, c.change("note.remove", origin, before, nil, func() error {
		return h.switches.RemoveNote(c.Context(), c.principal.Workspace, origin)
	})
}
