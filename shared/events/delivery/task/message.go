// Package task defines the tasks in the queues between package fanout and package delivery. A page task asks to send events to a range of
// subscribers, and a single task asks for one attempt of one stored delivery.
package task

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Version is the format version of the tasks that this release queues. [Decode] also accepts the previous version, because an older
// release may have queued a task.
const Version = 1

// Page is a task for package delivery: send events for the first time to a range of subscribers. These are the subscribers of a URI
// pattern whose ids are in the range.
type Page struct {
	V         int                `json:"v"`
	Workspace string             `json:"ws"`
	Pattern   string             `json:"key"`
	Range     subscription.Range `json:"r"`
	// Count is the approximate number of subscribers in Range. Package delivery splits a large range before it sends any event.
	Count  int           `json:"n"`
	Events []event.Event `json:"ev,omitempty"`
	// Hops is how many page tasks have passed these events on to another page task without an attempt.
	Hops int `json:"h,omitempty"`
	// Since is when the first task with these events and subscribers was queued, in milliseconds since 1970. It is missing in
	// that first task.
	Since int64 `json:"at,omitempty"`
	// Reactivation, if set, makes this a task without events. It resumes the suspended deliveries of the only subscription in Range.
	Reactivation *Reactivation `json:"res,omitempty"`

	// Paused is set if the task waited for a switch, with which people pause deliveries. It is the sort key of the task's mark, an item
	// that keeps the subscribers' cursors from advancing past the task's events until these are attempted; see PausedPages in package
	// lifecycle.
	Paused string `json:"pk,omitempty"`

	// Retries is the number of times that the task was sent again, with a delay, after a failure of this program or its store.
	Retries int `json:"rt,omitempty"`

	// Wide is set if the events went to at least [WideFanout] subscribers, so that many page tasks were queued together.
	Wide bool `json:"wd,omitempty"`

	// Late is set if the events are late on purpose, because they are replayed or a switch paused them.
	Late bool `json:"lt,omitempty"`

	Payloads []*match.Payload `json:"-"` // the payloads of Events, for the filters of all subscribers
	Endpoint string           `json:"-"` // the [EndpointID] of the range's only subscriber; "" if unknown, or if there are several
	Delay    time.Duration    `json:"-"` // the delay with which the queue delivers the task's message
}

// Reactivation names a subscription that was suspended and is active again, so that its suspended deliveries continue.
type Reactivation struct {
	Principal    string `json:"pr"`
	Subscription string `json:"sub"`
}

// Single is a task for package delivery: make one attempt of one stored delivery, for example a retry.
type Single struct {
	V            int    `json:"v"`
	Workspace    string `json:"ws"`
	Principal    string `json:"pr"`
	Subscription string `json:"sub"`
	Event        string `json:"ev"`
	// Key identifies the delivery among the deliveries of its subscription. Normally, it is the event's [event.Event.Key]. If it is
	// empty, Event identifies the delivery.
	Key string `json:"k,omitempty"`
	// Attempt is the number of the attempt to make, counted from 1. The task is stale if the delivery has recorded that attempt already.
	Attempt int `json:"n"`
	// Endpoint is the [EndpointID] of the delivery's target. The attempt needs one of this endpoint's slots (see package lane).
	Endpoint string `json:"e,omitempty"`
	// Size is the approximate size of the event's data in bytes. It is missing in messages of earlier releases.
	Size int `json:"b,omitempty"`
}

// EventKey returns the key that identifies the delivery among the deliveries of its subscription.
func (t Single) EventKey() string { return cmp.Or(t.Key, t.Event) }

// ID returns a string that is the same for all messages that ask for the same attempt.
func (t Single) ID() string {
	return fmt.Sprintf("%s#%s#%s#%d", t.Workspace, t.Subscription, t.EventKey(), t.Attempt)
}

