package admin_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
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
	expect.Eventually(f, "the dead letters", func() bool { return len(f.list("op", "dead-letters").Items) == 4 })
	f.answerWith(500)
	f.publish(built, "evt_waits")
	f.publish(web, "evt_alone")
	expect.Eventually(f, "the failures", func() bool { return len(f.list("op", "deliveries?outcome=failed").Items) >= 8 })
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
			expect.AtMost(t, fmt.Sprintf("the occurrences of %q in the files", secret), inFiles(t, dir, secret), 0)
		}
		f.call("op", "DELETE", "principals/alice", "", 200, &again)
		if len(again.Counts) != 0 || !again.Complete {
			t.Errorf("once more erased %+v", again)
		}
	})
	t.Run("OPS-07 what is another's stays", func(t *testing.T) {
		expect.Equal(t, "the subscriptions", ids(f.list("op", "subscriptions"), "id"), bobs)
		l := f.list("op", "dead-letters?subscription="+bobs)
		expect.MustEqual(t, "the dead letters", len(l.Items), 1)
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
		expect.True(t, fmt.Sprintf("an entry of the pause is under %v: %v", pseudonym, l.Items), paused)
	})
}

// OPS-08: an erasure keeps the audit entries of others, even if the erased principal has the name of a member of the entries. A second
// erasure finds nothing.
func TestErasePrincipalsNamedLikeMembersOfTheTrail(t *testing.T) {
	names := []string{"api", "events", "target", "principal", "operator", "via"}
	who := map[string]servertest.Caller{"op": callers["op"], "bob": callers["bob"]}
	for _, name := range names {
		who[name] = callers["alice"]
	}
	f := start(t, func(o *standalone.Options) { o.Config = servertest.Config(t, who, "") })
	id := f.subscribe("bob", "/b", built)
	f.call("op", "POST", "subscriptions/"+id+"/pause", `{"reason":"maintenance"}`, 200, nil)
	f.call("op", "DELETE", "subscriptions/"+id, "", 204, nil)
	before := f.list("op", "audit").Items
	expect.Equal(t, "entries before the erasures", len(before), 2)
	for _, name := range names {
		mine := f.subscribe(name, "/mine", built)
		f.call(name, "POST", "subscriptions/"+mine+"/pause", "", 200, nil)
		for _, want := range []int{1, 0} {
			var got struct{ Counts map[string]int }
			f.call("op", "DELETE", "principals/"+name, "", 200, &got)
			expect.Equal(t, "OPS-07 the entries of "+name, got.Counts["auditEntries"], want)
		}
	}
	after := f.list("op", "audit").Items
	if n := len(after); n < 2 || !reflect.DeepEqual(after[n-2:], before) {
		t.Errorf("OPS-08 got %v, want the entries about bob's subscription unchanged: %v", after, before)
	}
}

// interrupted is a store that fails in the middle of a WriteAll: of the first one in the first run, of the second one in the second run,
// and so on.
type interrupted struct {
	store.DB
	runs, calls int
}

func (db *interrupted) WriteAll(ctx context.Context, ops ...store.Op) error {
	if db.calls++; db.calls != db.runs {
		return db.DB.WriteAll(ctx, ops...)
	}
	return errors.Join(db.DB.WriteAll(ctx, ops[:len(ops)/2]...), context.Canceled)
}

