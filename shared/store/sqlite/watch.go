package sqlite

import (
	"sync"
	"sync/atomic"

	"mcpevents/shared/store"
)

// watchers are the channels that wait for commits to partitions of the log.
type watchers struct {
	mu    sync.Mutex
	count atomic.Int64 // so that the writer need not lock when nobody watches
	by    map[string][]chan struct{}
}

// Watch tells of each commit to a partition of table [store.Log]. The channel is
// never closed; stop may be called twice.
func (db *DB) Watch(partition string) (changed <-chan struct{}, stop func()) {
	w := &db.watch
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string][]chan struct{}{}
	}
	w.by[partition] = append(w.by[partition], ch)
	w.count.Add(1)
	return ch, sync.OnceFunc(func() { w.remove(partition, ch) })
}

func (w *watchers) remove(partition string, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := w.by[partition]
	for i, other := range rest {
		if other == ch {
			rest[i] = rest[len(rest)-1]
			rest[len(rest)-1] = nil
			rest = rest[:len(rest)-1]
			break
		}
	}
	if len(rest) == 0 {
		delete(w.by, partition)
	} else {
		w.by[partition] = rest
	}
	w.count.Add(-1)
}

// tell announces a commit. A channel that is full has been told already.
func (w *watchers) tell(ops []store.Op) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range ops {
		if ops[i].Item.Table != store.Log || ops[i].Kind == store.OpCheck {
			continue
		}
		for _, ch := range w.by[ops[i].Item.Partition] {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}
