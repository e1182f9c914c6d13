package subscription

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Status summarizes the deliveries of a subscription. Dispatch writes it on a failure, on the first success after a failure, and
// otherwise at most once per minute, or less often under high load.
type Status struct {
	LastDelivery time.Time `json:"last,omitzero"`
	// LastError is a category. It never contains text from the endpoint.
	LastError string `json:"err,omitempty"`
	// LastCode is the HTTP status of the last failure, or 0 if the endpoint did not answer. Only operators see it.
	LastCode    int       `json:"code,omitempty"`
	FailedSince time.Time `json:"since,omitzero"`
	// Failures is the least number of attempts that have failed since then.
	Failures int `json:"n,omitempty"`
	// ThrottledUntil is the end of the latest pause that the endpoint asked for.
	ThrottledUntil time.Time `json:"wait,omitzero"`
}

// StatusKey returns the key of a subscription's status.
func StatusKey(workspace, id string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "s#" + workspace + "#" + id, Sort: "status"}
}

// Encode returns the status as an item.
func (s Status) Encode(workspace, id string) store.Item {
	value, _ := json.Marshal(s) // times and strings
	return store.Item{Key: StatusKey(workspace, id), Value: value}
}

// DecodeStatus reads an item of [Status.Encode]. A nil item stands for no deliveries yet.
func DecodeStatus(it *store.Item) (Status, error) {
	var s Status
	if it == nil {
		return s, nil
	}
	err := json.Unmarshal(it.Value, &s)
	return s, fault.Wrap(fault.Internal, err, "decode the status of a subscription")
}

func statusOf(ctx context.Context, db store.DB, workspace, id string) (Status, error) {
	it, err := store.One(ctx, db, StatusKey(workspace, id), "read the status of a subscription")
	if err != nil {
		return Status{}, err
	}
	return DecodeStatus(it)
}

// View is a subscription without its secrets, for its owner.
type View struct {
	ID        string
	Origin    Origin
	EventURIs []string
	Target    string
	Name      string
	Created   time.Time
	Until     time.Time
	State     State
	Reason    string
	Status    Status
}

// List returns a page of the caller's subscriptions in the order of their ids, beginning after the given id. next is empty on the
// last page.
func (l *Lists) List(ctx context.Context, p auth.Principal, after string, limit int) (views []View, next string, err error) {
	page, err := l.DB.Query(ctx, store.Query{
		Table: store.Subscriptions, Partition: recordKey(p.Workspace, p.ID, "-").Partition, After: after, Limit: limit,
	})
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "list subscriptions")
	}
	for _, it := range page.Items {
		sub, err := decodeRecord(&it)
		if err != nil {
			return nil, "", err
		}
		if sub.lapsed(l.now()) {
			continue
		}
		views = append(views, sub.view())
	}
	if page.More {
		next = page.Last
	}
	return views, next, nil
}

// Read returns one of the caller's subscriptions with its delivery status.
// A subscription of another principal looks exactly like one that does not exist.
func (l *Lists) Read(ctx context.Context, p auth.Principal, uri string) (*View, error) {
	unknown := fault.New(fault.NotFound, "resource not found").With(map[string]any{"uri": uri})
	id, ok := ParseURI(uri)
	if !ok {
		return nil, unknown
	}
	items, err := l.DB.Get(ctx, recordKey(p.Workspace, p.ID, id), StatusKey(p.Workspace, id))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the subscription")
	}
	if items[0] == nil {
		return nil, unknown
	}
	sub, err := decodeRecord(items[0])
	if err != nil {
		return nil, err
	}
	if sub.lapsed(l.now()) {
		return nil, unknown
	}
	v := sub.view()
	if v.Status, err = DecodeStatus(items[1]); err != nil {
		return nil, err
	}
	return &v, nil
}

// lapsed reports whether the subscription has expired.
func (s *Subscription) lapsed(now time.Time) bool {
	return !s.Until.IsZero() && !now.Before(s.Until)
}

func (s *Subscription) view() View {
	return View{
		ID: s.ID, Origin: s.Origin, EventURIs: s.EventURIs, Target: s.Target.URL, Name: s.Name,
		Created: s.Created, Until: s.Until, State: s.State, Reason: s.Reason,
	}
}
