package admin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestErase: OPS-07 and WHK-21, against the files of the store.
func TestErase(t *testing.T) {
	var dir string
	f := start(t, func(o *standalone.Options) { dir = o.Data })
	const web = "event://incidents/web/created"
	one := f.subscribe("alice", "/secret-path-a", built)
	two := f.subscribe("alice", "/secret-path-b", web)
	gone := f.subscribe("alice", "/secret-path-c", built)
	bobs := f.subscribe("bob", "/bob", built)
	f.answerWith(413)
	f.publish(built, "evt_dead")
	f.publish(web, "evt_alone_dead")
	f.eventually("the dead letters", func() bool { return len(f.list("op", "dead-letters").Items) == 4 })
	f.answerWith(500)
	f.publish(built, "evt_waits")
	f.publish(web, "evt_alone")
	f.eventually("the failures", func() bool { return len(f.list("op", "deliveries?outcome=failed").Items) >= 8 })
	f.call("op", "POST", "subscriptions/"+one+"/pause", `{"reason":"alice asked"}`, 200, nil)
	f.call("op", "POST", "replays", `{"select":{"subscription":"`+two+`","until":"2020-01-01T00:00:00Z"}}`, 202, nil)
	f.call("op", "DELETE", "subscriptions/"+gone, "", 204, nil)
	c := expect.Value(client.Connect(t.Context(), f.s.URL, client.Options{Key: "alice", Agent: "test/1", Revision: string(spec.V20251125)}))(t)
	if err := c.Call(t.Context(), spec.MethodResources, nil, nil); err != nil { // in a session
		t.Fatal(err)
	}
	type answer struct {
		DryRun, Complete bool
		Counts           map[string]int
	}
	var counted, erased, again answer
	t.Run("OPS-07 a dry run tells the counts and changes nothing", func(t *testing.T) {
		f.call("op", "DELETE", "principals/alice?dryRun=true", "", 200, &counted)
		want := map[string]int{"subscriptions": 2, "deadLetters": 3, "sessions": 1, "replays": 1, "bodies": 2, "quotas": 1}
		for kind, n := range want {
			expect.Equal(t, kind, counted.Counts[kind], n)
		}
		if !counted.DryRun || !counted.Complete || counted.Counts["records"] < 6 || counted.Counts["deliveries"] < 6 || counted.Counts["auditEntries"] < 3 {
			t.Errorf("got %+v, want a complete dry run with at least 6 records, 6 deliveries and 3 audit entries", counted)
		}
		expect.Equal(t, "subscriptions that are left", len(strings.Fields(ids(f.list("op", "subscriptions?principal=alice"), "id"))), 2)
	})
	t.Run("OPS-01 only an operator may, in their workspace", func(t *testing.T) {
		f.call("bob", "DELETE", "principals/alice", "", 403, nil)
		f.call("alice", "DELETE", "principals/alice", "", 403, nil)
		f.call("op", "DELETE", "principals/op", "", 409, nil)
		f.call("op", "DELETE", "principals/alice?dryRun=maybe", "", 400, nil)
		var none answer
		f.call("foreign", "DELETE", "principals/alice", "", 200, &none)
		if len(none.Counts) != 0 || !none.Complete {
			t.Errorf("another workspace erased %v", none)
		}
	})
	t.Run("OPS-07 WHK-21 afterwards the files have nothing of it", func(t *testing.T) {
		f.call("op", "DELETE", "principals/alice?dryRun=false", "", 200, &erased)
		if erased.DryRun || !erased.Complete || erased.Counts["subscriptions"] != 2 || erased.Counts["bodies"] != 2 {
			t.Errorf("erased %+v, counted %+v", erased, counted)
		}
		// The configuration names who has keys.
		expect.Equal(t, "how often its name is in the files", inFiles(t, dir, "alice"), inFiles(t, dir, "principal: alice"))
		for _, secret := range []string{one, two, gone, "secret-path"} {
			if n := inFiles(t, dir, secret); n > 0 {
				t.Errorf("%q is in the files %d times", secret, n)
			}
		}
		f.call("op", "DELETE", "principals/alice", "", 200, &again)
		if len(again.Counts) != 0 || !again.Complete {
			t.Errorf("once more erased %+v", again)
		}
	})
	t.Run("OPS-07 what is another's stays", func(t *testing.T) {
		expect.Equal(t, "the subscriptions", ids(f.list("op", "subscriptions"), "id"), bobs)
		l := f.list("op", "dead-letters?subscription="+bobs)
		if len(l.Items) != 1 {
			t.Fatalf("got %v, want one dead letter", l)
		}
		f.answerWith(0)
		f.call("op", "POST", "dead-letters/"+url.PathEscape(l.Items[0]["id"].(string))+"/retry", "", 202, nil)
	})
	t.Run("OPS-08 the trail tells of it, by a pseudonym", func(t *testing.T) {
		l := f.list("op", "audit")
		if len(l.Items) < 4 || l.Items[1]["action"] != "principal.erase" || l.Items[1]["by"] != "op" {
			t.Fatalf("got %v, want an erasure by op", l.Items)
		}
		pseudonym := l.Items[1]["target"]
		paused := false
		for _, it := range l.Items {
			paused = paused || it["action"] == "subscription.pause" && it["target"] == pseudonym && it["by"] == "op"
		}
		if !paused {
			t.Errorf("no entry of the pause under %v: %v", pseudonym, l.Items)
		}
	})
}

