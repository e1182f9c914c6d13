// Package switches lets operators and owners of subscriptions pause the deliveries of a workspace, of an event type, to an endpoint's
// origin, or of one subscription. It keeps the messages of paused deliveries, and requeues them when the deliveries are resumed.
//
// A [Switch] is a record in the store that exists only while its deliveries are paused. Package delivery calls [Set.FindPaused] before
// each attempt, which answers from memory with data that is at most [MaxAge] old. If a delivery is paused, its queue message is stored
// for at most [Kept]. A paused subscription is also marked in its own record, which package delivery reads anyway.
//
// Resuming deletes the switch and records that its messages must be requeued. [Set.Requeue] then puts them back on their queues at a
// limited rate, and continues after an interruption. The package does not interpret the messages.
package switches

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	// MaxAge is the maximum age of the switches that a process has cached in memory.
	MaxAge = 4 * time.Second
	// recheck is the age at which a process reads its cached switches from the store again.
	recheck = 2 * time.Second
	// Kept is how long a paused message is stored before it expires.
	Kept = 30 * 24 * time.Hour
	// RequeueRate is how many messages per second are requeued for one switch.
	RequeueRate = 100
	// linger is how long after a resume [Set.Requeue] looks for paused messages. Other processes may still pause deliveries until they
	// notice the resume.
	linger = 10 * time.Minute

	shards         = 4
	maxName        = 400
	maxReason      = 500
	version        = 1
	resumedPart    = "resumed"
	subscriptionOf = "subscription/"
)

// Name is the name of a switch, which says which deliveries it pauses: "all", "event/NAME", "origin/ORIGIN" or "subscription/ID".
type Name string

// All is the name of the switch that pauses all deliveries of a workspace.
const All Name = "all"

// EventSwitch returns the name of the switch for an event type.
func EventSwitch(name string) Name { return Name("event/" + name) }

// OriginSwitch returns the name of the switch for an endpoint's origin.
func OriginSwitch(origin string) Name { return Name("origin/" + origin) }

// SubscriptionSwitch returns the name of the switch for a subscription.
func SubscriptionSwitch(id string) Name { return Name(subscriptionOf + id) }

// Parse parses the name of a switch. For an invalid name it returns a fault of kind Invalid that lists the allowed forms. In an origin, a
// single slash after the scheme is read as two, because some proxies merge slashes in paths.
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
		return "", fault.New(fault.Invalid, "%.100q is not an origin (allowed: scheme and host in lower case, with a port unless it is the default port, e.g. https://hooks.example.com)", origin)
	}
	return Name(text), nil
}

// defaultPorts has the ports that the origins of webhook endpoints omit, by scheme.
var defaultPorts = map[string]string{"http": "80", "https": "443"}

// isOrigin reports whether text has the form of an endpoint's origin, for example https://hooks.example.com. A switch with any other text
// would appear to pause deliveries but have no effect.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && defaultPorts[u.Scheme] != "" && u.Port() != defaultPorts[u.Scheme] &&
		text == u.Scheme+"://"+strings.ToLower(u.Host)
}

// SubscriptionID returns the subscription's id if n is the switch of a subscription.
func (n Name) SubscriptionID() (id string, ok bool) {
	return strings.CutPrefix(string(n), subscriptionOf)
}

// Switch pauses deliveries until it is deleted. It tells who set it, when and why.
type Switch struct {
	Name   Name      `json:"name"`
	State  string    `json:"state"` // "paused"
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// Operator is true if an operator set the switch, and false if the owner of the subscription did.
	Operator bool `json:"operator"`
	// Owner is the owner of the paused subscription. Switches that the previous release stored do not have an owner.
	Owner string `json:"owner,omitempty"`
}

// StatePaused is the state of every switch that exists.
const StatePaused = "paused"

// Set reads and changes the switches in the store. It is safe for concurrent use. Only [Set.Requeue] needs the field Queue.
type Set struct {
	DB    store.DB
	Queue queue.Sender
	// Alone is true if no other process attempts deliveries. Messages can then be requeued immediately after a resume, because no other
	// process can pause them again.
	Alone bool
	Now   func() time.Time
	// Log receives failures; nil is [slog.Default].
	Log *slog.Logger

	mu    sync.Mutex                                         // guards replacing a value in known
	known bounded.Map[string, *refresh.Value[map[Name]bool]] // the names of the switches, by workspace
}

