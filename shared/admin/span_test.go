package admin_test

import (
	"strings"
	"testing"
)

func TestSpansAndOriginsOfLists(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	origin := f.hold.URL
	t.Run("OPS-01 a span that ends before it begins is refused", func(t *testing.T) {
		for _, path := range []string{"deliveries?", "dead-letters?", "events?name=ci.build_finished&"} {
			raw := string(f.call("op", "GET", path+"since=2026-11-22T12:00:00Z&until=2026-11-22T11:00:00Z", "", 400, nil))
			if !strings.Contains(raw, "until is 2026-11-22T11:00:00Z, which is before since, 2026-11-22T12:00:00Z") {
				t.Errorf("%s: %s", path, raw)
			}
			f.call("op", "GET", path+"since=2026-11-22T12:00:00Z&until=2026-11-22T12:00:00Z", "", 200, nil)
		}
		f.call("op", "POST", "replays", `{"select":{"since":"2026-11-22T12:00:00Z","until":"2026-11-22T11:00:00Z"},"dryRun":true}`, 400, nil)
	})
	t.Run("OPS-01 a time is one of RFC 3339, with small letters too", func(t *testing.T) {
		f.call("op", "GET", "deliveries?since=2026-11-22t12:00:00z", "", 200, nil)
		f.call("op", "GET", "deliveries?since=2026-11-22T12:00:00,5Z", "", 400, nil)
	})
	t.Run("OPS-01 an origin may be spelled with capitals", func(t *testing.T) {
		for _, spelled := range []string{origin, strings.ToUpper(origin), origin + "/"} {
			if got := ids(f.list("op", "subscriptions?origin="+spelled), "id"); got != id {
				t.Errorf("%s: got %q", spelled, got)
			}
		}
	})
}
