package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
)

// A dead letter of a queue is filed: it becomes an item under two keys, that of its queue (xq#) and
// that of all of the workspace (xa#), where those of webhooks are. Its name in a key begins with a mark that no
// subscription has.

// WebhookQueue is the queue of dead letters of webhooks, as people name it.
const WebhookQueue = "webhooks"

const (
	ofQueue = "~"
	// queueLettersKept is how long a filed letter stays: as long as its queue would keep it.
	queueLettersKept = 14 * 24 * time.Hour
)

func queueLetterKeys(workspace, from, sort string) []store.Key {
	return []store.Key{
		{Table: store.Deliveries, Partition: "xq#" + workspace + "#" + from, Sort: sort},
		{Table: store.Deliveries, Partition: "xa#" + workspace, Sort: sort},
	}
}

// File is the [queue.Handler] of [queue.Dead].
func (o *Operations) File(ctx context.Context, batch []queue.Message) (failed []string, err error) {
	for _, m := range batch {
		if err := o.file(ctx, m); err != nil {
			o.d.log().ErrorContext(ctx, "dead letter not filed", "message", m.ID, "error", err)
			failed = append(failed, m.ID)
		}
	}
	return failed, nil
}

func (o *Operations) file(ctx context.Context, m queue.Message) error {
	now := o.d.now()
	value := m.Body
	l, err := queue.ParseDeadLetter(m.Body)
	if err != nil || l.Queue == "" { // a queue moved it here as it was
		value = queue.NewDeadLetter(cmp.Or(m.From, queue.Dead), m, queue.ReasonReceives, nil, now).Body
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
	for _, key := range queueLetterKeys(workspaceOf(l), string(l.Queue), sort) {
		ops = append(ops, store.Put(store.Item{Key: key, Value: value, Expires: now.Add(queueLettersKept)}))
	}
	return o.d.DB.Write(ctx, ops...)
}

// workspaceOf is the workspace that the message was for. What does not say it is for those who operate the
// default one.
func workspaceOf(l queue.DeadLetter) string {
	var named struct {
		Stage  string `json:"ws"`
		Sender string `json:"workspace"`
	}
	if body, err := l.Content(); err == nil {
		_ = json.Unmarshal(body, &named) // what is no object names none
	}
	if l.Queue == queue.Inbox {
		named.Stage = named.Sender
	}
	if !auth.ValidWorkspace(named.Stage) {
		return auth.DefaultWorkspace
	}
	return named.Stage
}

// isOfQueue reports whether an item of a list is the letter of a queue.
func isOfQueue(it *store.Item) bool {
	_, rest, _ := strings.Cut(it.Sort, "#")
	return strings.HasPrefix(rest, ofQueue)
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

// findOfQueue returns the item of a queue's letter; nil if there is none, or the id is another's.
func (o *Operations) findOfQueue(ctx context.Context, workspace, id string) (*store.Item, error) {
	name, rest, ok := parseLetterID(id)
	from, of := strings.CutPrefix(name, ofQueue)
	if !ok || !of {
		return nil, nil
	}
	micros, message, _ := strings.Cut(rest, "#")
	key := queueLetterKeys(workspace, from, micros+"#"+name+"#"+message)[0]
	items, err := o.d.DB.Get(ctx, key)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read a dead letter")
	}
	return items[0], nil
}

// Return sends the message of a queue's dead letter back to its queue; the letter is gone then. It reports
// false when the letter is not there (any more). One that cannot go back is of kind Conflict.
func (o *Operations) Return(ctx context.Context, workspace, id string) (bool, error) {
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
		return false, fault.New(fault.Conflict, "of the message of the dead letter only the beginning is kept")
	case l.Queue == queue.Dead || !slices.Contains(queue.Names(), l.Queue):
		return false, fault.New(fault.Conflict, "the dead letter is of %s, to which nothing can be sent back", l.Queue)
	}
	// First sent, then deleted: who dies in between leaves a letter that is sent twice, and none that is lost.
	if err := o.d.Queue.Send(ctx, l.Queue, queue.Outgoing{Body: body, Group: l.Group}); err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "send a message back to %s", l.Queue)
	}
	var gone []store.Op
	for _, key := range queueLetterKeys(workspace, string(l.Queue), it.Sort) {
		gone = append(gone, store.Delete(key))
	}
	return true, fault.Wrap(fault.Unavailable, o.d.DB.Write(ctx, gone...), "delete a dead letter that was sent back")
}