func (s *Set) now() time.Time { return periodic.Clock(s.Now)() }

func key(workspace string, n Name) store.Key {
	return store.Key{Table: store.Settings, Partition: "switch#" + workspace, Sort: string(n)}
}

// Keys returns the store keys of a switch and of the record that [Set.Resume] writes.
func Keys(workspace string, n Name) []store.Key {
	return []store.Key{key(workspace, n), resumedKey(workspace, n)}
}

// Get returns the switch with a name, or nil if there is no such switch.
func (s *Set) Get(ctx context.Context, workspace string, n Name) (*Switch, error) {
	it, err := store.One(ctx, s.DB, key(workspace, n), "read a switch")
	if err != nil || it == nil {
		return nil, err
	}
	sw, err := decode(it)
	return &sw, err
}

// List returns the switches of a workspace, sorted by name and beginning after the name in the parameter after. The result next is the
// name to continue from, or "" at the end.
func (s *Set) List(ctx context.Context, workspace, after string, limit int) (list []Switch, next string, err error) {
	return listItems(ctx, s.DB, key(workspace, All).Partition, after, limit, decode)
}

// listItems returns a page of the items in a partition, each of which is a [Switch] or a [Note]. The page begins after the sort key in the
// parameter after. The result next is the value of after for the next page. It is "" on the last page.
func listItems[T any](
	ctx context.Context, db store.DB, partition, after string, limit int, decode func(*store.Item) (T, error),
) (list []T, next string, err error) {
	page, err := db.Query(ctx, store.Query{Table: store.Settings, Partition: partition, After: after, Limit: limit})
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "list switches or notes")
	}
	for i := range page.Items {
		one, err := decode(&page.Items[i])
		if err != nil {
			return nil, "", err
		}
		list = append(list, one)
	}
	if page.More {
		next = page.Last
	}
	return list, next, nil
}

// EachBy calls do for each switch that a principal set.
func EachBy(ctx context.Context, db store.DB, workspace, principal string, do func(Switch) error) error {
	return store.Each(ctx, db, store.Key{Table: store.Settings, Partition: key(workspace, All).Partition}, "read the switches", func(it *store.Item) error {
		sw, err := decode(it)
		if err != nil || sw.By != principal {
			return err
		}
		return do(sw)
	})
}

// Unname replaces the name of the principal that set a switch, to erase this principal's personal data. It does nothing if the switch was
// resumed meanwhile.
func Unname(ctx context.Context, db store.DB, workspace string, sw Switch, name string) error {
	sw.By = name
	return rewrite(ctx, db, key(workspace, sw.Name), sw)
}

// rewrite stores a changed switch or [Note], unless it has been removed meanwhile.
func rewrite(ctx context.Context, db store.DB, at store.Key, to any) error {
	value, _ := json.Marshal(to) // cannot fail for strings and a time
	err := db.Write(ctx, store.Put(store.Item{Key: at, Value: value, Version: version}, store.Exists()))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "take a name off a switch or a note")
}

func decode(it *store.Item) (sw Switch, err error) {
	err = json.Unmarshal(it.Value, &sw)
	return sw, fault.Wrap(fault.Internal, err, "decode a switch")
}

// PauseOps returns the writes of [Set.Pause], for callers that add them to a larger transaction.
func (s *Set) PauseOps(workspace string, sw Switch) []store.Op {
	sw.State, sw.At, sw.Reason = StatePaused, s.now().UTC(), fault.Clip(sw.Reason, maxReason)
	value, _ := json.Marshal(sw) // cannot fail for strings and a time
	return []store.Op{
		store.Put(store.Item{Key: key(workspace, sw.Name), Value: value, Version: version}),
		store.Delete(resumedKey(workspace, sw.Name)),
	}
}

// Pause stores a switch, or replaces it, for example to change the reason.
func (s *Set) Pause(ctx context.Context, workspace string, sw Switch) error {
	err := s.DB.Write(ctx, s.PauseOps(workspace, sw)...)
	s.forget(workspace)
	return fault.Wrap(fault.Unavailable, err, "pause")
}