// OPS-07: without authentication there is one principal, which is the operator too, and can be erased.
func TestEraseWithoutAuthentication(t *testing.T) {
	f := start(t, func(o *standalone.Options) { o.Auth, o.Config = auth.ModeNone, nil })
	f.subscribe("", "/a", built)
	for _, want := range []struct {
		query               string
		subscriptions, left int
	}{{"?dryRun=true", 1, 1}, {"", 1, 0}, {"", 0, 0}} {
		var got struct {
			Complete bool
			Counts   map[string]int
		}
		f.call("", "DELETE", "principals/anonymous"+want.query, "", 200, &got)
		if left := len(f.list("", "subscriptions").Items); !got.Complete || got.Counts["subscriptions"] != want.subscriptions || left != want.left {
			t.Errorf("%q: got %+v, and %d are left", want.query, got, left)
		}
	}
}

// OPS-07: an operator who is erased no longer appears in the switches that they set. The switches stay.
func TestEraseAnOperator(t *testing.T) {
	var dir string
	f := start(t, func(o *standalone.Options) {
		dir = o.Data
		o.Config = servertest.Config(t, map[string]servertest.Caller{
			"op": callers["op"], "alice": callers["alice"], "second": {Workspace: "default", Scopes: "events:operate"},
		}, "")
	})
	id := f.subscribe("alice", "/a", built)
	for _, name := range []string{"subscription/" + id, "event/ci.build_finished", "all"} {
		f.call("second", "PUT", "switches/"+name, `{"reason":"maintenance"}`, 200, nil)
	}
	for _, query := range []string{"?dryRun=true", ""} {
		var got struct{ Counts map[string]int }
		f.call("op", "DELETE", "principals/second"+query, "", 200, &got)
		expect.Equal(t, "OPS-07 the switches of the operator", got.Counts["switches"], 3)
	}
	paused := f.list("op", "switches").Items
	expect.Equal(t, "OPS-07 the switches afterwards", len(paused), 3)
	for _, sw := range paused {
		if by, _ := sw["by"].(string); !strings.HasPrefix(by, "erased:") || sw["reason"] != "maintenance" || sw["operator"] != true {
			t.Errorf("OPS-07 got %v, want the same switch by a pseudonym", sw)
		}
	}
	expect.Equal(t, "OPS-07 how often the name is in the files", inFiles(t, dir, `"second"`), 0)
}

// inFiles counts a text in the files of the store.
func inFiles(t *testing.T, dir, text string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "mcpevents.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b := expect.Value(os.ReadFile(file))(t)
		n += bytes.Count(b, []byte(text))
	}
	return n
}

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
			expect.Equal(t, spelled, ids(f.list("op", "subscriptions?origin="+spelled), "id"), id)
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
	expect.Equal(t, "the names on pages of two", names, " "+ids(f.list("op", "event-types"), "name"))
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

