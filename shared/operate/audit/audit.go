// Package audit stores the audit trail: an entry for each action of an operator or owner. Entries are never changed, except that
// [Trail.Redact] removes the name of an erased principal.
//
// [Trail.Do] writes the entry before the action, so that there is no action without an entry. If the action fails, it writes a second
// entry with the error.
package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// defaultRetention is how long entries are kept by default: a year and a month.
const defaultRetention = 400 * 24 * time.Hour

// Entry describes one action of an operator or owner.
type Entry struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// By is the principal who acted. Via is "api", or "console" for an action on the console's web page.
	By  string `json:"by"`
	Via string `json:"via"`
	// Action is the name of the action, for example "subscription.pause".
	Action string `json:"action"`
	Target string `json:"target"`
	// Before and After are the states of the target before and after the action. A state is null if the target does not exist then.
	Before json.RawMessage `json:"before"`
	After  json.RawMessage `json:"after"`
	// Error is the error of a failed action. Only the second entry of the action has it.
	Error string `json:"error,omitempty"`
}

// Trail reads and writes the audit trail.
type Trail struct {
	DB        store.DB
	Retention time.Duration // 0 means defaultRetention
	Now       func() time.Time
}

func (t *Trail) now() time.Time { return periodic.Clock(t.Now)() }

func partition(workspace string) string { return "audit#" + workspace }

// Do adds the entry e to the audit trail, and then performs the action by calling the function do. It sets the id and time of e.
func (t *Trail) Do(ctx context.Context, workspace string, e Entry, do func() error) error {
	if err := t.add(ctx, workspace, e); err != nil {
		return err
	}
	err := do()
	if err != nil {
		e.Error = fault.Public(err)
		if failed := t.add(context.WithoutCancel(ctx), workspace, e); failed != nil {
			return failed
		}
	}
	return err
}

func (t *Trail) add(ctx context.Context, workspace string, e Entry) error {
	now := t.now().UTC()
	e.At = now
	e.ID = fmt.Sprintf("%016d#%s", now.UnixMicro(), rand.Text()[:8])
	null(&e.Before)
	null(&e.After)
	value, err := json.Marshal(e)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode an audit entry")
	}
	err = t.DB.Write(ctx, store.Put(store.Item{
		Key:   store.Key{Table: store.Settings, Partition: partition(workspace), Sort: e.ID},
		Value: value, Expires: now.Add(cmp.Or(t.Retention, defaultRetention)),
	}, store.Absent()))
	return fault.Wrap(fault.Unavailable, err, "write the audit trail")
}

func null(v *json.RawMessage) {
	if len(*v) == 0 {
		*v = json.RawMessage("null")
	}
}

// List returns a page of the entries between the times since and until, newest first. A zero time sets no limit.
//
// The parameter before is empty for the first page. For a later page, it is the result next of the previous page. On the last page, next
// is empty.
func (t *Trail) List(ctx context.Context, workspace string, since, until time.Time, before string, limit int) (list []Entry, next string, err error) {
	q := store.Query{Table: store.Settings, Partition: partition(workspace), Reverse: true, Before: before, Limit: limit}
	q.Within(since, until)
	page, err := t.DB.Query(ctx, q)
	if err != nil {
		return nil, "", fault.Wrap(fault.Unavailable, err, "read the audit trail")
	}
	for _, it := range page.Items {
		var e Entry
		if err := json.Unmarshal(it.Value, &e); err != nil {
			return nil, "", fault.Wrap(fault.Internal, err, "decode an audit entry")
		}
		list = append(list, e)
	}
	if page.More {
		next = page.Last
	}
	return list, next, nil
}

// Redact removes the name of an erased principal from the entries. If the principal is the one who acted, a pseudonym replaces the name.
// The pseudonym also replaces a whole state or target that has the name as a value, or that contains one of the texts, for example the id
// of one of the principal's subscriptions. If a state is replaced, the target is replaced, too.
//
// Redact calls the function visit for each affected entry. In a dry run it does not change the entries.
func (t *Trail) Redact(ctx context.Context, workspace, name, pseudonym string, texts []string, dry bool, visit func() error) error {
	quoted, _ := json.Marshal(name)
	redacted, _ := json.Marshal(pseudonym)
	holds := func(b []byte) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return bytes.Contains(b, []byte(text)) })
	}
	err := store.Each(ctx, t.DB, store.Key{Table: store.Settings, Partition: partition(workspace)}, "read the audit trail", func(it *store.Item) error {
		if !bytes.Contains(it.Value, quoted) && !holds(it.Value) {
			return nil
		}
		var e Entry
		if err := json.Unmarshal(it.Value, &e); err != nil {
			return fault.Wrap(fault.Internal, err, "decode an audit entry")
		}
		before, after := hasValue(e.Before, name) || holds(e.Before), hasValue(e.After, name) || holds(e.After)
		target := before || after || e.Target == name || holds([]byte(e.Target))
		if !target && e.By != name {
			return nil
		}
		if dry {
			return visit()
		}
		if e.By == name {
			e.By = pseudonym
		}
		if target {
			e.Target = pseudonym
		}
		if before {
			e.Before = redacted
		}
		if after {
			e.After = redacted
		}
		out := *it
		out.Value, _ = json.Marshal(e) // cannot fail, because e was decoded from JSON
		if err := t.DB.Write(ctx, store.Put(out, store.Exists())); err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
		return visit()
	})
	return fault.Wrap(fault.Unavailable, err, "redact the audit trail")
}

// hasValue reports whether the string text is in a JSON value, other than as the name of a member.
func hasValue(value json.RawMessage, text string) bool {
	if s, ok := jsonrpc.String(value); ok {
		return s == text
	}
	for _, member := range jsonrpc.Members(value) {
		if hasValue(member, text) {
			return true
		}
	}
	for element := range jsonrpc.Elements(value) {
		if hasValue(element, text) {
			return true
		}
	}
	return false
}
