package admin_test

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
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
	c, err := client.Connect(t.Context(), f.s.URL, client.Options{Key: "alice", Agent: "test/1", Revision: string(spec.V20251125)})
	if err != nil {
		t.Fatal(err)
	}
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
			if counted.Counts[kind] != n {
				t.Errorf("%d %s, want %d", counted.Counts[kind], kind, n)
			}
		}
		if !counted.DryRun || !counted.Complete || counted.Counts["records"] < 6 || counted.Counts["deliveries"] < 6 || counted.Counts["auditEntries"] < 3 {
			t.Errorf("got %+v, want a complete dry run with at least 6 records, 6 deliveries and 3 audit entries", counted)
		}
		if got := ids(f.list("op", "subscriptions?principal=alice"), "id"); len(strings.Fields(got)) != 2 {
			t.Errorf("left are %s", got)
		}
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
		if n, keys := inFiles(t, dir, "alice"), inFiles(t, dir, "principal: alice"); n != keys {
			t.Errorf("its name is in the files %d times, and in the configuration %d", n, keys)
		}
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
		if got := ids(f.list("op", "subscriptions"), "id"); got != bobs {
			t.Errorf("got %s, want %s", got, bobs)
		}
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

// inFiles counts a text in the files of the store.
func inFiles(t *testing.T, dir, text string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "mcpevents.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n += bytes.Count(b, []byte(text))
	}
	return n
}
