package ingest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// retry is the body of a dead letter: a request or message that a mapping matched but that did not become a valid event. The workspace is
// the first member, so that it can be read even if the dead letter keeps only the beginning of the body.
//
// When an operator retries the dead letter, the body is sent to the inbox queue again. It is trusted without a signature, because anyone
// with permission to send to the inbox may publish.
type retry struct {
	Workspace string  `json:"workspace"`
	Retry     retried `json:"retry"`
}

type retried struct {
	Source string      `json:"source"`
	From   source.From `json:"from,omitempty"`
	// Hash and Signed are the fields body and signed of the request's [identity]. With them, the server still recognizes when the provider
	// sends the request again.
	Hash   string `json:"hash,omitempty"`
	Signed string `json:"signed,omitempty"`
	// Document is the JSON of the request or message. If it is too large for the queue, Packed has it in GZIP instead.
	Document json.RawMessage `json:"document,omitempty"`
	Packed   []byte          `json:"packed,omitempty"`
}

// maxUnpacked limits the size of a document that a dead letter has in GZIP: a body of the maximum size, plus JSON escapes and headers.
const maxUnpacked = 3 * publish.MaxBody

// isRetry reports whether a message in the inbox is a [retry]. A CloudEvent is not a retry, although it may have an attribute named
// retry. Every CloudEvent has the member specversion.
func isRetry(body []byte) bool {
	return json.Valid(body) && jsonrpc.Member(body, "retry") != nil && jsonrpc.Member(body, "specversion") == nil
}

// deadLetter stores a request or message as a dead letter, so that an operator can fix its mapping and retry it. If the provider sends it
// repeatedly, deadLetter stores it only once. The parameter again is true for a retried dead letter, which is always stored again.
func (d *Documents) deadLetter(ctx context.Context, s source.Source, doc any, ident identity, id string, why error, again bool, now time.Time) error {
	body := encodeRetry(s, doc, ident)
	if ident.body == "" {
		ident.body, id = bodyID(body), ""
	}
	keys := ident.unfitKeys(s, id)
	if !again {
		if known, err := d.Seen.findAccepted(ctx, now, keys); err != nil || cmp.Or(known...) != nil {
			return err
		}
	}
	m := queue.Message{Outgoing: queue.Outgoing{Body: body}, Sent: now}
	out := queue.NewDeadLetter(queue.Inbox, m, "source "+s.Name+": "+fault.Public(why), faultsOf(why), now)
	if err := d.Queue.Send(ctx, queue.Dead, out); err != nil {
		return fault.Wrap(fault.Unavailable, err, "dead-letter a document")
	}
	d.Metrics.DeadLettered(string(queue.Inbox), 1)
	d.log().WarnContext(ctx, "source document dead-lettered", "source", s.Name, "workspace", s.Workspace, "reason", fault.Clip(fault.Public(why), maxReason))
	d.remember(ctx, s, now, keys, publish.Accepted{})
	return nil
}

func faultsOf(err error) any {
	switch data := fault.DataOf(err).(type) {
	case source.Unfit:
		return data.Faults
	case publish.Refusal:
		return data.Faults
	}
	return nil
}

