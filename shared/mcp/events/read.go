package events

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxLatest is the maximum number of events that resources/read returns. Together, their payloads have at most [eventlog.LatestBytes].
const maxLatest = 20

// Reads serves resources/read.
type Reads struct {
	Catalogs      method.Catalogs
	Log           *eventlog.Log
	Subscriptions streams.Subscriptions
}

// Read serves resources/read for event URIs and for the URIs of the caller's webhook subscriptions.
func (h *Reads) Read(ctx context.Context, c *method.Call) (method.Result, error) {
	uri, err := c.RequiredString("uri")
	if err != nil {
		return method.Result{}, err
	}
	var text []byte
	if strings.HasPrefix(uri, streams.SubscriptionScheme) {
		text, err = h.readSubscription(ctx, c.Principal, uri)
	} else {
		text, err = h.readEvents(ctx, c.Principal, uri)
	}
	if err != nil {
		return method.Result{}, err
	}
	b := jsonrpc.AppendString([]byte(`"contents":[{"uri":`), uri)
	b = append(b, `,"mimeType":"application/json","text":`...)
	b = jsonrpc.AppendString(b, string(text))
	return method.Result{Members: [][]byte{append(b, `}]`...)}, Cache: &method.Caching{TTL: 0, Scope: method.Private}}, nil
}

// latest is the content that resources/read returns for an event URI, with the newest event first.
type latest struct {
	URI    string        `json:"uri"`
	Events []latestEvent `json:"events"`
}

type latestEvent struct {
	EventID   string          `json:"eventId"`
	Name      string          `json:"name"`
	URI       string          `json:"uri"`
	Timestamp string          `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
}

func (h *Reads) readEvents(ctx context.Context, p auth.Principal, uri string) ([]byte, error) {
	cat, err := h.Catalogs.CatalogOf(ctx, p)
	if err != nil {
		return nil, err
	}
	patterns, access, err := match.Resolve(cat, uri)
	if err != nil {
		return nil, method.NotFound(uri) // do not tell the reason, which would show which other URIs exist
	}
	if _, err := streams.FilterPermitted(p, access); err != nil {
		return nil, err
	}
	var found []event.Event
	for _, pattern := range patterns {
		events, err := h.readLatest(ctx, cat, p, pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, events...)
	}
	slices.SortStableFunc(found, func(a, b event.Event) int { return b.Published.Compare(a.Published) })
	out := latest{URI: uri, Events: []latestEvent{}}
	size := 0
	for _, ev := range found {
		if size += len(ev.Data); len(out.Events) == maxLatest || size > eventlog.LatestBytes {
			break
		}
		if streams.MayReceive(cat, p, &ev) {
			out.Events = append(out.Events, latestEvent{ev.ID, ev.Name, ev.URI, ev.Timestamp(), ev.Data})
		}
	}
	text, err := json.Marshal(out)
	return text, fault.Wrap(fault.Internal, err, "encode the latest events of %s", uri)
}

// readLatest reads the newest events that match a URI pattern and that the principal may receive. For a pattern with a wildcard, it
// searches below the part before the wildcard, for example below event://github/acme for event://github/acme/*/push.
func (h *Reads) readLatest(ctx context.Context, cat *catalog.Catalog, who auth.Principal, p match.Pattern) ([]event.Event, error) {
	parent := p.URI()
	switch p.Kind {
	case match.Concrete:
		return h.Log.Latest(ctx, who.Workspace, parent, p.Unordered, maxLatest)
	case match.Wildcard:
		parent, _, _ = strings.Cut(p.Key, "/"+catalog.Wildcard)
		if parent+"/" == catalog.Scheme { // the first segment is a wildcard, so there is no parent to search
			return nil, nil
		}
	}
	return h.Log.LatestBelow(ctx, who.Workspace, parent, maxLatest, func(uri string) (wanted, unordered bool) {
		entry, vars, ok := cat.Match(uri)
		return ok && match.Matches(p.Key, uri) && entry.Access.Check(who, vars) == nil, ok && entry.Unordered()
	})
}

type subscriptionState struct {
	URI           string          `json:"uri"`
	Name          string          `json:"name,omitempty"`
	EventURIs     []string        `json:"eventUris"`
	TargetURI     string          `json:"targetUri"`
	State         string          `json:"state"`
	Reason        string          `json:"reason,omitempty"`
	Created       time.Time       `json:"created"`
	RefreshBefore *time.Time      `json:"refreshBefore,omitempty"`
	Delivery      *deliveryStatus `json:"deliveryStatus"`
}

// deliveryStatus is the status of a webhook subscription's deliveries, in the form of SEP-3415. In the answer to a request that refreshes
// the subscription, it describes the time before the refresh. For example, Active is false if the subscription was suspended until the
// refresh.
type deliveryStatus struct {
	Active         bool       `json:"active"`
	LastDeliveryAt *time.Time `json:"lastDeliveryAt"`
	LastError      *string    `json:"lastError"`
	FailedSince    *time.Time `json:"failedSince,omitempty"`
	Throttled      bool       `json:"throttled,omitempty"`
	RetryAfterMS   int64      `json:"retryAfterMs,omitempty"`
}

func newDeliveryStatus(active bool, s subscription.Status) *deliveryStatus {
	out := &deliveryStatus{Active: active, LastDeliveryAt: timeOrNil(s.LastDelivery), FailedSince: timeOrNil(s.FailedSince)}
	if s.LastError != "" {
		out.LastError = &s.LastError
	}
	if wait := time.Until(s.ThrottledUntil); wait > 0 {
		out.Throttled, out.RetryAfterMS = true, wait.Milliseconds()
	}
	return out
}

func (h *Reads) readSubscription(ctx context.Context, p auth.Principal, uri string) ([]byte, error) {
	if h.Subscriptions == nil {
		return nil, method.NotFound(uri)
	}
	v, err := h.Subscriptions.Read(ctx, p, uri)
	if fault.Is(err, fault.NotFound) {
		return nil, method.NotFound(uri)
	}
	if err != nil {
		return nil, err
	}
	state := subscriptionState{
		URI: subscription.URI(v.ID), Name: v.Name, EventURIs: v.EventURIs, TargetURI: v.Target,
		State: string(v.State), Reason: v.Reason, Created: v.Created, RefreshBefore: timeOrNil(v.Until),
		Delivery: newDeliveryStatus(v.State == subscription.Active, v.Status),
	}
	text, err := json.Marshal(state)
	return text, fault.Wrap(fault.Internal, err, "encode the subscription")
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
