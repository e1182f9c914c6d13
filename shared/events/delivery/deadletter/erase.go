package deadletter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Belonging is a stored record, letter or delivery of a subscription, with all its keys.
type Belonging struct {
	Kind string
	Keys []store.Key
	// At is the time at which it was created, or zero if that is unknown.
	At time.Time
	// Body is the stored event of a delivery, and URI the event's URI. Own is true if no other subscription uses the event.
	Body store.Key
	URI  string
	Own  bool
}

// Belongings visits all stored items of a subscription's deliveries.
func (o *Operations) Belongings(ctx context.Context, workspace, id string, visit func(Belonging) error) error {
	of := func(kind string, partition store.Key, add func(*store.Item, *Belonging)) error {
		return store.Each(ctx, o.Deliveries.DB, partition, "list what is stored of a subscription", func(it *store.Item) error {
			b := Belonging{Kind: kind, Keys: []store.Key{it.Key}}
			if add != nil {
				add(it, &b)
			}
			return visit(b)
		})
	}
	body := func(del *state.Delivery, b *Belonging) {
		b.Body, b.URI, b.Own = state.BodyKey(workspace, del.EventKey()), del.URI, del.Test
	}
	err := of("deliveries", state.Key(workspace, id, ""), func(it *store.Item, b *Belonging) {
		if del, err := state.Decode(it); err == nil {
			body(del, b)
			b.At = del.First
			if del.Place != (store.Key{}) {
				b.Keys = append(b.Keys, del.Place)
			}
		}
	})
	if err == nil {
		err = of("deadLetters", state.LettersOf(workspace, id), func(it *store.Item, b *Belonging) {
			if del, at, err := DecodeLetter(it); err == nil {
				body(del, b)
				b.At, b.Keys = at, del.LetterKeys(at)
			}
		})
	}
	if err == nil {
		err = of("records", store.Key{Table: store.Deliveries, Partition: records.BySubscription(workspace, id)}, func(it *store.Item, b *Belonging) {
			var r records.Record
			stamp, rest, ok := strings.Cut(it.Sort, "#")
			if json.Unmarshal(it.Value, &r) != nil || !ok {
				return
			}
			b.At = r.At
			for _, partition := range []string{records.ByEvent(workspace, r.Event), records.ByOrigin(workspace, r.Origin), records.OfAll(workspace)} {
				b.Keys = append(b.Keys, store.Key{Table: store.Deliveries, Partition: partition, Sort: stamp + "#" + id + "#" + rest})
			}
		})
	}
	if err == nil {
		err = of("statuses", subscription.StatusKey(workspace, id), nil)
	}
	if err == nil {
		err = of("statuses", state.GapKey(workspace, id), nil)
	}
	return err
}

// A delivery in flight may still be recorded after its subscription was erased. So the ids of erased subscriptions stay for
// [erasedSwept], as numbers without their prefix, and a periodic job deletes the items that are written under them.

const (
	ErasedPartition = "erased"
	erasedSwept     = 5 * time.Minute
	// maxErased is the number of ids in one item, and erasedID the bytes of each.
	maxErased = 10_000
	erasedID  = 16
)

type erased struct {
	Workspace string `json:"ws"`
	At        int64  `json:"at"` // seconds since 1970
	IDs       []byte `json:"ids"`
}

// SweepLater lets [Operations.SweepErased] delete the items that are recorded for erased subscriptions from now on.
func (o *Operations) SweepLater(ctx context.Context, workspace string, ids []string) error {
	var numbers []byte
	for _, id := range ids {
		if n, err := hex.DecodeString(strings.TrimPrefix(id, "sub_")); err == nil && len(n) == erasedID {
			numbers = append(numbers, n...)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	if q, ok := o.Deliveries.Queue.(queue.Discarder); ok { // their attempts would find no delivery
		if err := q.Discard(ctx, queue.Slow, ids...); err != nil {
			return err
		}
	}
	now := o.Deliveries.Now()
	var ops []store.Op
	for part := range slices.Chunk(numbers, maxErased*erasedID) {
		value, _ := json.Marshal(erased{Workspace: workspace, At: now.Unix(), IDs: part}) // texts, numbers
		key := store.Key{Table: store.Deliveries, Partition: ErasedPartition, Sort: fmt.Sprintf("%016d#%s", now.UnixMicro(), rand.Text())}
		ops = append(ops, store.Put(store.Item{Key: key, Value: value}))
	}
	return fault.Wrap(fault.Unavailable, o.Deliveries.DB.WriteAll(ctx, ops...), "record the erased subscriptions")
}

// SweepErased deletes everything that was recorded for subscriptions after they were erased. A subscription that its client
// has created again keeps everything since then.
func (o *Operations) SweepErased(ctx context.Context) (n int, err error) {
	err = store.Each(ctx, o.Deliveries.DB, store.Key{Table: store.Deliveries, Partition: ErasedPartition}, "list the erasures", func(it *store.Item) error {
		var e erased
		if err := json.Unmarshal(it.Value, &e); err != nil {
			return o.Deliveries.SetAside(ctx, it, fault.Wrap(fault.Internal, err, "decode an erasure"))
		}
		var ops []store.Op
		for number := range slices.Chunk(e.IDs, erasedID) {
			id := "sub_" + hex.EncodeToString(number)
			subs := subscription.Service{Records: subscription.Records{DB: o.Deliveries.DB, Now: o.Deliveries.Now}}
			again, err := subs.Find(ctx, e.Workspace, id)
			if err != nil {
				return err
			}
			err = o.Belongings(ctx, e.Workspace, id, func(b Belonging) error {
				if again != nil && (b.At.IsZero() || !b.At.Before(again.Created)) {
					return nil
				}
				n++
				for _, key := range b.Keys {
					ops = append(ops, store.Delete(key))
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if o.Deliveries.Now().Sub(time.Unix(e.At, 0)) > erasedSwept {
			ops = append(ops, store.Delete(it.Key))
		}
		if len(ops) == 0 {
			return nil
		}
		return o.Deliveries.DB.WriteAll(ctx, ops...)
	})
	if err == nil && n > 0 {
		err = store.Scrub(ctx, o.Deliveries.DB)
	}
	return n, fault.Wrap(fault.Unavailable, err, "delete the records that were written after an erasure")
}
