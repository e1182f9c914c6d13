package gateway

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// GWN-04, GWN-05: during a flood of notifications, list changes are coalesced and the last one is announced when the flood is
// over. Updates without a subscriber are dropped and counted.
func TestFloodsAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const flood = 3000
		s := newScripted(t)
		db := memory(t)
		g, other := gatewayOver(t, db, at("b", s)), gatewayOver(t, db, at("b", s))
		subscribe(t, g, wants("x://asked", "s"))
		l := newLog()
		relaying(t, "r", g, l)
		s.only(t, 1)
		// Each subscription that takes effect is announced as one update, before or after the mark.
		if asked := func(text string) bool { return strings.Contains(text, "x://asked") }; !slices.ContainsFunc(l.until(t, s), asked) {
			for !asked(l.next(t)) {
			}
		}
		other.List(t.Context(), statelessClient(ann), api.Tools)
		for range flood {
			s.notify(toolsChanged)
			s.notify(updated("x://none"))
		}
		s.list(oneTool("new"))
		s.notify(toolsChanged)
		s.notify(updated("x://asked"))
		changed, unasked, asked := 0, 0, false
		for deadline := time.After(patience); !asked; {
			select {
			case text := <-l:
				asked = strings.Contains(text, "x://asked")
				if strings.Contains(text, "tools/list_changed") {
					changed++
				} else if !asked {
					unasked++
				}
			case <-deadline:
				t.Fatal("the update that was asked for did not come")
			}
		}
		if changed > 50+20 || unasked > 1000 {
			t.Errorf("of %d each, %d changes and %d updates that nothing asked for were announced", flood, changed, unasked)
		}
		if n := g.Dropped()["default/b"]["an update that no client subscribed to"]; n != flood-int64(unasked) {
			t.Errorf("%d updates were counted as dropped, %d announced", n, unasked)
		}
		// The last change is held back, unless it arrived at the moment when another announcement was allowed.
		for !slices.Equal(names(other.List(t.Context(), statelessClient(ann), api.Tools)), []string{"new"}) {
			for !strings.Contains(l.next(t), "list_changed") {
			}
		}
	})
}