// Owner returns a hash of the principal, for [queue.Outgoing.Owner].
func (t Single) Owner() string { return digest(t.Workspace + "#" + t.Principal) }

// Outgoing returns the queue message that carries a page task.
func (t Page) Outgoing() queue.Outgoing {
	return queue.Outgoing{Body: t.Encode(), Value: t, Group: t.Group(), Delay: t.Delay}
}

// Group returns the task's message group in the queue. Usually this is the task's pattern. A task for only one endpoint or subscription
// has its own group, so that many tasks for one endpoint do not delay the pattern's other tasks.
func (t Page) Group() string {
	if t.Endpoint != "" {
		return t.Endpoint
	}
	name := t.Workspace + "\x00" + t.Pattern
	if len(t.Range.From) > len("00000000") {
		name += "\x00" + t.Range.From
	}
	return digest(name)
}

// Encode returns the body of the task's queue message.
func (t Page) Encode() []byte {
	events := t.Events
	t.Events = nil
	return event.AppendMember(Encode(t), "ev", events)
}

// Encode returns a task as the body of a queue message.
func Encode(task any) []byte {
	b, err := json.Marshal(task)
	if err != nil {
		panic(fmt.Sprintf("delivery: a task does not marshal: %v", err)) // cannot happen: all raw JSON in a task was parsed when it was received
	}
	return b
}

// Decode returns the task in the body of a queue message. The function version returns the task's version. If a newer program wrote the
// message, [IsNewer] is true for the error.
func Decode[T any](body []byte, version func(T) int) (T, error) {
	var t T
	if err := json.Unmarshal(body, &t); err != nil {
		if IsNewer(err) {
			return t, err
		}
		return t, fault.Wrap(fault.Invalid, err, "decode a task")
	}
	switch v := version(t); {
	case v > Version:
		return t, fault.New(fault.Unavailable, "decode a task: version %d is newer than %d", v, Version)
	case v < 1 || v < Version-1:
		return t, fault.New(fault.Invalid, "decode a task: version %d is not supported (supported: %d)", v, Version)
	}
	return t, nil
}

// DecodePage decodes a page task of the deliveries queue.
func DecodePage(m queue.Message) (Page, error) {
	if t, ok := m.Value.(Page); ok {
		t.Endpoint, t.Delay = "", 0 // a message body lacks these fields, so Decode would not set them either
		return t, nil
	}
	return Decode(m.Body, func(t Page) int { return t.V })
}

// IsNewer reports whether an error of [Decode] says that a newer program wrote the message. The message must stay in its queue until a
// newer process handles it.
func IsNewer(err error) bool { return fault.KindOf(err) == fault.Unavailable }

// RenewAfter is the number of receives after which [Renew] replaces a message by a copy. With the queue's pauses, so many receives take
// six days.
const RenewAfter = queue.MaxReceives * 3 / 4

// Renew sends a copy of a message that a newer program wrote, if the message has been received [RenewAfter] times. Without the copy, the
// message would not reach a newer process: the queue dead-letters it after [queue.MaxReceives] receives, and SQS deletes it after 14
// days. Renew reports whether it has sent the copy. If so, the caller must accept the original message, so that the queue deletes it.
//
// On a FIFO queue, the copy goes to the end of its group, so that the later messages of the group no longer wait for it.
func Renew(ctx context.Context, log *slog.Logger, s queue.Sender, q queue.Name, m queue.Message) bool {
	if m.Received < RenewAfter {
		return false
	}
	out := queue.Outgoing{Body: m.Body, Group: m.Group, Owner: m.Owner}
	if q.FIFO() {
		out.Dedup = "newer-" + m.ID // lets the queue drop a second copy, if the process dies before the original is deleted
	}
	if err := s.Send(ctx, q, out); err != nil {
		log.ErrorContext(ctx, "newer message not renewed", "queue", q, "message", m.ID, "error", err)
		return false
	}
	return true
}

