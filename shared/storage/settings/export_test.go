package settings

// Len returns the number of documents in memory.
func (c *Cache[T]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}
