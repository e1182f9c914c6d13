package sqlite

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// memo caches items and pages until the next commit that may change them. Every event causes two reads of [store.Subscriptions], but
// only registrations change it. Every request of a session reads the session's item, and a call also its session with the backend.
//
// The writer counts such commits before it answers them, so a caller whose write was answered never reads an older state.
// Cached reads carry the count from before the read, so a read that a commit has overtaken is never found again.
type memo struct {
	subscriptions commits
	// sessions has several counts, because other items of that table change often. A partition always has the same count.
	sessions [256]commits
	seed     maphash.Seed
	items    *bounded.Map[store.Key, keptItem]
	pages    *bounded.Map[store.Query, keptPage]
}

// commits counts the commits that may have changed some of the items.
type commits struct{ atomic.Uint64 }

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
	return memo{
		seed:  maphash.MakeSeed(),
		items: bounded.NewMap[store.Key, keptItem](4096), pages: bounded.NewMap[store.Query, keptPage](512),
	}
}

// commitsOf returns the count for a key, or nil if the key's table is not cached.
func (m *memo) commitsOf(key store.Key) *commits {
	switch key.Table {
	case store.Subscriptions:
		return &m.subscriptions
	case store.Sessions:
		return &m.sessions[maphash.String(m.seed, key.Partition)%uint64(len(m.sessions))]
	}
	return nil
}

// commitsOfAll returns the count that the keys share, or nil if they do not share one. Items with different counts are not cached
// together, because they might not be from the same commit.
func (m *memo) commitsOfAll(keys []store.Key) (shared *commits) {
	for i, key := range keys {
		of := m.commitsOf(key)
		if of == nil || i > 0 && of != shared {
			return nil
		}
		shared = of
	}
	return shared
}

// noteWrite counts a transaction that may have changed cached items, even if it failed.
func (m *memo) noteWrite(ops []store.Op) {
	for i := range ops {
		if of := m.commitsOf(ops[i].Item.Key); of != nil && ops[i].Kind != store.OpCheck {
			of.Add(1)
		}
	}
}

// get returns the items of all keys, whose count is of, as of the last commit. It reports false unless all of them are cached.
func (m *memo) get(of *commits, keys []store.Key, now time.Time) ([]*store.Item, bool) {
	if of == nil {
		return nil, false
	}
	at := of.Load()
	items := make([]*store.Item, len(keys))
	for i, key := range keys {
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

// keepItems caches items that were read when their count was at.
func (m *memo) keepItems(at uint64, keys []store.Key, items []*store.Item) {
	for i, key := range keys {
		if items[i] != nil && len(items[i].Value) > maxKeptItem {
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
	if !ok || kept.at != m.subscriptions.Load() {
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
