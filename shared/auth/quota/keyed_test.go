package quota

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
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
		expect.Equal(t, "a burst", granted("a", 3), 2)
		expect.Equal(t, "the tokens of another key", granted("b", 1), 1)
		time.Sleep(time.Second)
		expect.Equal(t, "the tokens after a second", granted("a", 2), 1)
		time.Sleep(time.Hour)
		expect.Equal(t, "a burst after an hour", granted("a", 3), 2)
	})
}
