// Package switches holds what a person paused: all deliveries of a workspace, those of an event
// type, those to an origin, or those of one subscription.
//
// A switch is one item, there while it is paused. Dispatch asks [Set.Paused] before each attempt, which is
// answered from memory and at most [MaxAge] old; that a subscription is paused stands in its own record,
// which dispatch reads in any case. What may not be attempted is paused: its queue
// message becomes an item, in the order of time, for as long as [Kept]. Resuming deletes the switch and
// notes that there is something to requeue; [Set.Requeue] then puts the messages back at a bounded rate, and goes
// on where it was interrupted. It knows no delivery: a message is what the queue's handler makes of it.
package switches

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	// MaxAge is how old the switches may be that a process knows.
	MaxAge = 4 * time.Second
	// recheck is when it reads them again.
	recheck = 2 * time.Second
	// Kept is how long a paused message waits for its switch.
	Kept = 30 * 24 * time.Hour
	// RequeueRate is how many messages a second are requeued for one switch.
	RequeueRate = 100
	// linger is how long after a resume messages are looked for that a process paused which did not know of it yet.
	linger = 10 * time.Minute

	shards         = 4
	maxName        = 400
	maxReason      = 500
	version        = 1
	resumedPart    = "resumed"
	subscriptionOf = "subscription/"
)

// Name names a switch: "all", "event/NAME", "origin/ORIGIN" or "subscription/ID".
type Name string

// All pauses all deliveries of a workspace.
const All Name = "all"

// Event is the switch of an event type, Origin that of a target's origin, Subscription that of a subscription.
func Event(name string) Name      { return Name("event/" + name) }
func Origin(origin string) Name   { return Name("origin/" + origin) }
func Subscription(id string) Name { return Name(subscriptionOf + id) }

// Parse reads a name; a fault of kind Invalid says what names there are. Whoever makes one slash of two in a
// path, as some proxies do, means the same origin.
func Parse(text string) (Name, error) {
	kind, rest, _ := strings.Cut(text, "/")
	if scheme, host, cut := strings.Cut(rest, ":/"); kind == "origin" && cut {
		text = "origin/" + scheme + "://" + strings.TrimPrefix(host, "/")
	}
	ok := text == string(All) || rest != "" && (kind == "event" || kind == "origin" || kind == "subscription")
	if !ok || len(text) > maxName {
		return "", fault.New(fault.Invalid, "%.100q is not a switch (allowed: all, event/NAME, origin/ORIGIN, subscription/ID)", text)
	}
	if origin, cut := strings.CutPrefix(text, "origin/"); cut && !isOrigin(origin) {
		return "", fault.New(fault.Invalid, "%.100q is not an origin (allowed: scheme and host in small letters, with a port unless it is the usual one, as https://hooks.example.com)", origin)
	}
	return Name(text), nil
}

// usualPorts are left out of the origins of targets.
var usualPorts = map[string]string{"http": "80", "https": "443"}

// isOrigin reports whether a target can have the origin. A switch of another would pause nothing, and look as if it did.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && usualPorts[u.Scheme] != "" && u.Port() != usualPorts[u.Scheme] &&
		text == u.Scheme+"://"+strings.ToLower(u.Host)
}

// SubscriptionID is the id in the switch of a subscription.
func (n Name) SubscriptionID() (id string, ok bool) {
	return strings.CutPrefix(string(n), subscriptionOf)
}

// Switch is one that is paused.
type Switch struct {
	Name   Name      `json:"name"`
	State  string    `json:"state"` // "paused"
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// Operator says that an operator paused it, and not the owner of the subscription.
	Operator bool `json:"operator"`
}

// StatePaused is the state of a switch that is there.
const StatePaused = "paused"

// Set are the switches. Its methods may be called concurrently. Queue is needed by Requeue only.
type Set struct {
	DB    store.DB
	Queue queue.Sender
	// Alone is true where no other process attempts deliveries: what is requeued may go at once.
	Alone bool
	Now   func() time.Time

	mu    sync.Mutex
	known bounded.Map[string, known]
}

type known struct {
	names map[Name]bool
	read  time.Time
}

func (s *Set) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func key(workspace string, n Name) store.Key {
	return store.Key{Table: store.Settings, Partition: "switch#" + workspace, Sort: string(n)}
}

// Keys are those of a switch, and of what is to be requeued for it.
func Keys(workspace string, n Name) []store.Key {
	return []store.Key{key(workspace, n), resumedKey(workspace, n)}
}

// Get returns a switch, nil when it is not paused.
func (s *Set) Get(ctx context.Context, workspace string, n Name) (*Switch, error) {
	items, err := s.DB.Get(ctx, key(workspace, n))
	if err != nil || items[0] == nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read a switch")
	}
	sw, err := decode(items[0])
	return &sw, err
}

// List returns the switches of a workspace in the order of their names, from behind after; next is
// "" at the end.
func (s *Set) List(ctx context.Context, workspace, after string, limit int) (list []Switch, next string, err error) {
	page, err := s.DB.Query(ctx, store.Query{
		Table: store.Settings, Partition: key(workspace, All).Partition, After: after, Limit: limit,
	})
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "list the switches")
	}
	for i := range page.Items {
		sw, err := decode(&page.Items[i])
		if err != nil {
			return nil, "", err
		}
		list = append(list, sw)
	}
	if page.More {
		next = page.Last
	}
	return list, next, nil
}

func decode(it *store.Item) (sw Switch, err error) {
	return sw, fault.Wrap(fault.Internal, json.Unmarshal(it.Value, &sw), "decode a switch")
}

