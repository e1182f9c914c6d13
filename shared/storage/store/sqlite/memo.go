package sqlite

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// memo caches items and pages of [store.Subscriptions] until the next commit that changes that table. Every event causes two
// reads of the table, but only registrations change it.
//
// The writer counts such commits before it answers them, so a caller whose write was answered never reads an older state.
// Cached reads carry the count from before the read, so a read that a commit has overtaken is never found again.
type memo struct {
	commits atomic.Uint64
	items   *bounded.Map[store.Key, keptItem]
	pages   *bounded.Map[store.Query, keptPage]
}

type keptItem struct {
	at   uint64
	item *store.Item // nil if there is no such item
}

type keptPage struct {
	at   uint64
	page store.Page
}

// The cached values take at most 4,096 × 8 KiB and 512 × 64 KiB.
const (
	maxKeptItem = 8 << 10
	maxKeptPage = 64 << 10
)

func newMemo() memo {
	return memo{items: bounded.NewMap[store.Key, keptItem](4096), pages: bounded.NewMap[store.Query, keptPage](512)}
}

// noteWrite counts a transaction that may have changed the table, even if it failed.
func (m *memo) noteWrite(ops []store.Op) {
	for i := range ops {
		if ops[i].Item.Table == store.Subscriptions && ops[i].Kind != store.OpCheck {
			m.commits.Add(1)
			return
		}
	}
}

// get returns the items of all keys as of the last commit. It reports false unless all of them are cached.
func (m *memo) get(keys []store.Key, now time.Time) ([]*store.Item, bool) {
	at := m.commits.Load()
	items := make([]*store.Item, len(keys))
	for i, key := range keys {
		if key.Table != store.Subscriptions {
			return nil, false
		}
		kept, ok := m.items.Get(key)
		if !ok || kept.at != at {
			return nil, false
		}
		if kept.item != nil && !isExpired(kept.item, now) {
			own := shareItem(*kept.item)
			items[i] = &own
		}
	}
	return items, true
}

// keepItems caches items that were read when the count of commits was at.
func (m *memo) keepItems(at uint64, keys []store.Key, items []*store.Item) {
	for i, key := range keys {
		if key.Table != store.Subscriptions || items[i] != nil && len(items[i].Value) > maxKeptItem {
			continue
		}
		kept := keptItem{at: at}
		if items[i] != nil {
			own := shareItem(*items[i])
			kept.item = &own
		}
		m.items.Put(key, kept)
	}
}

func (m *memo) query(q store.Query, now time.Time) (store.Page, bool) {
	if q.Table != store.Subscriptions {
		return store.Page{}, false
	}
	kept, ok := m.pages.Get(q)
	if !ok || kept.at != m.commits.Load() {
		return store.Page{}, false
	}
	return copyPage(kept.page, now), true
}

func (m *memo) keepPage(at uint64, q store.Query, page store.Page, now time.Time) {
	size := 0
	for i := range page.Items {
		size += len(page.Items[i].Value)
	}
	if q.Table == store.Subscriptions && size <= maxKeptPage {
		m.pages.Put(q, keptPage{at, copyPage(page, now)})
	}
}

// copyPage returns a copy of a page without expired items.
func copyPage(page store.Page, now time.Time) store.Page {
	page.Items = slices.Clone(page.Items)
	page.Items = slices.DeleteFunc(page.Items, func(it store.Item) bool { return isExpired(&it, now) })
	for i := range page.Items {
		page.Items[i] = shareItem(page.Items[i])
	}
	return page
}

// shareItem returns a copy of an item. Its reader may change everything but the bytes of the value.
func shareItem(it store.Item) store.Item {
	it.Counts = maps.Clone(it.Counts)
	it.Value = slices.Clip(it.Value)
	return it
}

func isExpired(it *store.Item, now time.Time) bool {
	return !it.Expires.IsZero() && it.Expires.Unix() <= now.Unix()
}