// OPS-07 WHK-21: several runs that end early, at their limit or because of an error, erase as much as one run.
func TestEraseInSeveralRuns(t *testing.T) {
	const events = 20
	for name, most := range map[string]int{"that reach their limit": events, "that are interrupted": 0} {
		t.Run("OPS-07 "+name, func(t *testing.T) {
			var dir string
			f := start(t, func(o *standalone.Options) { dir = o.Data })
			f.subscribe("alice", "/secret-path", built)
			f.answerWith(500)
			for i := range events {
				f.publish(built, fmt.Sprint("evt_", i))
			}
			expect.Eventually(f, "the failures", func() bool { return len(f.list("op", "deliveries?outcome=failed").Items) >= events })
			expect.OK(t, f.s.Shutdown(t.Context()))
			file := expect.Value(sqlite.Open(filepath.Join(dir, "mcpevents.db"), sqlite.Options{}))(t)
			db := &interrupted{DB: file}
			subscriptions := &subscription.Service{Store: subscription.Store{DB: db}, Catalog: catalog.NewStored(db, nil, nil, nil), Log: &eventlog.Log{DB: db}}
			operations := deadletter.NewOperations(deadletter.Options{DB: db, Log: slog.New(slog.DiscardHandler)})
			e := &erase.Eraser{
				DB: db, Subscriptions: subscriptions, Lists: &subscription.Lists{DB: db}, Operations: operations,
				Replays: &deadletter.Replays{Operations: operations, Subscriptions: subscriptions},
				Trail:   &audit.Trail{DB: db}, Most: most,
			}
			for runs := 0; ; runs++ {
				if db.calls = 0; most == 0 {
					db.runs++
				}
				done, err := e.Erase(t.Context(), "default", "alice", false)
				if err == nil && done.Complete {
					break
				}
				if runs == 100 {
					t.Fatalf("after %d runs: %+v, %v", runs, done, err)
				}
			}
			for i := range events {
				body := state.BodyKey("default", event.Event{URI: built, ID: fmt.Sprint("evt_", i)}.Key())
				if expect.Value(store.One(t.Context(), file, body, "read an event"))(t) != nil {
					t.Errorf("WHK-21 the event %d is still stored for the principal's deliveries", i)
				}
			}
			left, _, err := records.List(t.Context(), file, "default", records.Query{}, "", events)
			expect.OK(t, err)
			expect.Equal(t, "OPS-07 records of the workspace that are left", len(left), 0)
			expect.OK(t, file.Close())
		})
	}
}

