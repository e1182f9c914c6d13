package publish

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/catalog/catalogtest"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func inbox(t testing.TB) (*Inbox, *sent) {
	t.Helper()
	s, q := service(t)
	return &Inbox{Service: s, Log: slog.New(slog.DiscardHandler)}, q
}

func message(id, body string) queue.Message {
	return queue.Message{ID: id, Outgoing: queue.Outgoing{Body: []byte(body)}, Received: 1, Sent: noon.Add(-time.Minute)}
}

// deliver has the inbox handle messages, of which none may fail.
func deliver(t *testing.T, b *Inbox, messages ...queue.Message) {
	t.Helper()
	if failed, err := b.Handle(t.Context(), messages); len(failed) > 0 || err != nil {
		t.Fatalf("got failed %v, %v, want none", failed, err)
	}
}

func TestInboxAcceptsEvents(t *testing.T) {
	b, q := inbox(t)
	deliver(t, b,
		message("m1", `{"uri":"event://ci/build-finished","data":1}`),
		message("m2", `[{"uri":"event://ci/build-finished","id":"x","data":2},{"uri":"event://ci/build-finished","data":3,"workspace":"other"}]`),
		message("m3", `{"specversion":"1.0","id":"msg_verification_y","source":"event://ci/build-finished","type":"t","data":4,"workspace":"other"}`),
	)
	var got []string
	for _, e := range q.events(t) {
		got = append(got, e.Workspace+" "+string(e.Data))
		if !event.ValidID(e.ID) || strings.HasPrefix(e.ID, "msg_") || !e.Time.Equal(noon.Add(-time.Minute)) || !e.Published.Equal(noon) {
			t.Errorf("got %+v", e)
		}
	}
	expect.List(t, "the groups", got, []string{"default 1", "default 2", "other 3", "other 4"})
	expect.Len(t, "the dead letters", q.on[queue.Dead], 0)
}

func TestInboxMakesTheSameEventsOfARedeliveredMessage(t *testing.T) {
	b, q := inbox(t)
	array := `[{"uri":"event://ci/build-finished","data":1},{"uri":"event://ci/build-finished","data":1}]`
	for range 2 {
		deliver(t, b, message("m1", array))
	}
	deliver(t, b, message("m2", array))
	m := q.on[queue.Events]
	if m[0].Dedup != m[2].Dedup || m[1].Dedup != m[3].Dedup || m[0].Dedup == m[1].Dedup || m[4].Dedup == m[0].Dedup {
		t.Error("a redelivered message became other events, or two messages became the same")
	}
}

func TestInboxDeadLettersFaultyMessages(t *testing.T) {
	for name, tc := range map[string]struct{ body, reason string }{
		"EVS-07 a schema fault":         {`{"uri":"event://github/a/b/pull_request","data":{"action":"x"}}`, "/data/action: must be one of"},
		"a payload's member twice":      {`[{"uri":"event://ci/build-finished","data":{"a":[{"b":1,"b":2}]}}]`, "/0/data/a/0/b: is given twice"},
		"one bad event of an array":     {`[{"uri":"event://ci/build-finished","data":1},{"uri":"event://x/y","data":1}]`, "/1/uri: belongs to no event type"},
		"AUT-05 an unknown workspace":   {`{"uri":"event://ci/build-finished","data":1,"workspace":"nowhere"}`, "unknown workspace"},
		"AUT-05 a forbidden workspace":  {`{"uri":"event://ci/build-finished","data":1,"workspace":"a/../b"}`, "not the name of a workspace"},
		"a message of control codes":    {"\x00\x01\xff", "is not valid JSON"},
		"a message of the maximum size": {strings.Repeat("\uFFFF", queue.MaxBody/3), "is not valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			b, q := inbox(t)
			deliver(t, b,
				message("m1", `{"uri":"event://ci/build-finished","data":1}`),
				message("m2", tc.body),
				message("m3", `{"uri":"event://ci/build-finished","data":3}`),
			)
			expect.Equal(t, "events of the good messages", len(q.on[queue.Events]), 2)
			dead := q.on[queue.Dead]
			if len(dead) != 1 || len(dead[0].Body) > queue.MaxBody {
				t.Fatalf("got %d dead letters", len(dead))
			}
			l := expect.Value(queue.ParseDeadLetter(dead[0].Body))(t)
			if !strings.Contains(l.Reason, tc.reason) || l.Queue != queue.Inbox || l.Message != "m2" || l.Received != 1 || !l.Sent.Equal(noon.Add(-time.Minute)) || !l.Dead.Equal(noon) {
				t.Errorf("AWS-07: got %+v, want the reason %q", l, tc.reason)
			}
			if body, err := l.Content(); err != nil || string(body) != tc.body {
				t.Errorf("the dead letter does not contain the message: %.100q, %v", body, err)
			}
			expect.True(t, "SQS accepts the characters of the dead letter", !strings.ContainsAny(string(dead[0].Body), "\uFFFE\uFFFF"))
		})
	}
}

