package bounded

import "testing"

func TestMapDropsUnusedEntries(t *testing.T) {
	c := NewMap[int, int](100)
	for i := range 10_000 {
		c.Put(i, i)
		if n := len(c.young) + len(c.old); n > 100 {
			t.Fatalf("got %d entries, want at most 100", n)
		}
		if v, ok := c.Get(0); i < 40 && (!ok || v != 0) {
			t.Fatalf("got %d, %v for a key in use, want 0", v, ok)
		}
		if i%20 == 0 {
			c.Put(1, 1)
		}
	}
	if _, ok := c.Get(5000); ok {
		t.Error("got an unused entry, want it dropped")
	}
	if _, ok := c.Get(0); !ok {
		t.Error("got no entry for a key in use")
	}
}