// encodeRetry encodes the body of a dead letter, compressed if it would otherwise be too large for a queue.
func encodeRetry(s source.Source, doc any, ident identity) []byte {
	text := marshal(doc)
	r := retry{s.Workspace, retried{Source: s.Name, From: s.From, Hash: ident.body, Signed: ident.signed, Document: text}}
	body := marshal(r)
	if len(body) <= queue.MaxBody {
		return body
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(text) // in memory, so it cannot fail
	_ = z.Close()
	r.Retry.Document, r.Retry.Packed = nil, b.Bytes()
	if small := marshal(r); len(small) <= queue.MaxBody {
		return small
	}
	return body // too large: the dead letter keeps only its beginning and cannot be retried
}

// marshal encodes JSON and escapes the characters that SQS refuses because XML cannot hold them.
func marshal(v any) []byte { return queue.Escape(jsonrpc.Encode(v)) }

func parseRetry(body []byte) (r retry, doc any, err error) {
	malformed := fault.New(fault.Invalid, "is not the document of a source")
	if json.Unmarshal(body, &r) != nil {
		return r, nil, malformed
	}
	text := []byte(r.Retry.Document)
	if r.Retry.Packed != nil {
		if text, err = unzip(r.Retry.Packed, maxUnpacked); err != nil {
			return r, nil, malformed
		}
	}
	doc, err = source.DecodeDocument(text)
	return r, doc, err
}

const (
	// seenFor is how long the server remembers the id of an accepted event, to recognize a repeated webhook. Stripe retries a webhook for three
	// days, and GitHub can redeliver one for three days.
	seenFor = 72 * time.Hour
	// begunFor is how long [Seen.reserve] reserves a key in the store. It matters only if the process dies before it removes the
	// reservation.
	begunFor = time.Minute
)

// Seen detects events that were already accepted. It remembers their ids, because the events queue recognizes duplicates only within five
// minutes. It also remembers the hashes of signed requests, because an attacker could replay a signed request under another id.
//
// An id or hash is recorded only after its event is stored durably. The record may be written a little later ([store.Unhurried]), so this
// process also keeps its recent records in memory.
type Seen struct {
	DB store.DB

	recent *bounded.Map[store.Key, seen]
	begun  *sync.Map // the marks ([markOf]) of the events that this process is accepting, by key
}

// NewSeen returns a Seen that keeps its records in db.
func NewSeen(db store.DB) Seen { return Seen{db, &bounded.Map[store.Key, seen]{}, &sync.Map{}} }

type seen struct {
	accepted publish.Accepted
	expires  time.Time
}

// reserve reserves a key while the caller publishes an event. The key stands for an event id or a signed request. After publishing, the
// caller must call the function end, with true if it has added a record under the key.
//
// The result end is nil while a different event is being published under the key, for example because the same signed request was sent
// under two ids. Two calls with the same event both succeed, because the events queue drops the duplicate.
func (s Seen) reserve(ctx context.Context, now time.Time, key store.Key, in publish.Input) (end func(added bool), err error) {
	mark := markOf(in)
	switch other, taken := s.begun.LoadOrStore(key, mark); {
	case taken && other != mark:
		return nil, nil
	case taken:
		return func(bool) {}, nil
	case s.DB.Local():
		return func(bool) { s.begun.Delete(key) }, nil
	}
	for _, cond := range []store.Condition{store.Absent(), store.VersionIs(mark)} {
		err = s.DB.Write(ctx, store.Put(store.Item{Key: key, Version: mark, Expires: now.Add(begunFor)}, cond))
		if !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	if err != nil {
		s.begun.Delete(key)
	}
	switch {
	case errors.Is(err, store.ErrConflict):
		return nil, nil
	case err != nil:
		return nil, fault.Wrap(fault.Unavailable, err, "begin to accept a request")
	}
	return func(added bool) {
		s.begun.Delete(key)
		if !added {
			_ = s.DB.Write(context.WithoutCancel(ctx), store.Delete(key, store.VersionIs(mark))) // if this fails, the reservation expires
		}
	}, nil
}

// markOf returns a hash of the event's id and URI. Two events that the events queue treats as duplicates have the same hash. It is the
// beginning of a SHA-256, so that senders cannot easily make two different events with the same hash.
func markOf(in publish.Input) int64 {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q", in.ID, in.URI)
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// findAccepted returns, for each key, the event that was accepted under the key, or nil if there is no such event.
func (s Seen) findAccepted(ctx context.Context, now time.Time, keys []store.Key) ([]*publish.Accepted, error) {
	known := make([]*publish.Accepted, len(keys))
	var others []store.Key
	for i, key := range keys {
		if it, ok := s.recent.Get(key); ok && it.expires.After(now) {
			known[i] = &it.accepted
		} else {
			others = append(others, key)
		}
	}
	if len(others) == 0 {
		return known, nil
	}
	items, err := s.DB.Get(ctx, others...)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "look up an id")
	}
	for _, it := range items {
		var accepted publish.Accepted
		if it != nil && it.Expires.After(now) && json.Unmarshal(it.Value, &accepted) == nil {
			known[slices.Index(keys, it.Key)] = &accepted
		}
	}
	return known, nil
}

// Add records an accepted event under the keys, so that a repetition is recognized.
func (s Seen) Add(ctx context.Context, now time.Time, keys []store.Key, accepted publish.Accepted) error {
	value, _ := json.Marshal(accepted) // cannot fail for strings
	expires := now.Add(seenFor)
	ops := make([]store.Op, len(keys))
	for i, key := range keys {
		ops[i] = store.Put(store.Item{Key: key, Value: value, Expires: expires})
		s.recent.Put(key, seen{accepted, expires})
	}
	return store.Unhurried(s.DB).WriteAll(ctx, ops...)
}

// identity has the hashes by which the server recognizes a request that is sent again. It is zero for messages of AWS services.
type identity struct {
	// body is the hash of the decompressed body.
	body string
	// signed is the hash of the text that the signature covers, or "" if the scheme has no signature. An attacker who recorded a request
	// can send it again with different unsigned headers, and so under another id, but signed stays the same.
	signed string
}

// acceptedKeys returns the keys under which an accepted event is recorded. The first is for the event's id, which a provider
// repeats when it redelivers the event, even if it signs the request again. If the request is signed, the second is for the hash of
// the signed text, which stays the same if an attacker replays the request under another id.
func (i identity) acceptedKeys(s source.Source, id string) []store.Key {
	return i.withSigned(s, "signed", seenKey(s, "id", id))
}

// unfitKeys returns the keys under which a dead letter is recorded. The parameter id is the event's id, or "" if it is not known.
func (i identity) unfitKeys(s source.Source, id string) []store.Key {
	return i.withSigned(s, "unfit-signed", seenKey(s, "unfit", i.body+" "+id))
}

func (i identity) withSigned(s source.Source, kind string, keys ...store.Key) []store.Key {
	if i.signed != "" {
		keys = append(keys, seenKey(s, kind, i.signed))
	}
	return keys
}

func seenKey(s source.Source, kind, id string) store.Key {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %s %s", s.Workspace, s.Name, kind, id)
	return store.Key{Table: store.Deliveries, Partition: "sn#" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)), Sort: "seen"}
}

// bodyID derives an event id from a request's body, so that two requests with equal bodies and without an id become only one event.
func bodyID(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256_" + base64.RawURLEncoding.EncodeToString(sum[:])
}
