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
func (c *Map[K, V]) Get(k K) (V, bool) {
	c.mu.RLock()
	v, ok := c.young[k]
	promote := false
	if !ok {
		v, promote = c.old[k]
	}
	c.mu.RUnlock()
	if promote {
		c.Put(k, v)
	}
	return v, ok || promote
}

// Put keeps a value, in place of another under the same key.
func (c *Map[K, V]) Put(k K, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil {
		c.half, c.young = DefaultBound/2, map[K]V{}
	}
	if len(c.young) >= c.half {
		c.old, c.young = c.young, make(map[K]V, c.half/8)
	}
	c.young[k] = v
}
