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
		for _, path := range []string{"deliveries?", "dead-letters?", "events?name=ci.build_finished&", "audit?", "sources/ci/outcomes?"} {
			raw := string(f.call("op", "GET", path+"since=2026-11-22T12:00:00Z&until=2026-11-22T11:00:00Z", "", 400, nil))
			if !strings.Contains(raw, "until is 2026-11-22T11:00:00Z, which is before since, 2026-11-22T12:00:00Z") {
				t.Errorf("%s: %s", path, raw)
			}
			if path != "sources/ci/outcomes?" { // there is no such source
				f.call("op", "GET", path+"since=2026-11-22T12:00:00Z&until=2026-11-22T12:00:00Z", "", 200, nil)
			}
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

func TestCursorsAreForTheirList(t *testing.T) {
	f := start(t, nil)
	f.subscribe("alice", "/a", built)
	f.subscribe("alice", "/b", built)
	next := f.list("op", "subscriptions?limit=1").Next
	if got := f.list("op", "subscriptions?limit=1&cursor="+next); len(got.Items) != 1 || got.Next != "" {
		t.Errorf("the second page of subscriptions is %v", got)
	}
	for _, path := range []string{"deliveries", "dead-letters", "audit", "switches", "sources", "backends", "event-types", "events?name=ci.build_finished"} {
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		if raw := string(f.call("op", "GET", path+sep+"cursor="+next, "", 400, nil)); !strings.Contains(raw, "the cursor is not from this list") {
			t.Errorf("OPS-01 %s with the cursor of another list: %s", path, raw)
		}
	}
	names := ""
	for at := "event-types?limit=2"; at != ""; {
		page := f.list("op", at)
		if names += " " + ids(page, "name"); len(page.Items) > 2 {
			t.Errorf("a page has %d event types", len(page.Items))
		}
		if at = ""; page.Next != "" {
			at = "event-types?limit=2&cursor=" + page.Next
		}
	}
	if all := ids(f.list("op", "event-types"), "name"); names != " "+all {
		t.Errorf("pages of two have%s, all are %s", names, all)
	}
}

func TestWhatIsWrongWithARequestIsSaid(t *testing.T) {
	f := start(t, nil)
	if raw := string(f.call("op", "PUT", "switches/event/ci.biuld_finished", `{}`, 404, nil)); !strings.Contains(raw, "ci.biuld_finished") {
		t.Errorf("the answer does not name it: %s", raw)
	}
	f.call("op", "PUT", "switches/event/ci.build_finished", `{}`, 200, nil)
	f.call("op", "DELETE", "switches/event/ci.biuld_finished", "", 204, nil)
	for body, want := range map[string]string{
		`{"select":5}`:             "select has the wrong type, number",
		`[]`:                       "it has the wrong type, array",
		`{"dryRun":"x"}`:           "dryRun has the wrong type, string",
		`{"select":{"since":"x"}}`: `\"x\" is not a time (e.g. 2026-11-22T12:00:00Z)`,
		`{"selct":{}}`:             `the member \"selct\" is not known`,
		`{"select":`:               "it is not valid JSON",
	} {
		if raw := string(f.call("op", "POST", "replays", body, 400, nil)); !strings.Contains(raw, "openapi.json: "+want+`"`) {
			t.Errorf("%s: got %s", body, raw)
		}
	}
}