// OPS-07: an erasure removes a principal's subscriptions to events of backends, with the principal's token, and keeps the
// subscriptions of other principals.
func TestEraseDemandsForEventsOfBackends(t *testing.T) {
	var o standalone.Options
	f := start(t, func(with *standalone.Options) {
		with.Config = servertest.Config(t, callers, "backends: [{name: shop, url: 'http://127.0.0.1:1/mcp', forwardToken: true}]\n")
		o = *with
	})
	f.inStore(o, func(db store.DB) {
		r := demand.New(db)
		r.Start, r.Key = time.Millisecond, func(context.Context) ([]byte, error) { return make([]byte, 32), nil }
		for _, who := range []string{"alice", "bob"} {
			ctx := auth.WithToken(t.Context(), auth.Token{Header: "Bearer " + who})
			expect.OK(t, r.Want(ctx, "default", who, "event://~shop/shipped/e30."+catalog.CallerID(who)))
		}
	})
	for _, query := range []string{"?dryRun=true", ""} {
		var got struct{ Counts map[string]int }
		f.call("op", "DELETE", "principals/alice"+query, "", 200, &got)
		expect.Equal(t, "OPS-07 the demands"+query, got.Counts["demands"], 1)
	}
	f.inStore(o, func(db store.DB) {
		for who, want := range map[string]int{"alice": 0, "bob": 1} {
			n := 0
			expect.OK(t, demand.EachOf(t.Context(), db, "default", "shop", who, func(store.Key) error { n++; return nil }))
			expect.Equal(t, "OPS-07 the demands of "+who+" that are left", n, want)
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

// OPS-07: an operator who is erased no longer appears in the switches that they set, and in the consents that they gave for others. Both
// stay. If another principal decided again afterwards, that decision stays as it is. The operator's own consent is removed.
func TestEraseAnOperator(t *testing.T) {
	const both = "events:operate, events:read, consent:manage"
	var dir string
	f := start(t, func(o *standalone.Options) {
		dir = o.Data
		o.Config = servertest.Config(t, map[string]servertest.Caller{
			"op": {Workspace: "default", Scopes: both}, "second": {Workspace: "default", Scopes: both}, "alice": callers["alice"],
		}, "conversation: {userMessages: true, providers: [{name: notes, url: 'http://127.0.0.1:1/notes'}]}\n")
	})
	consent := func(caller, method, path string) string {
		r := expect.Value(http.NewRequestWithContext(t.Context(), method, f.s.URL+"/consent"+path, http.NoBody))(t)
		r.Header.Set("Authorization", "Bearer "+caller)
		resp := expect.Value(http.DefaultClient.Do(r))(t)
		defer func() { _ = resp.Body.Close() }()
		body := string(expect.Value(io.ReadAll(resp.Body))(t))
		expect.MustEqual(t, method+" "+path+" "+body, resp.StatusCode, http.StatusOK)
		return body
	}
	consent("second", "PUT", "/notes")
	consent("second", "PUT", "/notes?principal=alice")
	consent("second", "PUT", "/notes?principal=bob")
	consent("op", "DELETE", "/notes?principal=bob")
	id := f.subscribe("alice", "/a", built)
	for _, name := range []string{"subscription/" + id, "event/ci.build_finished", "all"} {
		f.call("second", "PUT", "switches/"+name, `{"reason":"maintenance"}`, 200, nil)
	}
	for _, query := range []string{"?dryRun=true", ""} {
		var got struct{ Counts map[string]int }
		f.call("op", "DELETE", "principals/second"+query, "", 200, &got)
		expect.Equal(t, "OPS-07 the switches of the operator", got.Counts["switches"], 3)
		expect.Equal(t, "OPS-07 the consents of and by the operator", got.Counts["consents"], 3)
	}
	expect.Contains(t, "OPS-07 the consent of the operator", consent("op", "GET", "?principal=second"), `"consent":null`)
	expect.Contains(t, "OPS-07 the consent for alice", consent("op", "GET", "?principal=alice"), `"given":true`, `"by":"erased:`)
	expect.Contains(t, "OPS-07 the later consent for bob", consent("op", "GET", "?principal=bob"), `"given":false`, `"by":"op"`)
	paused := f.list("op", "switches").Items
	expect.Equal(t, "OPS-07 the switches afterwards", len(paused), 3)
	for _, sw := range paused {
		if by, _ := sw["by"].(string); !strings.HasPrefix(by, "erased:") || sw["reason"] != "maintenance" || sw["operator"] != true {
			t.Errorf("OPS-07 got %v, want the same switch by a pseudonym", sw)
		}
	}
	expect.Equal(t, "OPS-07 how often the name is in the files", inFiles(t, dir, `"second"`), 0)
}

// OPS-07: an erasure removes a principal's conversation messages from the event log, from its copies for readers of parents, and from
// webhooks that wait. The messages of others stay where they are, and a reader that continues there learns that something is missing.
func TestEraseMessages(t *testing.T) {
	var dir string
	who := map[string]servertest.Caller{}
	for _, name := range []string{"op", "alice", "bob"} {
		c := callers[name]
		c.Scopes += ", conversation"
		who[name] = c
	}
	const uri = "event://conversation/user-message"
	f := start(t, func(o *standalone.Options) {
		dir = o.Data
		o.Catalog = append(o.Catalog, `
  - name: conversation.user_message
    uri: event://conversation/user-message
    description: Said by a user.
    payloadSchema: {type: object}
    access: {scopes: [conversation]}
`...)
		o.Config = servertest.Config(t, who, "conversation: {userMessages: true, events: {userMessage: true}}\n")
	})
	f.answerWith(500)
	f.subscribe("bob", "/bob", uri)
	connect := func(name string) *client.Client {
		return expect.Value(client.Connect(t.Context(), f.s.URL, client.Options{Key: name, Agent: "test/1", Revision: string(spec.V20260728)}))(t)
	}
	bob := connect("bob")
	poll := func(cursor any) (messages []string, next string, truncated bool) {
		var got struct {
			Events    []struct{ Data struct{ Content string } }
			Cursor    string
			Truncated bool
		}
		expect.OK(t, bob.Call(t.Context(), "events/poll", map[string]any{"name": "conversation.user_message", "cursor": cursor}, &got))
		for _, e := range got.Events {
			messages = append(messages, e.Data.Content)
		}
		return messages, got.Cursor, got.Truncated
	}
	_, begin, _ := poll(nil)
	for i, said := range []string{"alice", "bob", "alice"} {
		r := expect.Value(http.NewRequestWithContext(t.Context(), "PUT", f.s.URL+"/consent/events", http.NoBody))(t)
		r.Header.Set("Authorization", "Bearer "+said)
		resp := expect.Value(http.DefaultClient.Do(r))(t)
		_ = resp.Body.Close()
		expect.MustEqual(t, "the consent of "+said, resp.StatusCode, http.StatusOK)
		expect.OK(t, connect(said).Call(t.Context(), "conversation/userMessage", map[string]any{"messageId": fmt.Sprint(i), "content": "larkspur of " + said}, nil))
	}
	expect.Eventually(f, "the messages", func() bool { messages, _, _ := poll(begin); return len(messages) == 3 })
	expect.Eventually(f, "the failures", func() bool { return len(f.list("op", "deliveries?outcome=failed").Items) >= 3 })
	for _, query := range []string{"?dryRun=true", ""} {
		var got struct{ Counts map[string]int }
		f.call("op", "DELETE", "principals/alice"+query, "", 200, &got)
		expect.Equal(t, "the messages"+query, got.Counts["messages"], 2)
		expect.Equal(t, "the bodies"+query, got.Counts["bodies"], 2)
	}
	expect.Equal(t, "how often alice's messages are in the files", inFiles(t, dir, "larkspur of alice"), 0)
	expect.Equal(t, "how often her name is in the files", inFiles(t, dir, "alice"), inFiles(t, dir, "principal: alice"))
	expect.AtLeast(t, "how often bob's message is in the files", inFiles(t, dir, "larkspur of bob"), 1)
	messages, _, truncated := poll(begin)
	expect.List(t, "the messages afterwards", messages, []string{"larkspur of bob"})
	expect.True(t, "the poll says that some are missing", truncated)
}

// inFiles counts a text in the files of the store.
func inFiles(t *testing.T, dir, text string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "mcpevents.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		n += bytes.Count(expect.Value(os.ReadFile(file))(t), []byte(text))
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
			expect.Contains(t, path, raw, "until is 2026-11-22T11:00:00Z, which is before since, 2026-11-22T12:00:00Z")
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
	t.Run("OPS-01 a filter that can match nothing is refused", func(t *testing.T) {
		for _, path := range []string{"subscriptions?", "deliveries?", "dead-letters?", "notes?"} {
			raw := string(f.call("op", "GET", path+"origin=hooks.example.com", "", 400, nil))
			expect.Contains(t, path, raw, `origin is \"hooks.example.com\", which is not an origin`)
		}
		f.call("op", "POST", "replays", `{"select":{"origin":"hooks.example.com"}}`, 400, nil)
		raw := string(f.call("op", "GET", "dead-letters?queue=webhook", "", 400, nil))
		expect.Contains(t, "an unknown queue", raw, `queue is \"webhook\"`)
		for _, queue := range []string{"webhooks", "inbox", "dead", "table:log"} {
			f.sees("op", "dead-letters?queue="+queue, 0)
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
		expect.Contains(t, "OPS-01 "+path, string(f.call("op", "GET", path+sep+"cursor="+next, "", 400, nil)), "the cursor is not from this list")
	}
	expect.Equal(t, "the names on pages of two", ids(f.pages("op", "event-types", 2), "name"), ids(f.list("op", "event-types"), "name"))
}

func TestWhatIsWrongWithARequestIsSaid(t *testing.T) {
	f := start(t, nil)
	expect.Contains(t, "the refusal", string(f.call("op", "PUT", "switches/event/ci.biuld_finished", `{}`, 404, nil)), "ci.biuld_finished")
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
		expect.Contains(t, "the refusal of "+body, string(f.call("op", "POST", "replays", body, 400, nil)), "openapi.json: "+want+`"`)
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
	c := expect.Value(client.Connect(f.Context(), f.s.URL, client.Options{Key: "alice", Agent: "test/1", Webhooks: hooks}))(f)
	sub := expect.Value(c.Subscribe(f.Context(), client.SubscribeOptions{
		Name: "ci.build_finished", Mode: client.ModeWebhook,
		Event: func(context.Context, client.Event) error { return errors.New("not now") },
	}))(f)
	f.Cleanup(func() { _ = sub.Close() })
	for i := range 110 {
		f.publish(built, fmt.Sprint("evt_failed_", i))
	}
	id := ""
	expect.Eventually(f, "the suspension", func() bool {
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
			expect.Contains(t, who, raw, "suspended", "events/subscribe")
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
		expect.Eventually(f, "the end of "+replay, func() bool {
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
		expect.Eventually(f, "the event", func() bool { return ids(f.list("op", "events?name=ci.build_finished&limit=1"), "id") == "evt_later" })
		expect.Eventually(f, "the outcome", func() bool {
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

// TestOwnersLists: OPS-09, of an owner who names no subscription.
func TestOwnersLists(t *testing.T) {
	f := start(t, nil)
	f.subscribe("alice", "/a", built)
	f.subscribe("alice", "/b", built)
	bobs := f.subscribe("bob", "/c", built)
	f.answerWith(413)
	for i := range 5 {
		f.publish(built, fmt.Sprintf("evt_%d", i))
	}
	expect.Eventually(f, "the dead letters", func() bool { return len(f.list("op", "dead-letters").Items) == 15 })
	for _, path := range []string{"deliveries", "dead-letters"} {
		t.Run("OPS-09 OPS-03 an owner pages through all of their own "+path+", newest first, and through nothing else", func(t *testing.T) {
			expect.Eventually(f, "the list of all", func() bool { return len(f.list("op", path).Items) == 15 })
			of := func(l listed) (all []string) {
				for _, it := range l.Items {
					all = append(all, fmt.Sprint(cmp.Or(it["at"], it["dead"]), " ", it["subscription"], " ", it["event"]))
				}
				return all
			}
			got := of(f.pages("alice", path, 3))
			want := slices.DeleteFunc(of(f.list("op", path)), func(line string) bool { return strings.Contains(line, bobs) })
			expect.Len(t, "the items", got, 10)
			expect.List(t, "the items", slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want)))
			for i := 1; i < len(got); i++ {
				if got[i-1][:19] < got[i][:19] {
					t.Errorf("%s comes before %s", got[i-1], got[i])
				}
			}
		})
	}
	f.answerWith(200)
	f.publish(built, "evt_accepted")
	expect.Eventually(f, "the deliveries", func() bool { return len(f.list("op", "deliveries?outcome=delivered").Items) == 3 })
	for range 4 {
		f.subscribe("bob", "/c", "event://incidents")
	}
	f.call("op", "PUT", "switches/all", `{}`, 200, nil)
	f.call("op", "PUT", "switches/event/ci.build_finished", `{}`, 200, nil)
	for path, least := range map[string]int{
		"subscriptions": 7, "deliveries": 18, "dead-letters": 15, "events?name=ci.build_finished": 6, "event-types": 2, "switches": 2, "audit": 2,
		// Filters leave out the newest deliveries, some subscriptions of the principal, and all subscriptions to a parent.
		"deliveries?outcome=failed": 15, "subscriptions?principal=bob&event=ci.build_finished": 1, "events/evt_accepted/outcomes": 3,
	} {
		t.Run("OPS-19 a limit counts the items of "+path, func(t *testing.T) {
			all := len(f.list("op", path).Items)
			expect.AtLeast(t, "the items", all, least)
			expect.Len(t, "the items of the first page of one", f.list("op", path+map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")]+"limit=1").Items, 1)
			for _, limit := range []int{1, 2} {
				expect.Equal(t, fmt.Sprintf("the items on pages of %d", limit), len(f.pages("op", path, limit).Items), all)
			}
		})
	}
}

// SRF-07: an owner cannot have webhooks sent again to an endpoint that answered 410. An operator can.
func TestAnOwnerDoesNotResumeASubscriptionOfAnEndpointThatIsGone(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	f.answerWith(http.StatusGone)
	f.publish(built, "evt_1")
	expect.Eventually(f, "the end of the subscription", func() bool {
		return len(f.list("op", "subscriptions?state=disabled").Items) == 1
	})
	expect.Contains(t, "the reason", string(f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusConflict, nil)), "410 Gone")
	f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
}

// AUT-07: the quota of registrations limits the changes of owners. Changes of operators and reads are not limited.
func TestOwnersChangesHaveARate(t *testing.T) {
	f := start(t, func(o *standalone.Options) { o.Limits.RegistrationRate = 0.1 }) // a burst of one
	id := f.subscribe("alice", "/a", built)
	f.call("alice", http.MethodPost, "subscriptions/"+id+"/pause", "", http.StatusOK, nil)
	expect.Contains(t, "the limit", string(f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusTooManyRequests, nil)), `"limit":"registrationRate"`)
	f.call("alice", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, nil)
	for range 3 {
		f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
		f.call("op", http.MethodPost, "subscriptions/"+id+"/pause", "", http.StatusOK, nil)
	}
}

// TestOriginOfTheConsole: OPS-11. Behind TLS the console's own origin needs no setting; others do.
func TestOriginOfTheConsole(t *testing.T) {
	h := admin.New(admin.Options{Auth: auth.AcceptAll(), Log: slog.New(slog.DiscardHandler)})
	for origin, want := range map[string]int{
		"": 200, "https://events.example.com": 200, "http://events.example.com": 403, "https://other.example.com": 403, "null": 403,
	} {
		r := httptest.NewRequest("GET", "https://events.example.com/admin/v1/openapi.json", nil)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		expect.Equal(t, fmt.Sprintf("OPS-11 the status for origin %q", origin), w.Code, want)
	}
}

// OPS-01 OPS-07: package url leaves out the malformed parts of a query. So a stray character could turn a dry run into an erasure, or show
// a list without its filter.
func TestMalformedQueriesAreRejected(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	for _, x := range []struct{ method, path string }{
		{http.MethodDelete, "principals/alice?dryRun=true;"},
		{http.MethodDelete, "principals/alice?dryRun=true%"},
		{http.MethodGet, "subscriptions?principal=bob;state=active"},
		{http.MethodGet, "dead-letters?event=50%"},
	} {
		expect.Contains(t, "the refusal of "+x.path, string(f.call("op", x.method, x.path, "", http.StatusBadRequest, nil)), "is malformed")
	}
	f.call("op", http.MethodDelete, "principals/alice?dryRun=", "", http.StatusBadRequest, nil)
	expect.Equal(t, "OPS-07 the subscriptions afterwards", ids(f.list("op", "subscriptions"), "id"), id)
	f.sees("op", "subscriptions?principal=b%3Bb%25", 0)
}

// A repeated member could turn a dry run into a replay.
func TestRepeatedMembersAreRejected(t *testing.T) {
	f := start(t, nil)
	for body, name := range map[string]string{
		`{"select":{},"dryRun":true,"dryRun":false}`:       "dryRun",
		`{"select":{},"dryRun":true,"DryRun":false}`:       "DryRun",
		`{"ſelect":{"event":"a"},"select":{}}`:             "select",
		`{"select":{"event":"a","Event":"b"}}`:             "Event",
		`{"select":{},"dryRun":true,"select":{},"rate":1}`: "select",
	} {
		expect.Contains(t, "the refusal of "+body, string(f.call("op", http.MethodPost, "replays", body, http.StatusBadRequest, nil)), name)
	}
}

// A reason is stored in the audit trail for 400 days, so its length is limited as openapi.json says.
func TestReasonsHaveALimit(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	body := func(n int) string { return `{"reason":"` + strings.Repeat("é", n) + `"}` }
	for _, x := range []struct{ who, method, path string }{
		{"alice", http.MethodPost, "subscriptions/" + id + "/pause"},
		{"op", http.MethodPut, "switches/subscription/" + id},
		{"op", http.MethodPut, "switches/all"},
	} {
		expect.Contains(t, x.method+" "+x.path, string(f.call(x.who, x.method, x.path, body(501), http.StatusBadRequest, nil)), "reason has 501 characters")
		f.call(x.who, x.method, x.path, body(500), http.StatusOK, nil)
	}
}

// OPS-09 OPS-06: an operator's pause holds against the owner, even if the owner had paused the subscription before and the operator
// gives no reason.
func TestAnOperatorsPauseReplacesTheOwners(t *testing.T) {
	f := start(t, nil)
	for _, pause := range []struct{ method, path string }{{http.MethodPost, "subscriptions/%s/pause"}, {http.MethodPut, "switches/subscription/%s"}} {
		id := f.subscribe("alice", "/a", built)
		f.call("alice", http.MethodPost, "subscriptions/"+id+"/pause", `{"reason":"moving"}`, http.StatusOK, nil)
		f.call("op", pause.method, fmt.Sprintf(pause.path, id), "", http.StatusOK, nil)
		f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusForbidden, nil)
		var got struct{ State string }
		f.call("op", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, &got)
		expect.Equal(t, "OPS-09 the state after the owner's resume", got.State, "paused")
		f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
	}
}

// OPS-09 OPS-19: an operator's pause still holds after the owner has ended the subscription and subscribed again, until an operator
// resumes it. The owner's own pause ends with the subscription.
func TestASubscriptionIsMadeAgainAfterAPause(t *testing.T) {
	for _, tc := range []struct {
		by, state, shown string
		resume           int
	}{{"op", "paused", "an operator", http.StatusForbidden}, {"alice", "active", "", http.StatusOK}} {
		t.Run("OPS-09 by "+tc.by, func(t *testing.T) {
			f := start(t, nil)
			hold := endpoint(t)
			subscribe := func() string {
				return servertest.SubscribeEvents(t, f.s.URL, "alice", hold.URL+"/200", "ci.build_finished", nil)
			}
			id := subscribe()
			f.call(tc.by, http.MethodPost, "subscriptions/"+id+"/pause", `{"reason":"maintenance"}`, http.StatusOK, nil)
			f.call("alice", http.MethodDelete, "subscriptions/"+id, "", http.StatusNoContent, nil)
			expect.Equal(t, "the id of the second subscription", subscribe(), id)
			var got struct {
				State  string
				Switch struct{ By string }
			}
			f.call("alice", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, &got)
			expect.Equal(t, "the state", got.State, tc.state)
			expect.Equal(t, "OPS-19 who paused it", got.Switch.By, tc.shown)
			f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", tc.resume, nil)
			f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
			f.sees("op", "switches", 0)
			f.call("alice", http.MethodDelete, "subscriptions/"+id, "", http.StatusNoContent, nil)
			subscribe()
			f.sees("op", "subscriptions?state=active", 1)
		})
	}
}

// OPS-09: an owner who resumes a subscription that is disabled, and that an operator paused before, changes nothing. Then an operator
// resumes it completely.
func TestAnOwnerDoesNotEnableASubscriptionThatAnOperatorPaused(t *testing.T) {
	var o standalone.Options
	f := start(t, func(with *standalone.Options) { o = *with })
	id := f.subscribe("alice", "/a", built)
	f.call("op", http.MethodPost, "subscriptions/"+id+"/pause", "", http.StatusOK, nil)
	f.inStore(o, func(db store.DB) {
		service := &subscription.Service{Store: subscription.Store{DB: db}, Catalog: catalog.NewStored(db, nil, nil, nil), Log: &eventlog.Log{DB: db}}
		expect.True(t, "the subscription is disabled", expect.Value(service.Disable(t.Context(), "default", "alice", id, "nearly all deliveries failed", 0))(t))
	})
	var got struct{ State string }
	state := func(want string) {
		t.Helper()
		f.call("alice", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, &got)
		expect.Equal(t, "OPS-09 the state", got.State, want)
	}
	f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusForbidden, nil)
	state("disabled")
	f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
	state("active")
}