// PauseOps are the writes that pause, for who writes more with them; [Set.Pause] is theirs alone.
func (s *Set) PauseOps(workspace string, sw Switch) []store.Op {
	sw.State, sw.At, sw.Reason = StatePaused, s.now().UTC(), clip(sw.Reason)
	value, _ := json.Marshal(sw) // texts and a time
	return []store.Op{
		store.Put(store.Item{Key: key(workspace, sw.Name), Value: value, Version: version}),
		store.Delete(resumedKey(workspace, sw.Name)),
	}
}

func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return strings.ToValidUTF8(s[:maxReason], "")
}

// Pause pauses, or gives what is paused already another reason.
func (s *Set) Pause(ctx context.Context, workspace string, sw Switch) error {
	err := s.DB.Write(ctx, s.PauseOps(workspace, sw)...)
	s.forget(workspace)
	return fault.Wrap(fault.Unavailable, err, "pause")
}

// ResumeOps are the writes that resume, for who writes more with them.
func (s *Set) ResumeOps(workspace string, n Name) []store.Op {
	r := resumed{V: version, Workspace: workspace, Name: n, At: s.now().UTC()}
	// Each resume begins with another version, so that a worker that claimed an earlier one cannot end this one.
	return []store.Op{store.Delete(key(workspace, n)), store.Put(r.item(r.At.UnixMicro()))}
}

// Resume resumes; false if it was not paused. [Set.Requeue] brings back what waits.
func (s *Set) Resume(ctx context.Context, workspace string, n Name) (bool, error) {
	ops := s.ResumeOps(workspace, n)
	ops[0].Cond = store.Exists()
	err := s.DB.Write(ctx, ops...)
	s.forget(workspace)
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	return err == nil, fault.Wrap(fault.Unavailable, err, "resume")
}

func (s *Set) forget(workspace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known.Put(workspace, known{})
}

// Paused returns the broadest switch that keeps a delivery from being attempted, "" if none does. Those of
// subscriptions are not among them. Origin may be "": of a page, whose subscribers have several.
func (s *Set) Paused(ctx context.Context, workspace, eventName, origin string) (Name, error) {
	if s == nil {
		return "", nil
	}
	names, err := s.names(ctx, workspace)
	if err != nil || len(names) == 0 {
		return "", err
	}
	for _, n := range []Name{All, Event(eventName), Origin(origin)} {
		if names[n] {
			return n, nil
		}
	}
	return "", nil
}

func (s *Set) names(ctx context.Context, workspace string) (map[Name]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock() // others wait for the one that reads
	now := s.now()
	have, _ := s.known.Get(workspace)
	if age := now.Sub(have.read); age >= 0 && age < recheck {
		return have.names, nil
	}
	fresh := known{names: map[Name]bool{}, read: now}
	q := store.Query{Table: store.Settings, Partition: key(workspace, All).Partition, Until: subscriptionOf}
	err := store.EachOf(ctx, s.DB, q, "read the switches", func(it *store.Item) error {
		fresh.names[Name(it.Sort)] = true
		return nil
	})
	switch {
	case err == nil:
		s.known.Put(workspace, fresh)
		return fresh.names, nil
	case now.Sub(have.read) < MaxAge:
		return have.names, nil
	}
	return nil, err
}

// Message is one that waits for its switch.
type Message struct {
	Queue queue.Name
	Body  []byte
	Group string
}

// stored is the value of a paused message's item.
type stored struct {
	V     int        `json:"v"`
	Queue queue.Name `json:"q"`
	Group string     `json:"g,omitempty"`
	// Body is the message's body if it is JSON, and otherwise a string with it. As a string, a body of JSON with many
	// quotes would be nearly twice as long, and too long for an item. The version before wrote only strings.
	Body json.RawMessage `json:"b"`
}

// encodeStored encodes a message. The longest message that a queue accepts fits into an item.
func encodeStored(m Message) []byte {
	out := stored{version, m.Queue, m.Group, m.Body}
	if !json.Valid(m.Body) || m.Body[0] == '"' {
		out.Body, _ = json.Marshal(string(m.Body)) // a string
	}
	return jsonrpc.Encode(out) // unlike json.Marshal, which writes six bytes for each <, > and & of the body
}

func decodeStored(value []byte) (Message, error) {
	var s stored
	if err := json.Unmarshal(value, &s); err != nil {
		return Message{}, fault.Wrap(fault.Internal, err, "decode a paused message")
	}
	m := Message{Queue: s.Queue, Body: s.Body, Group: s.Group}
	if len(s.Body) > 0 && s.Body[0] == '"' {
		var text string
		if err := json.Unmarshal(s.Body, &text); err != nil {
			return Message{}, fault.Wrap(fault.Internal, err, "decode a paused message")
		}
		m.Body = []byte(text)
	}
	return m, nil
}

func waitingPartition(workspace string, n Name, shard int) string {
	return fmt.Sprintf("paused#%s#%d#%s", workspace, shard, n)
}

// Item returns the item of a paused message, for a caller that writes more with it.
func (s *Set) Item(workspace string, n Name, m Message) store.Item {
	now := s.now()
	id := rand.Text()
	return store.Item{
		Key: store.Key{
			Table: store.Deliveries, Partition: waitingPartition(workspace, n, int(id[0])%shards),
			Sort: fmt.Sprintf("%016d#%s", now.UnixMicro(), id),
		},
		Value: encodeStored(m), Expires: now.Add(Kept),
	}
}
