package stream_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// memory is a store like DynamoDB as the log sees it: strongly consistent, not
// ordered, small pages, and a put that may take its time before it is there.
type memory struct {
	mu    sync.Mutex
	items map[string][]store.Item // partition, sorted
	delay func(partition string) time.Duration
}

func (m *memory) Stamps() bool { return false }
func (m *memory) Local() bool  { return false }
func (m *memory) End() int64   { return 0 }
func (m *memory) Close() error { return nil }

func (m *memory) Get(_ context.Context, keys ...store.Key) ([]*store.Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*store.Item, len(keys))
	for i, k := range keys {
		for _, it := range m.items[k.Partition] {
			if it.Sort == k.Sort {
				out[i] = &it
			}
		}
	}
	return out, nil
}

func (m *memory) Query(_ context.Context, q store.Query) (store.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page store.Page
	items := m.items[q.Partition]
	if q.Reverse {
		items = slices.Clone(items)
		slices.Reverse(items)
	}
	for _, it := range items {
		if it.Sort <= q.After || q.Until != "" && it.Sort > q.Until {
			continue
		}
		if len(page.Items) == min(q.Limit, 3) { // polls take several pages
			page.More = true
			break
		}
		page.Items = append(page.Items, it)
		page.Last = it.Sort
	}
	return page, nil
}

func (m *memory) Write(ctx context.Context, ops ...store.Op) error {
	for _, op := range ops {
		if op.Kind == store.OpPut {
			time.Sleep(m.delay(op.Item.Partition))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		items := m.items[op.Item.Partition]
		i, found := slices.BinarySearchFunc(items, op.Item.Sort, func(it store.Item, s string) int { return strings.Compare(it.Sort, s) })
		switch kind, version := op.Cond.Unpack(); {
		case kind == "absent" && found, kind == "version" && (!found || items[i].Version != version):
			return store.ErrConflict
		}
		it := op.Item
		if op.Kind == store.OpRaise && found {
			it = items[i]
			it.Counts = op.Item.Counts
		}
		if found {
			items[i] = it
		} else {
			m.items[it.Partition] = slices.Insert(items, i, it)
		}
	}
	return nil
}

func (m *memory) WriteAll(ctx context.Context, ops ...store.Op) error { return m.Write(ctx, ops...) }

// upTo returns a random time below d.
func upTo(d time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(d))) }
