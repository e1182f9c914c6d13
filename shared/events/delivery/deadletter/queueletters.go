package deadletter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A message that its queue gave up is stored in two lists of dead letters: the queue's list (xq#), and the workspace's list (xa#), which
// also has the dead letters of webhooks. In the workspace's list, the sort key of a webhook's letter contains the subscription's id. The
// sort key of a message's letter contains "~" and the name of its queue. No subscription id begins with "~".

// WebhookQueue is the name under which commands and APIs list the dead letters of webhooks.
const WebhookQueue = "webhooks"

const (
	ofQueue = "~"
	// queueLettersKept is how long the store keeps the dead letter of a queue's message. SQS keeps a message for at most the same time.
	queueLettersKept = 14 * 24 * time.Hour
)

func queueLetterKeys(workspace, from, sort string) []store.Key {
	return []store.Key{
		{Table: store.Deliveries, Partition: "xq#" + workspace + "#" + from, Sort: sort},
		{Table: store.Deliveries, Partition: "xa#" + workspace, Sort: sort},
	}
}

// FileMessages stores messages as dead letters, which people can list and retry. It is the handler of the queue [queue.Dead], and of the
// queue to which SQS moves messages after too many receives.
func (o *Operations) FileMessages(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	for _, m := range batch {
		if err := o.fileMessage(ctx, m); err != nil {
			o.Deliveries.Log.ErrorContext(ctx, "dead letter not filed", "message", m.ID, "error", err)
			failed = append(failed, m.ID)
		}
	}
	return failed, nil
}

func (o *Operations) fileMessage(ctx context.Context, m queue.Message) error {
	now := o.Deliveries.Now()
	value := m.Body
	l, err := queue.ParseDeadLetter(m.Body)
	moved := err != nil || l.Queue == "" // the body is not a dead letter: SQS, EventBridge or SNS put the original message into the queue
	if moved {
		if m.From == queue.Events {
			if e, err := task.DecodeEvent(m); err == nil {
				m.Sent = e.Published // because SQS sets a new Sent time when it moves a message of a FIFO queue
			}
		}
		from, reason := readOrigin(m)
		value = queue.NewDeadLetter(from, m, reason, nil, now).Body
		if l, err = queue.ParseDeadLetter(value); err != nil {
			return err
		}
	}
	at := l.Dead
	if at.IsZero() {
		at = m.Sent
	}
	sort := fmt.Sprintf("%016d#%s%s#%s", at.UnixMicro(), ofQueue, l.Queue, m.ID)
	var ops []store.Op
	for _, key := range queueLetterKeys(WorkspaceOf(l), string(l.Queue), sort) {
		ops = append(ops, store.Put(store.Item{Key: key, Value: value, Expires: now.Add(queueLettersKept)}))
	}
	if err := o.Deliveries.DB.Write(ctx, ops...); err != nil {
		return err
	}
	if moved { // SQS moved the message; other dead letters were counted by the code that sent them to the queue
		o.metrics.DeadLettered(string(l.Queue), 1)
	}
	return nil
}

// readOrigin returns the queue for which a message in the dead letter queue was meant, and the reason why it is there. EventBridge and
// SNS do not set m.From. They put a message into the dead letter queue if they cannot put it into the inbox.
func readOrigin(m queue.Message) (from queue.Name, reason string) {
	if bus, _, _ := source.ReadEnvelope(m.Body); m.From == "" && bus != source.HTTP {
		reason = string(bus) + " could not put it into the inbox"
		if code := m.Attributes["ERROR_CODE"]; code != "" {
			reason += ": " + code + ": " + m.Attributes["ERROR_MESSAGE"]
		}
		return queue.Inbox, reason
	}
	return cmp.Or(m.From, queue.Dead), queue.ReasonReceives
}

// WorkspaceOf returns the workspace that the message of a dead letter names, or otherwise the default workspace. It also works for a
// message that was cut off, because this program writes the workspace first.
func WorkspaceOf(l queue.DeadLetter) string {
	body, err := l.Content()
	if err != nil {
		return auth.DefaultWorkspace
	}
	name := "ws"
	if l.Queue == queue.Inbox { // in a message of the inbox, this member is called "workspace"
		name = "workspace"
	}
	if workspace := memberText(body, name); auth.ValidWorkspace(workspace) {
		return workspace
	}
	return auth.DefaultWorkspace
}

// memberText returns the string value of the member with this name in a JSON object, or "" without such a member. The object may be cut
// off after the member.
func memberText(object []byte, name string) (text string) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return ""
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return text
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return text
		}
		if key == name {
			text, _ = jsonrpc.String(value)
		}
	}
	return text
}

