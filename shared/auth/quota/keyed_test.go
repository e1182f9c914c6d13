package quota

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestKeyedBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewKeyed[string](1, 2, 100)
		granted := func(host string, tries int) (n int) {
			for range tries {
				if l.Get(host).Allow() {
					n++
				}
			}
			return n
		}
		if n := granted("a", 3); n != 2 {
			t.Errorf("got a burst of %d, want 2", n)
		}
		if n := granted("b", 1); n != 1 {
			t.Errorf("got %d for another key, want 1", n)
		}
		time.Sleep(time.Second)
		if n := granted("a", 2); n != 1 {
			t.Errorf("got %d after a second, want 1", n)
		}
		time.Sleep(time.Hour)
		if n := granted("a", 3); n != 2 {
			t.Errorf("got a burst of %d after an hour, want 2", n)
		}
	})
}
