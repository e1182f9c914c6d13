// Package bounded has a map of limited size, for caches of values that can be computed or read again.
package bounded

import "sync"

// Map is a map of limited size. It may be used concurrently, and the zero value holds up to [DefaultBound] entries.
//
// Map approximates a least-recently-used cache with two generations. When the young generation holds half of the limit, it becomes the
// old generation, and the entries of the previous old generation are dropped. A Get that finds an entry in the old generation moves it to
// the young one.
type Map[K comparable, V any] struct {
	half int

	mu         sync.RWMutex
	young, old map[K]V
}

// DefaultBound is the largest number of entries of a [Map] that was not made with [NewMap].
const DefaultBound = 8192

// NewMap returns a map of at most bound entries.
func NewMap[K comparable, V any](bound int) *Map[K, V] {
	return &Map[K, V]{half: max(1, bound/2), young: map[K]V{}}
}

// Get returns the value of a key and whether the map has the key.
func (m *Map[K, V]) Get(k K) (V, bool) {
	m.mu.RLock()
	v, ok := m.young[k]
	isOld := false
	if !ok {
		_, isOld = m.old[k]
	}
	m.mu.RUnlock()
	if isOld {
		return m.promote(k)
	}
	return v, ok
}

// promote moves an entry from the old to the young generation. It looks the key up again, because another goroutine may have called Put
// since Get released the read lock.
func (m *Map[K, V]) promote(k K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.young[k]
	if !ok {
		if v, ok = m.old[k]; ok {
			m.put(k, v)
		}
	}
	return v, ok
}

// Put sets the value of a key.
func (m *Map[K, V]) Put(k K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(k, v)
}

func (m *Map[K, V]) put(k K, v V) {
	if m.young == nil {
		m.half, m.young = DefaultBound/2, map[K]V{}
	}
	if len(m.young) >= m.half {
		m.old, m.young = m.young, make(map[K]V, m.half/8)
	}
	m.young[k] = v
}
