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
	// seenFor is how long an id is remembered. Stripe retries for three days, and GitHub can redeliver deliveries of
	// the last three days.
	seenFor = 72 * time.Hour
	// begunFor is how long a key stays reserved if the process dies while it accepts the event.
	begunFor = time.Minute
)

// Seen remembers the ids of events that sources sent, and hashes of the signed texts. The events queue already drops
// events with the same id within five minutes, even concurrent ones. Seen detects later duplicates, and replays of a
// signed request under other ids. An id is recorded only after its event is durable, so that an event cannot be lost.
// The sender does not wait for the record: it is written with the next commit, and until then this process keeps it
// in memory.
type Seen struct {
	DB store.DB

	recent *bounded.Map[store.Key, seen]
	begun  *sync.Map // marks of the events that this process is accepting, by key
}

// NewSeen returns a Seen with the ids that are recorded in db.
func NewSeen(db store.DB) Seen { return Seen{db, &bounded.Map[store.Key, seen]{}, &sync.Map{}} }

type seen struct {
	accepted publish.Accepted
	expires  time.Time
}

// begin reserves a key for an event that is about to be published. Concurrent calls with the same event succeed, because
// the events queue drops the duplicate. While another event is being published under the key, begin returns a nil end.
// Otherwise the caller must call end and say whether it has added a record under the key. If several processes share
// the store, the reservation is a write.
func (s Seen) begin(ctx context.Context, now time.Time, key store.Key, in publish.Input) (end func(added bool), err error) {
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

// markOf hashes the id and the URI by which the events queue detects duplicates. A sender cannot construct a
// different event with the same mark.
func markOf(in publish.Input) int64 {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q", in.ID, in.URI)
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// known returns for each key the event that was accepted under it, or nil.
func (s Seen) known(ctx context.Context, now time.Time, keys []store.Key) ([]*publish.Accepted, error) {
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

// Add records an accepted event under the keys.
func (s Seen) Add(ctx context.Context, now time.Time, keys []store.Key, accepted publish.Accepted) error {
	value, _ := json.Marshal(accepted) // two strings always encode
	expires := now.Add(seenFor)
	ops := make([]store.Op, len(keys))
	for i, key := range keys {
		ops[i] = store.Put(store.Item{Key: key, Value: value, Expires: expires})
		s.recent.Put(key, seen{accepted, expires})
	}
	return s.DB.WriteAll(store.Unhurried(ctx), ops...)
}

// identity identifies a request when it is sent again. It is zero for the documents of bus sources.
type identity struct {
	// body is the hash of the body without its Content-Encoding.
	body string
	// signed is the hash of everything that is signed, or "" if the scheme signs nothing. An attacker who recorded a
	// request can send it again with different unsigned headers, and so under another id, but signed stays the same.
	signed string
}

// acceptedKeys returns the keys under which an accepted event is recorded: its id, which a redelivery repeats even if it
// is signed again, and last the hash of the signed text, which a replay repeats.
func (i identity) acceptedKeys(s source.Source, id string) []store.Key {
	return i.withSigned(s, "signed", seenKey(s, "id", id))
}

// unfit returns the keys under which a dead-lettered document is recorded. The event may have no id.
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

// bodyID returns the id of a request's event that has no id of its own. Requests with the same body become the same
// event.
func bodyID(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256_" + base64.RawURLEncoding.EncodeToString(sum[:])
}
