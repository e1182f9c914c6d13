// Package bounded holds a map that forgets: for what is worth keeping in memory as long
// as it is used, and can be had again.
package bounded

import "sync"

// Map is a map of bounded size, safe for concurrent use. It keeps two
// generations: when the young one holds half of the bound it becomes the old
// one, and what was not asked for since is forgotten. That costs no list and no
// time stamps, and a hit takes only a read lock. The zero value holds [DefaultBound]
// entries.
type Map[K comparable, V any] struct {
	half int

	mu         sync.RWMutex
	young, old map[K]V
}

// DefaultBound is the bound of a zero [Map].
const DefaultBound = 8192

// NewMap makes a map of at most bound entries.
func NewMap[K comparable, V any](bound int) *Map[K, V] {
	return &Map[K, V]{half: max(1, bound/2), young: map[K]V{}}
}

// Get finds what is kept under a key.
func (m *Map[K, V]) Get(k K) (V, bool) {
	m.mu.RLock()
	v, ok := m.young[k]
	promote := false
	if !ok {
		v, promote = m.old[k]
	}
	m.mu.RUnlock()
	if promote {
		m.Put(k, v)
	}
	return v, ok || promote
}

// Put keeps a value, in place of another under the same key.
func (m *Map[K, V]) Put(k K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.young == nil {
		m.half, m.young = DefaultBound/2, map[K]V{}
	}
	if len(m.young) >= m.half {
		m.old, m.young = m.young, make(map[K]V, m.half/8)
	}
	m.young[k] = v
}
