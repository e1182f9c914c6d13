package admin

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/judge"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

type eventView struct {
	ID        string    `json:"id"`
	URI       string    `json:"uri"`
	Name      string    `json:"name"`
	Time      time.Time `json:"time"`
	Published time.Time `json:"published"`
	Data      any       `json:"data"`
}

func viewOfEvent(e event.Event) eventView {
	v := eventView{ID: e.ID, URI: e.URI, Name: e.Name, Time: e.Time, Published: e.Published}
	if len(e.Data) > 0 {
		v.Data = e.Data
	}
	return v
}

type eventList struct {
	list[eventView]
	// Truncated is true if the event type has more than [maxURIs] URIs. Then the response lacks the events of some URIs.
	Truncated bool `json:"truncated"`
}

const (
	maxURIs = 50  // the list of an event type's events covers at most this many URIs
	maxLook = 500 // a search for an event reads at most this many items per URI
)

type eventHandlers struct {
	visible    visible
	db         store.DB
	log        *eventlog.Log
	catalogs   catalog.Source
	operations *deadletter.Operations
}

func (h *eventHandlers) list(c *call) (any, error) {
	if c.URI == "" && c.Name == "" {
		return nil, fault.New(fault.Invalid, "name a uri or the name of an event type")
	}
	cat, err := h.catalogs.Catalog(c.Context(), c.principal.Workspace)
	if err != nil {
		return nil, err
	}
	parts, truncated, err := h.partitions(c, cat, c.URI, c.Name)
	if err != nil {
		return nil, err
	}
	found, next, err := h.log.Newest(c.Context(), parts, c.Since, c.Until, c.After, c.Limit)
	if err != nil {
		return nil, err
	}
	type published struct {
		key string
		at  time.Time
	}
	seen := map[published]bool{} // the log contains the events of a repeated batch twice
	found = slices.DeleteFunc(found, func(e event.Event) bool {
		it := published{e.Key(), e.Published.UTC()}
		again := seen[it]
		seen[it] = true
		return again || c.Name != "" && e.Name != c.Name
	})
	return eventList{list: newList(c, found, next, viewOfEvent), Truncated: truncated}, nil
}

// partitions returns the partitions of the event log that have the events of a URI or, if uri is empty, of an event type. The result
// truncated is true if the event type has more than [maxURIs] URIs.
func (h *eventHandlers) partitions(c *call, cat *catalog.Catalog, uri, name string) (parts []eventlog.Partition, truncated bool, err error) {
	uris := []string{uri}
	if uri == "" {
		if uris, truncated, err = h.urisOf(c, cat, cat.ByName(name)); err != nil {
			return nil, false, err
		}
	}
	for _, u := range uris {
		entry, _, ok := cat.Match(u)
		parts = append(parts, h.log.PartitionsOf(c.principal.Workspace, u, ok && entry.Unordered())...)
	}
	return parts, truncated, nil
}

// urisOf returns the URIs of an event type that had events within the last month. The result more is true if there are further URIs.
func (h *eventHandlers) urisOf(c *call, cat *catalog.Catalog, e *catalog.Entry) (uris []string, more bool, err error) {
	if e == nil {
		return nil, false, nil
	}
	if e.Fixed() {
		return []string{e.URI}, false, nil
	}
	parent, _, _ := strings.Cut(e.URITemplate, "/{")
	if !strings.HasPrefix(parent, "event://") {
		return nil, false, fault.New(fault.Invalid, "the URIs of %s have nothing in common; name a uri", e.Name)
	}
	known, err := h.log.ListBelow(c.Context(), c.principal.Workspace, parent, 1000)
	if err != nil {
		return nil, false, err
	}
	for _, uri := range known {
		if m, _, ok := cat.Match(uri); !ok || m != e {
			continue
		}
		if len(uris) == maxURIs {
			return uris, true, nil
		}
		uris = append(uris, uri)
	}
	return uris, len(known) == 1000, nil
}

var errNoEvent = fault.New(fault.NotFound, "the log has no such event")

// find returns the event whose id is in the request's path. Some stores have an index of event ids. If the index does not have the event,
// or if there is no index, find looks in the delivery log for an attempt to deliver the event. The record of an attempt has the event's
// URI, by which find can search the event log. After a failed attempt, the store also has the event itself.
//
// Without an index and without such a record, find searches the event log for each URI in use.
func (h *eventHandlers) find(c *call) (*event.Event, error) {
	ctx, workspace, id, uri := c.Context(), c.principal.Workspace, c.PathValue("id"), c.URI
	if !event.ValidID(id) {
		return nil, errNoEvent
	}
	e, indexed, err := h.log.ByID(ctx, workspace, id, uri)
	if e != nil || err != nil {
		return e, err
	}
	if uri != "" {
		return h.search(c, id, []string{uri})
	}
	found, _, err := records.List(ctx, h.db, workspace, records.Query{Event: id}, "", 1)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 1 && !found[0].Test:
		if e, err := h.operations.FindStoredEvent(ctx, workspace, found[0].URI, id); e != nil || err != nil {
			return e, err
		}
		return h.search(c, id, []string{found[0].URI})
	case indexed:
		return nil, errNoEvent
	}
	return h.search(c, id, nil)
}

