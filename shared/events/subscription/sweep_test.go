package subscription

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// subscribeFor makes subscriptions that end together.
func (f *fixture) subscribeFor(ttl time.Duration, n int) (ids []string, until time.Time) {
	f.t.Helper()
	for i := range n {
		got, err := f.trySubscribe(SubscribeRequest{
			Arguments: json.RawMessage(fmt.Sprintf(`{"owner":"a","repo":"r%d"}`, i)), TTL: TTL{Asked: true, For: ttl},
		})
		if err != nil {
			f.t.Fatal(err)
		}
		ids, until = append(ids, got.ID), got.RefreshBefore
	}
	return ids, until
}

// TestWhatCannotBeDecodedDoesNotStopTheSweep: AWS-16.
func TestWhatCannotBeDecodedDoesNotStopTheSweep(t *testing.T) {
	f := newFixture(t, Options{})
	var aside []string
	f.DeadLetter = func(ctx context.Context, it *store.Item, reason error) error {
		aside = append(aside, it.Sort)
		return f.db.Write(ctx, store.Delete(it.Key))
	}
	const all = 12
	ids, until := f.subscribeFor(time.Minute, all)
	// One entry and one record are broken, wherever they come among the others.
	var entry, record store.Key
	for shard := range sweepShards {
		page, err := f.db.Query(t.Context(), store.Query{Table: store.Subscriptions, Partition: expiryPartition(shard, until)})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Items) > 0 {
			entry = page.Items[0].Key
		}
	}
	for _, id := range ids {
		if id != entry.Sort {
			record = recordKey("default", "alice", id)
		}
	}
	for _, k := range []store.Key{entry, record} {
		if err := f.db.Write(t.Context(), store.Put(store.Item{Key: k, Value: []byte("{broken")})); err != nil {
			t.Fatal(err)
		}
	}
	f.clock = until
	n, err := f.Sweep(t.Context())
	if err != nil || n != all-2 {
		t.Errorf("AWS-16: swept %d of %d, %v", n, all-2, err)
	}
	slices.Sort(aside)
	if want := []string{entry.Sort, record.Sort}; !slices.Equal(aside, slices.Sorted(slices.Values(want))) {
		t.Errorf("set aside %q, want %q", aside, want)
	}
	f.clock = f.clock.Add(time.Minute)
	if n, err := f.Sweep(t.Context()); err != nil || n != 0 || len(aside) != 2 {
		t.Errorf("the next round met them again: swept %d, set aside %d, %v", n, len(aside), err)
	}
}

// The version before swept along with the due table.
func TestTheSweepGoesOnWhereTheVersionBeforeStood(t *testing.T) {
	f := newFixture(t, Options{})
	_, until := f.subscribeFor(time.Minute, 1)
	if err := f.db.Write(t.Context(), store.Put(store.Item{Key: sweepKeyBefore, Version: f.clock.Truncate(time.Minute).Unix()})); err != nil {
		t.Fatal(err)
	}
	f.clock = until.Add(24 * time.Hour)
	if n, err := f.Sweep(t.Context()); err != nil || n != 1 {
		t.Errorf("swept %d, %v; want what ended a day ago", n, err)
	}
}
