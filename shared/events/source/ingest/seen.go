package ingest

import (
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
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	// seenFor is how long an id is known. Stripe retries for three days, and GitHub redelivers what is not older.
	seenFor = 72 * time.Hour
	// begunFor is how long an event keeps out others under its key if its process dies.
	begunFor = time.Minute
)

// Seen knows the ids of what sources sent, and what was signed. The events queue drops what comes again within five
// minutes under the same id, also at the same time; Seen is for later, and for replays under other ids. An id is recorded
// after its event is durable, so that none is lost. No sender waits for that: the record shares the next commit, and until
// then this process remembers it.
type Seen struct {
	DB store.DB

	recent *bounded.Map[store.Key, seen]
	begun  *sync.Map // marks of the events that this process is accepting, by key
}

// NewSeen knows what the store does.
func NewSeen(db store.DB) Seen { return Seen{db, &bounded.Map[store.Key, seen]{}, &sync.Map{}} }

type seen struct {
	accepted publish.Accepted
	expires  time.Time
}

// begin has nothing be accepted under the key at the same time but the event of in: the same one again does no harm, for
// the events queue drops it. End is nil while another is being accepted; else it is to be called with whether something has
// been added under the key. Where several processes share the store this is a write.
func (s Seen) begin(ctx context.Context, now time.Time, key store.Key, in publish.Input) (end func(added bool), err error) {
	mark := markOf(in)
	switch other, taken := s.begun.LoadOrStore(key, mark); {
	case taken && other != mark:
		return nil, nil
	case taken:
		return func(bool) {}, nil
	case s.DB.Ordered():
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
			_ = s.DB.Write(context.WithoutCancel(ctx), store.Delete(key, store.VersionIs(mark))) // else it expires
		}
	}, nil
}

// markOf stands for what the events queue knows an event by. No one finds another event with the same mark.
func markOf(in publish.Input) int64 {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q", in.ID, in.URI)
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// Known is what was accepted for each of the keys; nil if nothing was.
func (s Seen) Known(ctx context.Context, now time.Time, keys []store.Key) ([]*publish.Accepted, error) {
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

// Add records what was accepted under the keys.
func (s Seen) Add(ctx context.Context, now time.Time, keys []store.Key, accepted publish.Accepted) error {
	value, _ := json.Marshal(accepted) // two texts
	expires := now.Add(seenFor)
	ops := make([]store.Op, len(keys))
	for i, key := range keys {
		ops[i] = store.Put(store.Item{Key: key, Value: value, Expires: expires})
		s.recent.Put(key, seen{accepted, expires})
	}
	return s.DB.WriteAll(store.Unhurried(ctx), ops...)
}

// identity is by what a request is known when it comes again. It is zero for a bus's document.
type identity struct {
	// body is the hash of the body, without its Content-Encoding.
	body string
	// signed is that of all that is signed; "" if nothing is. Whoever recorded a request can send it again with other
	// headers, and so under another id, but not with another signed.
	signed string
}

// accepted are the keys of what was accepted: the id, which a redelivery has in common with the first request though it
// may be signed anew, and last what is signed, which a replay has.
func (i identity) accepted(s source.Source, id string) []store.Key {
	return i.withSigned(s, "signed", seenKey(s, "id", id))
}

// unfit are the keys of what was kept because it does not fit; the event may have no id.
func (i identity) unfit(s source.Source, id string) []store.Key {
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

// bodyID is the id of what has none of its own: the same body is the same event.
func bodyID(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256_" + base64.RawURLEncoding.EncodeToString(sum[:])
}