// ResumeOps returns the writes of [Set.Resume], for callers that add them to a larger transaction.
func (s *Set) ResumeOps(workspace string, n Name) []store.Op {
	r := resumed{V: version, Workspace: workspace, Name: n, At: s.now().UTC()}
	// The record of the resume gets a new version. So a worker that still requeues messages after an earlier resume cannot delete the
	// record.
	return []store.Op{store.Delete(key(workspace, n)), store.Put(r.item(r.At.UnixMicro()))}
}

// Resume deletes a switch, so that its deliveries continue. It returns false if the switch did not exist. [Set.Requeue] then requeues the
// messages that the switch has paused.
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

// forget drops the workspace's cached switches, so that the next call of [Set.FindPaused] reads them from the store. It does not use
// [refresh.Value.Expire], because FindPaused would then still get the old switches if that read failed.
func (s *Set) forget(workspace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known.Put(workspace, s.newNames(workspace))
}

// FindPaused returns the broadest switch that pauses a delivery, or "" if no switch does. It ignores the switches of single
// subscriptions. Callers that check for several subscribers together leave origin empty, because their endpoints have different origins.
func (s *Set) FindPaused(ctx context.Context, workspace, eventName, origin string) (Name, error) {
	if s == nil {
		return "", nil
	}
	names, err := s.namesOf(workspace).Get(ctx)
	if err != nil || len(names) == 0 {
		return "", err
	}
	for _, n := range []Name{All, EventSwitch(eventName), OriginSwitch(origin)} {
		if names[n] {
			return n, nil
		}
	}
	return "", nil
}

func (s *Set) namesOf(workspace string) *refresh.Value[map[Name]bool] {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.known.Get(workspace)
	if !ok {
		v = s.newNames(workspace)
		s.known.Put(workspace, v)
	}
	return v
}

func (s *Set) newNames(workspace string) *refresh.Value[map[Name]bool] {
	o := refresh.Options{Name: "the switches", Fresh: recheck, Stale: MaxAge, Now: s.Now}
	return refresh.New(o, func(ctx context.Context, _ map[Name]bool) (map[Name]bool, error) {
		names := map[Name]bool{}
		q := store.Query{Table: store.Settings, Partition: key(workspace, All).Partition, Until: subscriptionOf}
		err := store.EachOf(ctx, s.DB, q, "read the switches", func(it *store.Item) error {
			names[Name(it.Sort)] = true
			return nil
		})
		return names, err
	})
}

// Message is a queue message of a paused delivery. It waits in the store until the delivery is resumed.
type Message struct {
	Queue queue.Name
	Body  []byte
	Group string
	Owner string
	// Sort is the sort key of the message's item, from [SortKey]. If it is empty, Item makes a unique one.
	Sort string
}

// SortKey returns the sort key for a message that began to wait at the given time. Callers that may pause a message twice pass the same
// time and id both times, so that the second item replaces the first.
func SortKey(since time.Time, id string) string {
	return fmt.Sprintf("%016d#%s", since.UnixMicro(), id)
}

// stored is the JSON form of a paused message in the store.
type stored struct {
	V     int        `json:"v"`
	Queue queue.Name `json:"q"`
	Group string     `json:"g,omitempty"`
	Owner string     `json:"o,omitempty"`
	// Body is the body of the message. A body that is JSON is stored unchanged, because escaping its quotes in a string could make it too
	// large for an item. Any other body, and a JSON string, is stored as a string. The previous release wrote only strings.
	Body json.RawMessage `json:"b"`
}

// encodeStored encodes a paused message so that even the largest message that a queue allows fits into a store item.
func encodeStored(m Message) []byte {
	out := stored{version, m.Queue, m.Group, m.Owner, m.Body}
	if !json.Valid(m.Body) || m.Body[0] == '"' {
		out.Body, _ = json.Marshal(string(m.Body)) // cannot fail for a string
	}
	return jsonrpc.Encode(out) // json.Marshal would write six bytes for each <, > and & in the body
}

