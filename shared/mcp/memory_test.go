package mcp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// memory is a store for tests in a synctest bubble, where the pools that SQLite
// shares between databases must not come in.
type memory struct {
	mu    sync.Mutex
	items map[store.Key]store.Item
	stamp int64
}

func newMemory() *memory { return &memory{items: map[store.Key]store.Item{}} }

func (m *memory) get(k store.Key) *store.Item {
	it, ok := m.items[k]
	if !ok || !it.Expires.IsZero() && !time.Now().Before(it.Expires) {
		return nil
	}
	it.Counts = maps.Clone(it.Counts)
	return &it
}

func (m *memory) Get(_ context.Context, keys ...store.Key) ([]*store.Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*store.Item, len(keys))
	for i, k := range keys {
		out[i] = m.get(k)
	}
	return out, nil
}

func (m *memory) Query(_ context.Context, q store.Query) (page store.Page, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.items {
		if it := m.get(k); it != nil && k.Table == q.Table && k.Partition == q.Partition && k.Sort > q.After &&
			(q.Until == "" || k.Sort <= q.Until) && (q.Before == "" || k.Sort < q.Before) {
			page.Items = append(page.Items, *it)
		}
	}
	slices.SortFunc(page.Items, func(a, b store.Item) int {
		if q.Reverse {
			a, b = b, a
		}
		return strings.Compare(a.Sort, b.Sort)
	})
	if limit := max(q.Limit, 1); len(page.Items) > limit {
		page.Items, page.More = page.Items[:limit], true
		page.Last = page.Items[limit-1].Sort
	}
	return page, nil
}

func (m *memory) Write(_ context.Context, ops ...store.Op) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		have := m.get(op.Item.Key)
		switch kind, version := op.Cond.Unpack(); {
		case kind == "absent" && have != nil, kind == "exists" && have == nil,
			kind == "version" && (have == nil || have.Version != version):
			return store.ErrConflict
		}
		for name, most := range op.Limits {
			n := op.Item.Counts[name]
			if have != nil {
				n += have.Counts[name]
			}
			if n > most {
				return store.ErrConflict
			}
		}
	}
	for _, op := range ops {
		m.apply(op)
	}
	return nil
}

func (m *memory) apply(op store.Op) {
	it := op.Item
	switch op.Kind {
	case store.OpPut:
		if it.Sort == store.AtCommit {
			if op.Span != store.SameStamp {
				m.stamp = max(m.stamp, time.Now().UnixMicro()-1) + int64(max(op.Span, 1))
			}
			it.Sort = fmt.Sprintf("%016d", m.stamp)
		}
		m.items[it.Key] = it
	case store.OpDelete:
		delete(m.items, it.Key)
	case store.OpAdd, store.OpRaise:
		have := m.get(it.Key)
		if have == nil {
			have = &store.Item{Key: it.Key}
		}
		if have.Counts == nil {
			have.Counts = map[string]int64{}
		}
		for name, n := range it.Counts {
			if op.Kind == store.OpRaise {
				have.Counts[name] = max(have.Counts[name], n)
			} else {
				have.Counts[name] += n
			}
		}
		m.items[it.Key] = *have
	}
}

func (m *memory) WriteAll(ctx context.Context, ops ...store.Op) error { return m.Write(ctx, ops...) }
func (m *memory) Stamps() bool                                        { return true }
func (m *memory) Local() bool                                         { return true }
func (m *memory) Close() error                                        { return nil }

func (m *memory) End() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stamp
}
