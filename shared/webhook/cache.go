package webhook

import "sync"

// cache is a map of bounded size, safe for concurrent use. It keeps two
// generations: when the young one holds half of the bound it becomes the old
// one, and what was not asked for since is forgotten. That costs no list and no
// time stamps, and a hit takes only a read lock.
type cache[K comparable, V any] struct {
	half int

	mu         sync.RWMutex
	young, old map[K]V
}

func newCache[K comparable, V any](bound int) *cache[K, V] {
	return &cache[K, V]{half: max(1, bound/2), young: map[K]V{}}
}

func (c *cache[K, V]) get(k K) (V, bool) {
	c.mu.RLock()
	v, ok := c.young[k]
	promote := false
	if !ok {
		v, promote = c.old[k]
	}
	c.mu.RUnlock()
	if promote {
		c.put(k, v)
	}
	return v, ok || promote
}

func (c *cache[K, V]) put(k K, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.young) >= c.half {
		c.old, c.young = c.young, make(map[K]V, c.half/8)
	}
	c.young[k] = v
}
