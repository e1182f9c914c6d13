package mcp

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The log has an item that cannot be decoded between two events. Clients get both events and, in between, a notification of the
// gap, however they read.
func TestClientsAreNotifiedOfEventsThatCannotBeRead(t *testing.T) {
	const uri = "event://ci/deploy"
	broken := func(f *fixture) {
		t.Helper()
		f.publish(uri, `{"n":1}`)
		must(t, f.db.Write(t.Context(), store.Put(store.Item{
			Key: store.Key{Table: store.Log, Partition: eventlog.Own("default", uri).Name(), Sort: store.AtCommit}, Value: []byte("{"),
		})))
		f.publish(uri, `{"n":2}`)
	}
	gap := func(t *testing.T, m frame) {
		t.Helper()
		if text := string(m.sse.Data); m.Method != spec.NoteUpdated || !strings.Contains(text, uri) || !strings.Contains(text, `"`+spec.MetaTruncated+`":true`) {
			t.Errorf("EVX-07: after the first event came %s, want %s of %s with %s", text, spec.NoteUpdated, uri, spec.MetaTruncated)
		}
	}
	t.Run("EVX-06 EVX-07 events/stream is active again and truncated", func(t *testing.T) {
		f := newFixture(t, nil)
		o, first := f.push(alice, "1", "ci.deploy", `{}`, "")
		broken(f)
		var data []string
		for range 3 {
			p := o.pushed()
			if p.Method == spec.NoteEventsActive && p.Params.Truncated != nil && *p.Params.Truncated && p.Params.Cursor != "" && p.Params.Cursor != first.Params.Cursor {
				data = append(data, "gap")
				continue
			}
			data = append(data, string(p.Params.Data))
		}
		if got, want := strings.Join(data, " "), `{"n":1} gap {"n":2}`; got != want {
			t.Errorf("the stream brings %s, want %s", got, want)
		}
	})
	t.Run("EVX-05 EVX-07 events/poll is truncated once", func(t *testing.T) {
		f := newFixture(t, nil)
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		broken(f)
		p := f.poll(alice, "ci.deploy", `{}`, cursor, "")
		if len(p.Events) != 2 || !*p.Truncated || *p.HasMore {
			t.Errorf("the poll returns %+v, want two events, truncated, and no more", p)
		}
		if p = f.poll(alice, "ci.deploy", `{}`, p.Cursor, ""); *p.Truncated {
			t.Error("the next poll is truncated, too")
		}
	})
	t.Run("SUB-08 a listen", func(t *testing.T) {
		f := newFixture(t, nil)
		o := f.listen(alice, "1", `{"resourceSubscriptions":["`+uri+`"]}`)
		o.next()
		broken(f)
		o.next().isEvent(t, uri, `{"n":1}`)
		gap(t, o.next())
		o.next().isEvent(t, uri, `{"n":2}`)
	})
	t.Run("SES-03 the stream of a session", func(t *testing.T) {
		f := newFixture(t, nil)
		id := f.session(alice, spec.V20251125)
		if r := f.sessionBased(alice, id, spec.MethodSubscribe, `"uri":"`+uri+`"`); r.Status != 200 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
		o := f.stream(alice, id, "")
		o.event()
		broken(f)
		o.next().isEvent(t, uri, `{"n":1}`)
		gap(t, o.next())
		o.next().isEvent(t, uri, `{"n":2}`)
	})
}