// suspend creates a subscription of MCP Events whose endpoint fails with every event, waits until it is suspended, and returns its
// id.
func suspend(f *fixture) string {
	f.Helper()
	hooks := &client.Handler{}
	hold := httptest.NewServer(hooks)
	f.Cleanup(hold.Close)
	hooks.URL = hold.URL
	c, err := client.Connect(f.Context(), f.s.URL, client.Options{Key: "alice", Agent: "test/1", Webhooks: hooks})
	if err != nil {
		f.Fatal(err)
	}
	sub, err := c.Subscribe(f.Context(), client.SubscribeOptions{
		Name: "ci.build_finished", Mode: client.ModeWebhook,
		Event: func(context.Context, client.Event) error { return errors.New("not now") },
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = sub.Close() })
	for i := range 110 {
		f.publish(built, fmt.Sprint("evt_failed_", i))
	}
	id := ""
	f.eventually("the suspension", func() bool {
		id = ids(f.list("op", "subscriptions?state=suspended"), "id")
		return id != ""
	})
	return id
}

func TestASuspendedSubscription(t *testing.T) {
	f := start(t, func(o *standalone.Options) { o.Limits.EventsSchedule = []time.Duration{0} })
	began := time.Now().Add(-time.Minute)
	id := suspend(f)
	t.Run("OPS-02 resume says that the subscriber must refresh the subscription", func(t *testing.T) {
		for _, who := range []string{"op", "alice"} {
			raw := string(f.call(who, "POST", "subscriptions/"+id+"/resume", "", 409, nil))
			if !strings.Contains(raw, "suspended") || !strings.Contains(raw, "events/subscribe") {
				t.Errorf("%s: %s", who, raw)
			}
		}
	})
	t.Run("OPS-02 one that is paused too is resumed, and suspended then", func(t *testing.T) {
		var got object
		f.call("op", "POST", "subscriptions/"+id+"/pause", `{"reason":"moving"}`, 200, &got)
		f.call("op", "POST", "subscriptions/"+id+"/resume", "", 200, &got)
		expect.Equal(t, "the state", got["state"], "suspended")
	})
	job := func(what string) (got object) {
		f.call("op", "POST", "replays", what, 202, &got)
		replay := fmt.Sprint("replays/", got["id"])
		f.eventually("the end of "+replay, func() bool {
			f.call("op", "GET", replay, "", 200, &got)
			return got["state"] == "done"
		})
		return got
	}
	t.Run("OPS-04 a replay of events says how many it did not send, and why", func(t *testing.T) {
		got := job(fmt.Sprintf(`{"select":{"events":true,"subscription":%q,"since":%q}}`, id, began.Format(time.RFC3339)))
		if got["replayed"] != 0.0 || got["skipped"] != 110.0 || fmt.Sprint(got["skippedBecause"]) != "map[suspended:110]" {
			t.Errorf("got %v, want 0 replayed and 110 skipped because they are suspended", got)
		}
	})
	t.Run("OPS-17 the outcome of an event says that its subscription is suspended", func(t *testing.T) {
		f.publish(built, "evt_later")
		f.eventually("the event", func() bool { return ids(f.list("op", "events?name=ci.build_finished&limit=1"), "id") == "evt_later" })
		f.eventually("the outcome", func() bool {
			got := f.outcome("evt_later", id)
			return got["outcome"] == "suspended" && strings.Contains(fmt.Sprint(got["why"]), "nearly all deliveries of an hour failed")
		})
	})
	count := func() int {
		var got struct{ Count int }
		f.call("op", "POST", "replays", fmt.Sprintf(`{"select":{"subscription":%q},"dryRun":true}`, id), 200, &got)
		return got.Count
	}
	t.Run("OPS-04 a replay of dead letters leaves them, and says so", func(t *testing.T) {
		letters := count()
		got := job(fmt.Sprintf(`{"select":{"subscription":%q},"rate":1000}`, id))
		if letters == 0 || got["replayed"] != 0.0 || got["skipped"] != float64(letters) || fmt.Sprint(got["skippedBecause"]) != fmt.Sprintf("map[suspended:%d]", letters) {
			t.Errorf("%d letters: got %v", letters, got)
		}
		expect.Equal(t, "letters that are left", count(), letters)
	})
	t.Run("OPS-04 of one that has ended meanwhile, too", func(t *testing.T) {
		letters := count()
		f.call("op", "DELETE", "subscriptions/"+id, "", 204, nil)
		got := job(fmt.Sprintf(`{"select":{"subscription":%q},"rate":50}`, id))
		expect.Equal(t, fmt.Sprintf("%d letters that were skipped", letters), fmt.Sprint(got["skippedBecause"]), fmt.Sprintf("map[ended:%d]", letters))
	})
}