func decodeStored(value []byte) (Message, error) {
	var s stored
	if err := json.Unmarshal(value, &s); err != nil {
		return Message{}, fault.Wrap(fault.Internal, err, "decode a paused message")
	}
	m := Message{Queue: s.Queue, Body: s.Body, Group: s.Group, Owner: s.Owner}
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

// Waiting counts the messages that wait until a switch is resumed. A message is one delivery, or a page task, which stands for the
// deliveries of one or more events to many subscribers.
type Waiting struct {
	Messages int `json:"messages"`
	// More is true if Messages is only a lower bound, because there are too many waiting messages to count all of them.
	More bool `json:"more,omitempty"`
	// Oldest is when the oldest message began to wait.
	Oldest time.Time `json:"oldest,omitzero"`
}

// maxWaiting limits how many messages [Set.CountWaiting] reads from each of a switch's partitions, because a message can have 250 KB.
const maxWaiting = 50

// CountWaiting counts the messages that wait until the switch with the name n is resumed.
func (s *Set) CountWaiting(ctx context.Context, workspace string, n Name) (w Waiting, err error) {
	for shard := range shards {
		page, err := s.DB.Query(ctx, store.Query{
			Table: store.Deliveries, Partition: waitingPartition(workspace, n, shard), Limit: maxWaiting, Eventual: true,
		})
		if err != nil {
			return w, fault.Wrap(fault.Unavailable, err, "count the messages of a switch")
		}
		w.Messages, w.More = w.Messages+len(page.Items), w.More || page.More
		if len(page.Items) == 0 {
			continue
		}
		stamp, _, _ := strings.Cut(page.Items[0].Sort, "#")
		if micros, err := strconv.ParseInt(stamp, 10, 64); err == nil {
			if at := time.UnixMicro(micros).UTC(); w.Oldest.IsZero() || at.Before(w.Oldest) {
				w.Oldest = at
			}
		}
	}
	return w, nil
}

// SwitchOf returns the switch whose paused messages are in a partition, or "" if the partition has no paused messages of the workspace.
func SwitchOf(workspace, partition string) Name {
	shardAndName, ok := strings.CutPrefix(partition, "paused#"+workspace+"#")
	_, name, found := strings.Cut(shardAndName, "#")
	if !ok || !found {
		return ""
	}
	return Name(name)
}

// Item returns the store item for a paused message, for callers that add it to a larger transaction.
func (s *Set) Item(workspace string, n Name, m Message) store.Item {
	now := s.now()
	sort := cmp.Or(m.Sort, SortKey(now, rand.Text()))
	shard := int(crc32.ChecksumIEEE([]byte(sort)) % shards)
	return store.Item{
		Key:   store.Key{Table: store.Deliveries, Partition: waitingPartition(workspace, n, shard), Sort: sort},
		Value: encodeStored(m), Expires: now.Add(Kept),
	}
}

// OperatorPausedAt returns when an operator paused a subscription, or the zero time. The switch remains when the subscription ends.
// Otherwise the owner could lift the pause by subscribing again, because the same events/subscribe request leads to the same id.
func (s *Set) OperatorPausedAt(ctx context.Context, workspace, id string) (time.Time, error) {
	sw, err := s.Get(ctx, workspace, SubscriptionSwitch(id))
	if err != nil || sw == nil || !sw.Operator {
		return time.Time{}, err
	}
	return sw.At, nil
}

// RemoveUnused removes the switches of subscriptions for which isUsed returns false, and returns their number.
func (s *Set) RemoveUnused(ctx context.Context, workspace string, isUsed func(id string, sw Switch) (bool, error)) (removed int, err error) {
	partition := key(workspace, All).Partition
	q := store.Query{Table: store.Settings, Partition: partition, After: subscriptionOf}
	err = store.EachOf(ctx, s.DB, q, "read the switches of subscriptions", func(it *store.Item) error {
		sw, err := decode(it)
		if err != nil {
			return err
		}
		id, ok := sw.Name.SubscriptionID()
		if !ok {
			return nil
		}
		used, err := isUsed(id, sw)
		if err != nil || used {
			return err
		}
		removed++
		return fault.Wrap(fault.Unavailable, s.DB.Write(ctx, store.Delete(it.Key)), "remove a switch")
	})
	return removed, err
}
