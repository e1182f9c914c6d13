package admin

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/judge"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// eventOutcomeView is the outcome of an event for one subscription as the API shows it.
type eventOutcomeView struct {
	Subscription string `json:"subscription"`
	Principal    string `json:"principal,omitempty"`
	// Target is without its query, as in [subscriptionView]. It is only the origin if the subscription no longer exists.
	Target      string           `json:"target,omitempty"`
	Outcome     judge.Kind       `json:"outcome"`
	Why         string           `json:"why"`
	At          time.Time        `json:"at,omitzero"`
	Attempts    int              `json:"attempts,omitempty"`
	StatusCode  int              `json:"statusCode,omitempty"`
	Category    string           `json:"category,omitempty"`
	NextAttempt time.Time        `json:"nextAttempt,omitzero"`
	Filter      *filterView      `json:"filter,omitempty"`
	Switch      *switches.Switch `json:"switch,omitempty"`
}

// filterView is the argument of a subscription that an event does not match.
type filterView struct {
	Argument string          `json:"argument"`
	Wanted   json.RawMessage `json:"wanted"`
	Value    json.RawMessage `json:"value,omitempty"`
}

func viewOfEventOutcome(o judge.Outcome) eventOutcomeView {
	v := eventOutcomeView{
		Subscription: o.ID, Target: o.Origin, Outcome: o.Kind, Why: o.Why, At: utc(o.At), Attempts: o.Attempts,
		StatusCode: o.Status, Category: o.Category, NextAttempt: utc(o.Next), Switch: o.Switch,
	}
	if s := o.Subscription; s != nil {
		v.Principal = s.Principal
		v.Target, _, _ = strings.Cut(s.Target.URL, "?")
	}
	if o.Argument != "" {
		v.Filter = &filterView{o.Argument, o.Wanted, o.Got}
	}
	return v
}

// utc returns a time in UTC, and the zero time unchanged.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

type eventOutcomeList struct {
	list[eventOutcomeView]
	kept
}

// eventOutcomeHandler explains what became of an event.
type eventOutcomeHandler struct {
	events    *eventHandlers
	explainer *judge.Explainer
	kept      records.Keep
}

func (h *eventOutcomeHandler) list(c *call) (any, error) {
	e, err := h.find(c)
	if err != nil {
		return nil, err
	}
	var found []judge.Outcome
	var next string
	if c.Subscription == "" {
		found, next, err = h.explainer.Page(c.Context(), e, c.After, c.Limit)
	} else {
		var one *judge.Outcome
		if one, err = h.explainer.One(c.Context(), e, c.Subscription); err == nil && one == nil {
			err = fault.New(fault.NotFound, "there is no such subscription")
		}
		if one != nil {
			found = append(found, *one)
		}
	}
	if err != nil {
		return nil, err
	}
	return eventOutcomeList{newList(c, found, next, viewOfEventOutcome), keptOf(h.kept, state.KeptFor)}, nil
}

// find returns the event in the path. An event that is no longer in the log, or a test event, is known from its attempts only.
func (h *eventOutcomeHandler) find(c *call) (judge.Event, error) {
	e, err := h.events.find(c)
	if err == nil {
		return judge.Event{Event: e}, nil
	}
	if !fault.Is(err, fault.NotFound) {
		return judge.Event{}, err
	}
	tries, _, listErr := records.List(c.Context(), h.events.db, c.who.Workspace, records.Query{Event: c.PathValue("id")}, "", 1)
	if listErr != nil {
		return judge.Event{}, listErr
	}
	if len(tries) == 0 || c.URI != "" && tries[0].URI != c.URI {
		return judge.Event{}, err
	}
	first := tries[0]
	return judge.Event{
		Event: &event.Event{Workspace: c.who.Workspace, ID: first.Event, URI: first.URI, Name: first.Name}, Lost: true, Test: first.Test,
	}, nil
}