// The limits for splitting page tasks. Dispatch splits a task with many subscribers into smaller tasks, and splits these again if
// necessary.
const (
	// PageTarget is the average number of subscribers in a task, if the pattern's subscribers need more than one task.
	PageTarget = 20
	// PageSplit is the approximate number of subscribers above which a task is split before it sends anything.
	PageSplit = 40
	// branches is the maximum number of parts into which one split divides a task.
	branches = 64
	// taskBytes is the maximum size of the events in one task, so that the task fits into a message.
	taskBytes = 200 << 10
)

// split cuts a range with about count subscribers into parts of about [PageTarget] subscribers. It makes at most [branches] parts, so the
// parts may be larger; package delivery then splits them again. A range with up to 25 subscribers stays whole.
func split(r subscription.Range, count int) []subscription.Range {
	n := min((count+PageTarget-1)/PageTarget, branches)
	if count <= 25 || n < 2 {
		return []subscription.Range{r}
	}
	lo, hi := parseBound(r.From, 0), parseBound(r.To, 1<<32)
	if hi-lo < uint64(n) {
		return []subscription.Range{r}
	}
	out := make([]subscription.Range, n)
	for i := range out {
		out[i] = subscription.Range{
			From: fmt.Sprintf("%08x", lo+(hi-lo)*uint64(i)/uint64(n)),
			To:   fmt.Sprintf("%08x", lo+(hi-lo)*uint64(i+1)/uint64(n)),
		}
	}
	out[0].From, out[n-1].To = r.From, r.To
	return out
}

func parseBound(digits string, open uint64) uint64 {
	if digits == "" {
		return open
	}
	v, err := strconv.ParseUint(digits[:min(8, len(digits))], 16, 64)
	if err != nil {
		return open
	}
	return v
}

// WideFanout is the number of subscribers at which an event counts as having very many. They need 80 page tasks of [PageTarget]
// subscribers, which is eight times as many tasks as a Lambda function receives in a batch.
const WideFanout = 80 * PageTarget

// Pages returns the page tasks that deliver events to a range of subscribers. The parameter key is the URI pattern under which the
// subscribers are stored, and count is their approximate number. Each task has as many events as fit into a message.
func Pages(workspace, key string, r subscription.Range, count int, events []event.Event) []Page {
	ranges := split(r, count)
	var tasks []Page
	for _, part := range ranges {
		size := 0
		for i, e := range events {
			n := e.MaxSize()
			if i == 0 || size+n > taskBytes {
				tasks = append(tasks, Page{
					V: Version, Workspace: workspace, Pattern: key, Range: part, Count: count / len(ranges),
					Wide: count >= WideFanout,
				})
				size = 0
			}
			last := &tasks[len(tasks)-1]
			last.Events = append(last.Events, e)
			size += n
		}
	}
	return tasks
}

// EndpointID returns the id of an endpoint, a hash of its URL without the query. The id also names the group of the endpoint's messages
// in the slow queue. It is a hash, because the name of a group must not contain some characters of URLs.
func EndpointID(target string) string {
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	return digest(target)
}

// digest returns a hash of 22 characters that a queue accepts as the name of a group.
func digest(text string) string {
	h := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h[:16])
}

// IsPermanent reports whether an operation that failed with err would fail again each time, because the event itself cannot be handled.
// For example, it may be too large.
func IsPermanent(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLarge, fault.NotFound:
		return true
	}
	return false
}

// DecodeEvent decodes a message of the events queue. If a newer program wrote the message, the error is not [IsPermanent], so that the
// message stays in the queue.
func DecodeEvent(m queue.Message) (e event.Event, err error) {
	if e, ok := m.Value.(event.Event); ok {
		return e, nil
	}
	defer fault.Recovered(&err)
	e, err = event.Decode(m.Body)
	if err != nil && !IsNewer(err) {
		err = fault.New(fault.Invalid, "the message is not an event of a known version")
	}
	return e, err
}
