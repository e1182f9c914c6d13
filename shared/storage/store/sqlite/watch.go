package sqlite

import (
	"sync"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// watchers holds the watches of partitions of the log.
type watchers struct {
	mu sync.Mutex
	by map[string]*watched
}

// watched is a partition of the log that is watched.
type watched struct {
	changed []chan struct{}
	written atomic.Int64
}

// Watch implements [store.Watcher]. The channel is never closed; stop may be called twice.
func (db *DB) Watch(partition string) (changed <-chan struct{}, written func() int64, stop func()) {
	w := &db.watch
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string]*watched{}
	}
	p := w.by[partition]
	if p == nil {
		p = &watched{}
		w.by[partition] = p
	}
	p.changed = append(p.changed, ch)
	return ch, p.written.Load, sync.OnceFunc(func() { w.remove(partition, ch) })
}

func (w *watchers) remove(partition string, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.by[partition]
	for i, other := range p.changed {
		if other == ch {
			last := len(p.changed) - 1
			p.changed[i], p.changed[last] = p.changed[last], nil
			p.changed = p.changed[:last]
			break
		}
	}
	if len(p.changed) == 0 {
		delete(w.by, partition)
	}
}

// notify notifies the watchers of a commit and its stamp, and moves the end.
//
// It sets written before the end and the end before it notifies, so that a watcher that reads the end finds every stamp up
// to it in written, and a notified watcher finds both. A full channel already has a notification.
func (w *watchers) notify(ops []store.Op, stamp int64, end *atomic.Int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.by) > 0 && stamp > 0 {
		for i := range ops {
			if p := w.find(&ops[i]); p != nil && ops[i].Item.Sort == store.AtCommit {
				p.written.Store(stamp)
			}
		}
	}
	end.Store(max(end.Load(), stamp))
	if len(w.by) == 0 {
		return
	}
	for i := range ops {
		p := w.find(&ops[i])
		if p == nil {
			continue
		}
		for _, ch := range p.changed {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}

// find returns the watched partition that an operation writes, or nil; w.mu is held.
func (w *watchers) find(op *store.Op) *watched {
	if op.Item.Table != store.Log || op.Kind == store.OpCheck {
		return nil
	}
	return w.by[op.Item.Partition]
}