func TestADeadLetterHasTheAttributesOfItsMessage(t *testing.T) {
	for name, tc := range map[string]struct {
		value string
		want  int
	}{
		"AWS-07 unchanged": {"orders", 1}, "except those that are too large": {strings.Repeat("x", queue.MaxBody), 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, q := inbox(t)
			m := message("m", "{")
			m.Attributes = map[string]string{"from": tc.value}
			deliver(t, b, m)
			l := expect.Value(queue.ParseDeadLetter(q.on[queue.Dead][0].Body))(t)
			if len(l.Attributes) != tc.want || l.Body != "{" || tc.want > 0 && l.Attributes["from"] != tc.value {
				t.Errorf("got %.200v", l)
			}
		})
	}
}

type failing struct{}

func (failing) Catalog(context.Context, string) (*catalog.Catalog, error) {
	return nil, fault.New(fault.Unavailable, "down")
}

func TestInboxRetriesAfterFailures(t *testing.T) {
	good, bad := message("good", `{"uri":"event://ci/build-finished","data":1}`), message("bad", `{`)
	for name, tc := range map[string]struct {
		change func(*Inbox, *sent)
		want   []string
	}{
		"the catalog is down":      {func(b *Inbox, _ *sent) { b.Service.Catalog = failing{} }, []string{"good"}},
		"the events queue is down": {func(_ *Inbox, q *sent) { q.fail = map[queue.Name]error{queue.Events: io.EOF} }, []string{"good"}},
		"the dead queue is down":   {func(_ *Inbox, q *sent) { q.fail = map[queue.Name]error{queue.Dead: io.EOF} }, []string{"bad"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, q := inbox(t)
			tc.change(b, q)
			failed := expect.Value(b.Handle(t.Context(), []queue.Message{good, bad}))(t)
			expect.List(t, "the failed messages", failed, tc.want)
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"uri":"event://ci/build-finished","data":1}`, `[{"uri":"event://a","data":{}}]`, `[]`, `{"specversion":"1.0","data_base64":5}`,
		`{"specversion":"1.0","id":"1","source":"event://ci/build-finished","type":"x","data":"\uffff"}`, `{"\u0075ri":1}`,
	} {
		f.Add([]byte(s))
	}
	s, _ := service(f)
	cat, _ := s.Catalog.Catalog(f.Context(), auth.DefaultWorkspace)
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := decode(body, true)
		if err != nil {
			if k := fault.KindOf(err); k == fault.Internal {
				t.Fatalf("got %v", err)
			}
			return
		}
		out, accepted, err := s.prepare(cat, auth.DefaultWorkspace, in, &trace.Spans{})
		if err != nil {
			if k := fault.KindOf(err); k == fault.Internal {
				t.Fatalf("got %v", err)
			}
			return
		}
		expect.MustEqual(t, "the number of events", len(out), len(in))
		expect.MustEqual(t, "the number of accepted events", len(accepted), len(in))
		for i, m := range out {
			var e event.Event
			if err := json.Unmarshal(m.Body, &e); err != nil || e.ID != accepted[i].ID || !event.ValidID(e.ID) || strings.HasPrefix(e.ID, "msg_") || len(m.Body) > queue.MaxBody {
				t.Fatalf("got %s, %v", m.Body, err)
			}
			if strings.ContainsAny(string(m.Body), "\uFFFE\uFFFF") {
				t.Fatalf("got %q", m.Body)
			}
		}
	})
}

// A direct sender gets no response, so it would not retry. The inbox must not refuse a message because of an outdated
// catalog.
func TestInboxWithAnOldCatalog(t *testing.T) {
	const later = `events:
  - name: late
    uri: event://late
    payloadSchema: {type: object, properties: {n: {}}}
`
	for name, tc := range map[string]struct{ before, after, body, dead string }{
		"AWS-05 of an event type that was added a moment ago": {types, types + strings.TrimPrefix(later, "events:\n"), `{"uri":"event://late","data":{"n":1}}`, ""},
		"AWS-05 of a schema that was relaxed a moment ago":    {strings.Replace(later, "{}", "{type: string}", 1), later, `{"uri":"event://late","data":{"n":1}}`, ""},
		"AWS-05 of a workspace that is a moment old":          {"", later, `{"uri":"event://late","data":{"n":1}}`, ""},
		"of an event type that is still unknown":              {types, later, `{"uri":"event://x/y","data":{}}`, "/uri: belongs to no event type"},
	} {
		t.Run(name, func(t *testing.T) {
			db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
			defer db.Close()
			apply := func(src string) {
				expect.OK(t, catalogtest.Store(t.Context(), db, "default", expect.Value(catalog.Parse([]byte(src)))(t)))
			}
			b, q := inbox(t)
			stored := catalog.NewStored(db, nil, slog.New(slog.DiscardHandler), nil)
			b.Service.Catalog = stored
			if tc.before != "" {
				apply(tc.before)
			}
			_, _ = stored.Catalog(t.Context(), "default") // fills the cache, as an earlier message would
			apply(tc.after)
			deliver(t, b, message("m1", tc.body))
			reason := ""
			for _, m := range q.on[queue.Dead] {
				reason = expect.Value(queue.ParseDeadLetter(m.Body))(t).Reason
			}
			if reason != tc.dead || len(q.on[queue.Events])+len(q.on[queue.Dead]) != 1 {
				t.Errorf("got %d events and dead letter %q, want %q", len(q.on[queue.Events]), reason, tc.dead)
			}
		})
	}
}

// The events queue drops repetitions of an event for five minutes, so an event that is sent back from a dead letter
// needs a new deduplication id.
func TestInboxSendsEventsBack(t *testing.T) {
	b, q := inbox(t)
	resend := func(letter string) queue.Message {
		out := expect.Value(InboxMessage("default", Input{URI: "event://ci/build-finished", ID: "x", Data: json.RawMessage(`1`), Resend: letter}))(t)
		return message("m"+letter, string(out.Body))
	}
	deliver(t, b, resend(""), resend("letter1"), resend("letter1"), resend("letter2"))
	m := q.on[queue.Events]
	expect.MustEqual(t, "the number of events", len(m), 4)
	if m[0].Dedup == m[1].Dedup || m[1].Dedup != m[2].Dedup || m[2].Dedup == m[3].Dedup {
		t.Errorf("got deduplication ids %q, %q, %q, %q, want one per letter", m[0].Dedup, m[1].Dedup, m[2].Dedup, m[3].Dedup)
	}
	expect.Equal(t, "the group of the second event", m[0].Group, m[1].Group)
	expect.Fault(t, "POST /events with resend", expect.ErrOf(decode([]byte(`{"uri":"event://ci/build-finished","data":1,"resend":"x"}`), false)), fault.Invalid)
}
