package admin_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// TestNotes: operators write notes about failing origins, which the overview shows and the audit trail keeps.
func TestNotes(t *testing.T) {
	f := start(t, nil)
	origin := f.hold.URL
	f.answerWith(503)
	f.subscribe("alice", "/a", built)
	f.publish(built, "evt_1")
	type overview struct {
		Recent struct {
			Failing []struct {
				Origin string
				Note   *object
			}
		}
	}
	failing := func() (o overview) {
		f.call("op", "GET", "overview", "", 200, &o)
		return o
	}
	f.eventually("the failure", func() bool { return len(failing().Recent.Failing) == 1 })

	t.Run("OPS-11 a note is written, replaced, listed and removed", func(t *testing.T) {
		f.call("op", "PUT", "notes/"+origin, `{"text":"asked them"}`, 200, nil)
		var written object
		f.call("op", "PUT", "notes/"+strings.Replace(origin, "//", "/", 1), `{"text":" their team knows "}`, 200, &written)
		if written["origin"] != origin || written["text"] != "their team knows" || written["by"] != "op" || written["at"] == nil {
			t.Errorf("got %v", written)
		}
		for _, path := range []string{"notes", "notes?origin=" + url.QueryEscape(origin)} {
			expect.Equal(t, path, ids(f.list("op", path), "text"), "their team knows")
		}
		f.sees("op", "notes?origin=https://other.example", 0)
		if got := failing().Recent.Failing[0]; got.Note == nil || (*got.Note)["text"] != "their team knows" {
			t.Errorf("the overview has the note %v", got.Note)
		}
		f.call("op", "DELETE", "notes/"+origin, "", 204, nil)
		f.call("op", "DELETE", "notes/"+origin, "", 204, nil)
		f.sees("op", "notes", 0)
		expect.Equal(t, "the audit trail", ids(f.list("op", "audit?limit=3"), "action"), "note.remove note.write note.write")
	})
	t.Run("OPS-11 a note has 1 to 500 characters and belongs to an origin", func(t *testing.T) {
		for body, want := range map[string]string{
			`{"text":" "}`: "text has 0 characters", `{"text":"` + strings.Repeat("é", 501) + `"}`: "text has 501 characters (allowed: 1 to 500)",
			`{"note":"x"}`: "is not known",
		} {
			if raw := string(f.call("op", "PUT", "notes/"+origin, body, 400, nil)); !strings.Contains(raw, want) {
				t.Errorf("got %s, want %s", raw, want)
			}
		}
		if raw := string(f.call("op", "PUT", "notes/hooks.example.com", `{"text":"x"}`, 400, nil)); !strings.Contains(raw, "is not an origin") {
			t.Errorf("got %s", raw)
		}
	})
	t.Run("OPS-20 owners have no notes", func(t *testing.T) {
		f.call("alice", "GET", "notes", "", 403, nil)
		f.call("alice", "PUT", "notes/"+origin, `{"text":"x"}`, 403, nil)
	})
	t.Run("OPS-07 the name of an erased operator is removed from notes", func(t *testing.T) {
		f.call("op2", "PUT", "notes/"+origin, `{"text":"their team knows"}`, 200, nil)
		f.call("op", "DELETE", "principals/op2", "", 200, nil)
		if n := f.list("op", "notes").Items[0]; n["by"] == "op2" || n["text"] != "their team knows" {
			t.Errorf("got %v, want a pseudonym and the text", n)
		}
	})
}
