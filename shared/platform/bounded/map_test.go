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

// A reader finds a value in the old generation, and before it moves the value to the young one, a writer puts a newer value.
func TestAReaderKeepsANewerValue(t *testing.T) {
	for _, between := range []int{0, 2} { // other keys that are put after the newer value; 2 begin another generation
		m := NewMap[string, int](4)
		for i, k := range []string{"key", "a", "b"} {
			m.Put(k, i)
		}
		if _, isOld := m.old["key"]; !isOld {
			t.Fatal("the key is not in the old generation")
		}
		m.Put("key", 100)
		for i := range between {
			m.Put(string(rune('c'+i)), 0)
		}
		if v, ok := m.promote("key"); !ok || v != 100 {
			t.Errorf("the reader got %d, %v, want the newer value", v, ok)
		}
		if v, ok := m.Get("key"); !ok || v != 100 {
			t.Errorf("got %d, %v afterwards, want the newer value", v, ok)
		}
	}
}