func decodeQueueLetter(it *store.Item) (Letter, error) {
	l, err := queue.ParseDeadLetter(it.Value)
	if err != nil {
		return Letter{}, fault.Wrap(fault.Internal, err, "decode a dead letter")
	}
	micros, rest, _ := strings.Cut(it.Sort, "#")
	name, id, _ := strings.Cut(rest, "#")
	out := Letter{
		ID: encodeLetterID(name + "#" + micros + "#" + id), Queue: string(l.Queue), Reason: l.Reason, First: l.Sent, Dead: l.Dead.UTC(),
		Attributes: l.Attributes,
	}
	if out.Dead.IsZero() {
		out.Dead = out.First
	}
	return out, nil
}

// findOfQueue returns the stored item of a queue's dead letter. It returns nil if there is no such letter, for example because the id
// belongs to a webhook's dead letter.
func (o *Operations) findOfQueue(ctx context.Context, workspace, id string) (*store.Item, error) {
	name, rest, ok := parseLetterID(id)
	from, of := strings.CutPrefix(name, ofQueue)
	if !ok || !of {
		return nil, nil
	}
	micros, message, _ := strings.Cut(rest, "#")
	key := queueLetterKeys(workspace, from, micros+"#"+name+"#"+message)[0]
	return store.One(ctx, o.Deliveries.DB, key, "read a dead letter")
}

// sendBack implements [Operations.Retry] for a queue's dead letter: it sends the message back to the queue and deletes the letter.
func (o *Operations) sendBack(ctx context.Context, workspace, id string, delay time.Duration) (bool, error) {
	it, err := o.findOfQueue(ctx, workspace, id)
	if err != nil || it == nil {
		return false, err
	}
	l, err := queue.ParseDeadLetter(it.Value)
	if err != nil {
		return false, fault.Wrap(fault.Internal, err, "decode a dead letter")
	}
	body, err := l.Content()
	switch {
	case err != nil:
		return false, fault.Wrap(fault.Internal, err, "read a dead letter")
	case l.Truncated:
		return false, fault.New(fault.Conflict, "the dead letter has only the beginning of its message")
	case !CanReturn(l.Queue):
		return false, fault.New(fault.Conflict, "the dead letter is of %s, which does not take messages back", l.Queue)
	}
	// Send before deleting: if the process dies in between, the message is sent twice, but not lost.
	if err := o.resend(ctx, l, body, it.Sort, delay); task.IsPermanent(err) {
		return false, fault.New(fault.Conflict, "the queue refuses the message of the dead letter: %s", fault.Public(err))
	} else if err != nil {
		return false, err
	}
	keys := queueLetterKeys(workspace, string(l.Queue), it.Sort)
	err = o.Deliveries.DB.Write(ctx, store.Delete(keys[0], store.Exists()), store.Delete(keys[1]))
	if errors.Is(err, store.ErrConflict) {
		return false, nil // another process has sent the message meanwhile
	}
	return err == nil, fault.Wrap(fault.Unavailable, err, "delete a dead letter that was sent back")
}

// resend sends the message of a dead letter back to its queue. But it sends a message of the events queue to the inbox, because only
// package publish writes to the events queue.
//
// The events queue drops duplicates. So the inbox message contains the key of the dead letter (the parameter letter). The events queue
// then accepts the event again, but drops a second resend of the same dead letter.
func (o *Operations) resend(ctx context.Context, l queue.DeadLetter, body []byte, letter string, delay time.Duration) error {
	to, out := l.Queue, queue.Outgoing{Body: body, Group: l.Group, Owner: l.Owner}
	if to == queue.Inbox {
		out.Group = "" // the sender may have chosen a group that our queues do not accept, and the inbox needs no group
	}
	if to == queue.Events {
		var e event.Event
		err := json.Unmarshal(body, &e)
		if err != nil {
			return fault.New(fault.Conflict, "the message of the dead letter is no event")
		}
		to = queue.Inbox
		if out, err = publish.InboxMessage(e.Workspace, publish.Input{URI: e.URI, ID: e.ID, Time: e.Time, Data: e.Data, Resend: letter}); err != nil {
			return err
		}
	}
	out.Delay = delay
	return fault.Wrap(fault.Unavailable, o.Deliveries.Queue.Send(ctx, to, out), "send a message back to %s", l.Queue)
}

// CanReturn reports whether the dead letters of a queue can be sent back to it.
func CanReturn(q queue.Name) bool { return q != queue.Dead && slices.Contains(queue.Names(), q) }