// search searches the event log for the event with the given id. It searches only the events with one of the URIs or, if uris is empty,
// the events of all event types.
func (h *eventHandlers) search(c *call, id string, uris []string) (*event.Event, error) {
	cat, err := h.catalogs.Catalog(c.Context(), c.principal.Workspace)
	if err != nil {
		return nil, err
	}
	if len(uris) == 0 {
		for _, e := range cat.Entries() {
			some, _, err := h.urisOf(c, cat, e)
			if err != nil && !fault.Is(err, fault.Invalid) {
				return nil, err
			}
			uris = append(uris, some...)
		}
	}
	for _, u := range uris[:min(len(uris), 2*maxURIs)] {
		parts, _, err := h.partitions(c, cat, u, "")
		if err != nil {
			return nil, err
		}
		if e, err := h.log.Find(c.Context(), parts, id, maxLook); e != nil || err != nil {
			return e, err
		}
	}
	return nil, errNoEvent
}

func (h *eventHandlers) deliver(c *call) (any, error) {
	var in struct {
		Subscription string `json:"subscription"`
	}
	if err := c.readBody(&in); err != nil {
		return nil, err
	}
	e, err := h.find(c)
	if err != nil {
		return nil, err
	}
	s, err := h.visible.find(c, in.Subscription)
	if err != nil {
		return nil, err
	}
	if !s.Covers(e.URI) {
		return nil, fault.New(fault.Unprocessable, "the subscription is not for %s", e.URI)
	}
	err = c.change("event.deliver", e.ID, nil, map[string]string{"subscription": s.ID, "uri": e.URI}, func() error {
		return h.operations.Deliver(c.Context(), s.Subscription, e)
	})
	return answerAccepted(map[string]string{"event": e.ID, "subscription": s.ID}), err
}

type typeView struct {
	Name        string   `json:"name"`
	URI         string   `json:"uri"` // with its variables in braces
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Delivery    []string `json:"delivery"`
}

func (h *eventHandlers) listTypes(c *call) (any, error) {
	cat, err := h.catalogs.Catalog(c.Context(), c.principal.Workspace)
	if err != nil {
		return nil, err
	}
	page, next := cutPage(cat.Entries(), func(e *catalog.Entry) string { return e.Name }, c.After, c.Limit)
	return newList(c, page, next, func(e *catalog.Entry) typeView {
		return typeView{Name: e.Name, URI: e.URI + e.URITemplate, Title: e.Title, Description: e.Description, Delivery: e.Delivery}
	}), nil
}

// tailedPartitions returns the partitions of the event log from which a live stream reads new events: the partitions of all event
// types, but at most [maxTailed]. truncated is true if partitions are missing.
func (h *eventHandlers) tailedPartitions(c *call) (parts []eventlog.Partition, truncated bool, err error) {
	cat, err := h.catalogs.Catalog(c.Context(), c.principal.Workspace)
	if err != nil {
		return nil, false, err
	}
	for _, e := range cat.Entries() {
		some, more, err := h.partitions(c, cat, "", e.Name)
		if err != nil { // for example, the URIs of the type have no common parent under which they could be listed
			truncated = true
			continue
		}
		parts, truncated = append(parts, some...), truncated || more
	}
	if len(parts) > maxTailed {
		return parts[:maxTailed], true, nil
	}
	return parts, truncated, nil
}

type eventOutcomeView struct {
	Subscription string `json:"subscription"`
	Principal    string `json:"principal,omitempty"`
	// Target is the endpoint's URL without its query, or its origin if the subscription no longer exists.
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

type filterView struct {
	Argument string          `json:"argument"`
	Wanted   json.RawMessage `json:"wanted"`
	Value    json.RawMessage `json:"value,omitempty"`
}

func viewOfEventOutcome(o judge.Outcome) eventOutcomeView {
	v := eventOutcomeView{
		Subscription: o.ID, Target: o.Origin, Outcome: o.Kind, Why: o.Why, At: o.At.UTC(), Attempts: o.Attempts,
		StatusCode: o.Status, Category: o.Category, NextAttempt: o.Next.UTC(), Switch: o.Switch,
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

type eventOutcomeList struct {
	list[eventOutcomeView]
	kept
}

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
		found, next, err = h.explainer.ExplainPage(c.Context(), e, c.After, c.Limit)
	} else {
		var one *judge.Outcome
		if one, err = h.explainer.ExplainOne(c.Context(), e, c.Subscription); err == nil && one == nil {
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

// find returns the event that the request's path names. If the log does not have the event, because the event has expired or is a test
// event, find builds an event without payload from the record of an attempt to deliver it.
func (h *eventOutcomeHandler) find(c *call) (judge.Event, error) {
	e, err := h.events.find(c)
	if err == nil {
		return judge.Event{Event: e}, nil
	}
	if !fault.Is(err, fault.NotFound) {
		return judge.Event{}, err
	}
	tries, _, listErr := records.List(c.Context(), h.events.db, c.principal.Workspace, records.Query{Event: c.PathValue("id")}, "", 1)
	if listErr != nil {
		return judge.Event{}, listErr
	}
	if len(tries) == 0 || c.URI != "" && tries[0].URI != c.URI {
		return judge.Event{}, err
	}
	first := tries[0]
	return judge.Event{
		Event: &event.Event{Workspace: c.principal.Workspace, ID: first.Event, URI: first.URI, Name: first.Name}, Lost: true, Test: first.Test,
	}, nil
}
