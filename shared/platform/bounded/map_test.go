package bounded

import "testing"

func TestMapForgetsWhatIsNotUsed(t *testing.T) {
	c := NewMap[int, int](100)
	for i := range 10_000 {
		c.Put(i, i)
		if n := len(c.young) + len(c.old); n > 100 {
			t.Fatalf("holds %d of 100", n)
		}
		if v, ok := c.Get(0); i < 40 && (!ok || v != 0) {
			t.Fatal("forgets what is in use")
		}
		if i%20 == 0 {
			c.Put(1, 1)
		}
	}
	if _, ok := c.Get(5000); ok {
		t.Error("remembers what was not asked for")
	}
	if _, ok := c.Get(0); !ok {
		t.Error("forgot what was asked for all the time")
	}
}
