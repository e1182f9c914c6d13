package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

const types = `events:
  - name: github.pull_request
    uriTemplate: event://github/{owner}/{repo}/pull_request
    paramsSchema: {type: object, properties: {owner: {pattern: "^[a-z0-9-]+$"}}}
    payloadSchema:
      type: object
      required: [action]
      properties: {action: {enum: [opened, closed]}, number: {type: integer}}
  - {name: ci.build_finished, uri: "event://ci/build-finished"}
  - {name: ci.line, uri: "event://ci/line", order: none}
`

// sent is a queue that keeps the sent messages.
type sent struct {
	mu   sync.Mutex
	on   map[queue.Name][]queue.Outgoing
	fail map[queue.Name]error
}

func (s *sent) Send(_ context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.fail[q]; err != nil {
		return err
	}
	if s.on == nil {
		s.on = map[queue.Name][]queue.Outgoing{}
	}
	s.on[q] = append(s.on[q], msgs...)
	return nil
}

func (s *sent) events(t testing.TB) []event.Event {
	t.Helper()
	var out []event.Event
	for _, m := range s.on[queue.Events] {
		var e event.Event
		expect.OK(t, json.Unmarshal(m.Body, &e))
		out = append(out, e)
		if v, ok := m.Value.(event.Event); ok { // what a handler in this process gets must be what another process decodes
			expect.Equal(t, "the value's time", v.Timestamp(), e.Timestamp())
			v.Time = e.Time
			expect.Deep(t, "the value of the message", v, e)
		}
	}
	return out
}

var (
	noon      = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	publisher = auth.Principal{ID: "ci", Workspace: "default", Scopes: []string{auth.ScopePublish}}
)

func service(t testing.TB) (*Service, *sent) {
	t.Helper()
	q, s := &sent{}, catalog.NewStatic(expect.Value(catalog.Parse([]byte(types)))(t))
	return &Service{Catalog: catalog.Workspaces{Own: map[string]catalog.Source{"default": s, "other": s}}, Queue: q, Now: func() time.Time { return noon }}, q
}

func TestAcceptFillsIn(t *testing.T) {
	s, q := service(t)
	when := time.Date(2020, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	got := expect.Value(s.Accept(t.Context(), publisher, []Input{
		{URI: "EVENT://github/acme/a%2eb/pull_request", Data: json.RawMessage(`{ "action": "opened" }`)},
		{URI: "event://ci/build-finished", ID: "run-7", Time: when, Data: json.RawMessage(`7`)},
		{URI: "event://ci/build-finished", ID: "a/b", Source: "//x", Time: noon.Add(123456789), Data: json.RawMessage(`null`)},
	}))(t)
	if got[0].URI != "event://github/acme/a.b/pull_request" || !strings.HasPrefix(got[0].ID, "evt_") ||
		got[1] != (Accepted{"run-7", "event://ci/build-finished"}) || got[2].ID != event.ForeignID("//x", "a/b") {
		t.Errorf("got %+v", got)
	}
	events := q.events(t)
	if e := events[0]; e.Workspace != "default" || e.Name != "github.pull_request" || !e.Time.Equal(noon) || !e.Published.Equal(noon) || string(e.Data) != `{"action":"opened"}` {
		t.Errorf("got %+v", e)
	}
	if e := events[1]; e.Timestamp() != "2020-01-02T03:04:05+01:00" || !e.Published.Equal(noon) || e.ID != "run-7" {
		t.Errorf("got %+v at %s", e, e.Timestamp())
	}
	for i, e := range events {
		if e.ID != got[i].ID || e.URI != got[i].URI {
			t.Errorf("event %d: got %s %s, accepted %+v", i, e.ID, e.URI, got[i])
		}
	}
}

func TestGroupsAndDeduplication(t *testing.T) {
	s, q := service(t)
	in := func(uri, id string) Input { return Input{URI: uri, ID: id, Data: json.RawMessage(`1`)} }
	ci := "event://ci/build-finished"
	expect.OK(t, expect.ErrOf(s.Accept(t.Context(), publisher, []Input{in(ci, "1"), in(ci, "1"), in(ci, "2")})))
	other := publisher
	other.Workspace = "other"
	expect.OK(t, expect.ErrOf(s.Accept(t.Context(), other, []Input{in(ci, "1")})))
	m := q.on[queue.Events]
	if m[0].Group != m[2].Group || m[0].Dedup != m[1].Dedup || m[0].Dedup == m[2].Dedup {
		t.Errorf("want one group per URI and the same deduplication id for a repeated id: %+v", m)
	}
	expect.Differ(t, "AUT-05 the group", m[3].Group, m[0].Group)
	expect.Differ(t, "AUT-05 the dedup", m[3].Dedup, m[0].Dedup)
	if len(m[0].Group) != 43 || !event.ValidID(m[0].Group) || !event.ValidID(m[0].Dedup) {
		t.Errorf("got %q, %q", m[0].Group, m[0].Dedup)
	}
	expect.Differ(t, "the digest after the border between the parts moved", digest("a", "bc"), digest("ab", "c"))
}

// The events of an unordered URI are spread over several groups. A repeated event is in the same group as the first,
// because the queue drops repetitions only within a group.
func TestAnUnorderedURIHasSeveralGroups(t *testing.T) {
	s, q := service(t)
	for range 2 {
		var in []Input
		for i := range 400 {
			in = append(in, Input{URI: "event://ci/line", ID: fmt.Sprint(i), Data: json.RawMessage(`1`)})
		}
		expect.OK(t, expect.ErrOf(s.Accept(t.Context(), publisher, in)))
	}
	sizes, m := map[string]int{}, q.on[queue.Events]
	for i := range 400 {
		if sizes[m[i].Group]++; m[i].Group != m[i+400].Group || m[i].Dedup != m[i+400].Dedup {
			t.Fatalf("event %d and its repetition are in different groups", i)
		}
	}
	expect.Equal(t, "groups", len(sizes), groups)
	for _, n := range sizes {
		expect.AtMost(t, "the events of one group", n, 2*400/groups)
	}
}

func TestAcceptRefuses(t *testing.T) {
	good := Input{URI: "event://ci/build-finished", Data: json.RawMessage(`{}`)}
	bad := func(change func(*Input)) Input { in := good; change(&in); return in }
	pr := func(data string) Input {
		return Input{URI: "event://github/acme/x/pull_request", Data: json.RawMessage(data), DataAt: "/data"}
	}
	big := json.RawMessage(`"` + strings.Repeat("a", event.MaxPayload) + `"`)
	for name, tc := range map[string]struct {
		p    auth.Principal
		in   []Input
		kind fault.Kind
		want string
	}{
		"AUT-03 without the scope":            {auth.Principal{ID: "a", Workspace: "default", Scopes: []string{auth.ScopeRead}}, []Input{good}, fault.Forbidden, "events:publish"},
		"EVS-07 a payload breaks its schema":  {publisher, []Input{pr(`{"action":"x"}`)}, fault.Unprocessable, `/data/action: must be one of "opened", "closed"`},
		"EVS-07 a variable breaks its schema": {publisher, []Input{{URI: "event://github/ACME/x/pull_request", Data: json.RawMessage(`{"action":"opened"}`)}}, fault.Unprocessable, "/uri: the variables of"},
		"an unknown URI":                      {publisher, []Input{bad(func(in *Input) { in.URI = "event://ci/x" })}, fault.NotFound, "belongs to no event type"},
		"an invalid URI":                      {publisher, []Input{bad(func(in *Input) { in.URI = "http://x" })}, fault.Invalid, "/uri: the event URI does not begin"},
		"EVS-07 a pattern":                    {publisher, []Input{bad(func(in *Input) { in.URI = "event://github/*/x/pull_request" })}, fault.Invalid, `is a pattern: "*"`},
		"a parent":                            {publisher, []Input{bad(func(in *Input) { in.URI = "event://ci" })}, fault.NotFound, "belongs to no"},
		"no payload":                          {publisher, []Input{bad(func(in *Input) { in.Data = nil })}, fault.Invalid, "is missing"},
		"broken JSON":                         {publisher, []Input{bad(func(in *Input) { in.Data = json.RawMessage(`{`) })}, fault.Invalid, "is not valid JSON"},
		"not UTF-8":                           {publisher, []Input{bad(func(in *Input) { in.Data = json.RawMessage("\"\xff\"") })}, fault.Invalid, "is not UTF-8"},
		"too deep":                            {publisher, []Input{bad(func(in *Input) { in.Data = json.RawMessage(strings.Repeat("[", 65) + strings.Repeat("]", 65)) })}, fault.Invalid, "deeper than 64"},
		"a payload too large":                 {publisher, []Input{bad(func(in *Input) { in.Data = big })}, fault.TooLarge, "at most 245760"},
		"a payload that grows too large":      {publisher, []Input{bad(func(in *Input) { in.Data = json.RawMessage(strings.ReplaceAll(string(big[:100<<10])+`"`, "a", "<")) })}, fault.TooLarge, "when escaped"},
		"a long id":                           {publisher, []Input{bad(func(in *Input) { in.ID = strings.Repeat("/", 5000) })}, fault.Invalid, "/id: has 5000 bytes (allowed: up to 4096)"},
		"too many":                            {publisher, make([]Input, maxEvents+1), fault.TooLarge, "at most 1000"},
		"an unknown workspace":                {auth.Principal{ID: "a", Workspace: "nowhere", Scopes: publisher.Scopes}, []Input{good}, fault.NotFound, "unknown workspace"},
		"one of two: nothing is accepted":     {publisher, []Input{good, pr(`{}`)}, fault.Unprocessable, "none of the events was accepted"},
		"a time with five digits":             {publisher, []Input{bad(func(in *Input) { in.Time = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) })}, fault.Invalid, "/time: "},
		"a time with an offset of a day":      {publisher, []Input{bad(func(in *Input) { in.Time = noon.In(time.FixedZone("", 24*3600)) })}, fault.Invalid, "/time: "},
		"the most severe kind is reported":    {publisher, []Input{pr(`{}`), bad(func(in *Input) { in.URI = "x" })}, fault.Invalid, "does not begin with event:// (and 1 more faults)"},
	} {
		t.Run(name, func(t *testing.T) {
			s, q := service(t)
			got, err := s.Accept(t.Context(), tc.p, tc.in)
			if got != nil || fault.KindOf(err) != tc.kind || !strings.Contains(fault.Public(err), tc.want) {
				t.Errorf("got %v, %v: %.300v\nwant %v %q", got, fault.KindOf(err), err, tc.kind, tc.want)
			}
			expect.Equal(t, "queued events", len(q.on), 0)
		})
	}
}

func TestLargestPayloadFits(t *testing.T) {
	s, q := service(t)
	data := json.RawMessage(`"` + strings.Repeat("a", event.MaxPayload-2) + `"`)
	expect.OK(t, expect.ErrOf(s.Accept(t.Context(), publisher, []Input{{URI: "event://ci/build-finished", ID: strings.Repeat("x", 128), Data: data}})))
	expect.AtMost(t, "the message's bytes", len(q.on[queue.Events][0].Body), queue.MaxBody)
}

func TestAcceptOfAFailingQueue(t *testing.T) {
	s, q := service(t)
	q.fail = map[queue.Name]error{queue.Events: context.DeadlineExceeded}
	_, err := s.Accept(t.Context(), publisher, []Input{{URI: "event://ci/build-finished", Data: json.RawMessage(`1`)}})
	expect.Fault(t, "the error", err, fault.Unavailable)
	expect.Lacks(t, "the public error", fault.Public(err), "deadline")
	if got, err := s.Accept(t.Context(), publisher, nil); err != nil || got == nil || len(got) != 0 {
		t.Errorf("nothing to publish: got %v, %v", got, err)
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		`{ "a" : [ 1.50 , 12345678901234567890 ] }`: `{"a":[1.50,12345678901234567890]}`,
		`"<a href=\"x\">&</a>"`:                     `"\u003ca href=\"x\"\u003e\u0026\u003c/a\u003e"`,
		"\"\uFFFE\uFFFF\"":                          `"\ufffe\uffff"`,
		"{\"\uFFFE\":1}":                            `{"\ufffe":1}`,
		"\"\u2028é\uFEFF€\U0001F600\"":              "\"\\u2028é\uFEFF€\U0001F600\"",
		"\"\\\\\uFFFE\"":                            `"\\\ufffe"`,
		`"\ud800"`:                                  `"\ud800"`,
	} {
		got := expect.Value(escapeData(json.RawMessage(in), false))(t)
		expect.Equal(t, fmt.Sprintf("%q", in), string(got), want)
		again, _ := json.Marshal(got)
		expect.Equal(t, fmt.Sprintf("%q that is encoded again", got), string(again), string(got))
	}
}

// TestRate: AUT-07. Each principal has its own quota. With --auth none there is no quota.
func TestRate(t *testing.T) {
	now := noon
	s, q := service(t)
	s.Now = func() time.Time { return now }
	s.Rate = NewRate(quota.FixedLimit(100))
	batch := make([]Input, maxEvents)
	for i := range batch {
		batch[i] = Input{URI: "event://ci/build-finished", Data: json.RawMessage(`1`)}
	}
	expect.OK(t, expect.ErrOf(s.Accept(t.Context(), publisher, batch))) // a full request must pass
	_, err := s.Accept(t.Context(), publisher, batch[:50])
	if data, ok := fault.DataOf(err).(quota.RetryAfter); !fault.Is(err, fault.Exhausted) || !ok || data.Seconds != 1 || data.LimitName() != "publishRate" || data.Max != 100 || !strings.Contains(err.Error(), "100 events per second") {
		t.Errorf("AUT-07: got %v, %+v", err, fault.DataOf(err))
	}
	other := publisher
	other.ID = "other"
	expect.OK(t, expect.ErrOf(s.Accept(t.Context(), other, batch[:1]))) // another principal is not limited
	now = now.Add(time.Second)
	expect.OK(t, expect.ErrOf(s.Accept(t.Context(), publisher, batch[:100]))) // a second later
	expect.Fault(t, "AUT-07: a further event", expect.ErrOf(s.Accept(t.Context(), publisher, batch[:1])), fault.Exhausted)
	anonymous, _ := auth.AcceptAll().Authenticate(t.Context(), nil)
	before := len(q.on[queue.Events])
	for range 5 {
		expect.OK(t, expect.ErrOf(s.Accept(t.Context(), anonymous, batch))) // --auth none is not limited
	}
	expect.Equal(t, "events", len(q.on[queue.Events])-before, 5*maxEvents)
}

// outdated is a source whose cache has only the event types of the operator. It counts the reads past the cache.
type outdated struct {
	catalog.Source
	reads *atomic.Int32
}

func (o outdated) Latest(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	o.reads.Add(1)
	return o.Source.Catalog(ctx, workspace)
}

func (outdated) Catalog(context.Context, string) (*catalog.Catalog, error) {
	return catalog.Parse([]byte(types))
}

// ofBackends returns a BackendPublisher whose cached catalog lacks the event types of backend shop, with the database that has them.
func ofBackends(t *testing.T) (o BackendPublisher, q *sent, reads *atomic.Int32) {
	t.Helper()
	s, q := service(t)
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	expect.OK(t, err)
	t.Cleanup(func() { _ = db.Close() })
	reads = &atomic.Int32{}
	s.Catalog = outdated{catalog.AddBackends(db, s.Catalog), reads}
	_, err = catalog.ReplaceBackends(t.Context(), db, "default", func(all map[string]catalog.BackendTypes) {
		all["shop"] = catalog.BackendTypes{Types: []catalog.BackendType{{Name: "shipped", PayloadSchema: json.RawMessage(`{"type":"object"}`)}}}
	})
	expect.OK(t, err)
	return NewBackendPublisher(s), q, reads
}

const shipped = "event://~shop/shipped/e30"

// GWN-22: an event of a type that the relay stored a moment ago is not lost because the process still has the former catalog.
func TestEventsOfNewBackendTypes(t *testing.T) {
	o, q, _ := ofBackends(t)
	expect.OK(t, o.Publish(t.Context(), "default", Input{URI: shipped, ID: "1", Data: json.RawMessage(`{}`)}))
	expect.OK(t, o.Gap(t.Context(), "default", shipped))
	events := q.events(t)
	if len(events) != 2 || events[0].Name != "shipped" || !events[1].Gap {
		t.Errorf("got %+v", events)
	}
	expect.Fault(t, "a payload that does not fit", o.Publish(t.Context(), "default", Input{URI: shipped, ID: "2", Data: json.RawMessage(`1`)}), fault.Unprocessable)
	expect.Fault(t, "a gap of an unknown type", o.Gap(t.Context(), "default", "event://~shop/unknown/e30"), fault.NotFound)
}

// GWN-22: the events of one backend do not use up a quota that the workspace's other backends need.
func TestEventsOfBackendsHaveNoCommonQuota(t *testing.T) {
	o, q, _ := ofBackends(t)
	o = NewBackendPublisher(&Service{Catalog: o.service.Catalog.(outdated).Source, Queue: o.service.Queue, Rate: NewRate(quota.FixedLimit(1))})
	const most = maxEvents + 1 // more than the burst
	for i := range most {
		expect.OK(t, o.Publish(t.Context(), "default", Input{URI: shipped, ID: strconv.Itoa(i), Data: json.RawMessage(`{}`)}))
	}
	expect.Equal(t, "GWN-22 the published events", len(q.events(t)), most)
}

// GWN-22: given a backend that sends many events that do not fit their schema, then they share the reads of the latest catalog.
func TestMisfitsShareReadsOfTheCatalog(t *testing.T) {
	o, _, reads := ofBackends(t)
	const senders, each = 50, 2
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for range each {
				err := o.Publish(t.Context(), "default", Input{URI: shipped, Data: json.RawMessage(`1`)})
				expect.Fault(t, "a misfit", err, fault.Unprocessable)
			}
		})
	}
	all.Wait()
	if n := reads.Load(); n < each || n > senders*each/10 {
		t.Errorf("%d misfits caused %d reads, want about %d", senders*each, n, each)
	}
}

const (
	parentA = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	parentB = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

func TestAnEventBelongsToThePublishersTrace(t *testing.T) {
	const (
		plain  = `{"uri":"event://ci/build-finished","id":"1","data":1}`
		header = "traceparent: " + parentA
		state  = "tracestate: a=1"
	)
	extension := ce(`,"traceparent":"` + parentB + `","tracestate":"b=2"`)
	binary := []string{asJSON, "ce-specversion: 1.0", "ce-id: 1", "ce-source: event://ci/build-finished", "ce-type: x"}
	none, a, b := trace.Context{}, trace.Context{Parent: parentA, State: "a=1"}, trace.Context{Parent: parentB, State: "b=2"}
	for name, tc := range map[string]struct {
		body    string
		headers []string
		want    []trace.Context
	}{
		"OPS-13 no trace":                             {plain, []string{asJSON}, []trace.Context{none}},
		"OPS-13 the headers of HTTP":                  {plain, []string{asJSON, header, state}, []trace.Context{a}},
		"OPS-13 all events of an array":               {"[" + plain + "," + plain + "]", []string{asJSON, header, state}, []trace.Context{a, a}},
		"OPS-13 a malformed header":                   {plain, []string{asJSON, header + "x", state}, []trace.Context{none}},
		"OPS-13 two headers":                          {plain, []string{asJSON, header, header}, []trace.Context{none}},
		"OPS-13 a malformed state":                    {plain, []string{asJSON, header, "tracestate: ,=,"}, []trace.Context{{Parent: parentA}}},
		"OPS-13 CloudEvents structured":               {extension, []string{"Content-Type: application/cloudevents+json"}, []trace.Context{b}},
		"OPS-13 CloudEvents, the origin of the trace": {extension, []string{"Content-Type: application/cloudevents+json", header}, []trace.Context{b}},
		"OPS-13 CloudEvents, not a string":            {ce(`,"traceparent":7`), []string{"Content-Type: application/cloudevents+json"}, []trace.Context{none}},
		"OPS-13 CloudEvents batch, each its own":      {"[" + extension + "," + ce("") + "]", []string{"Content-Type: application/cloudevents-batch+json", header, state}, []trace.Context{b, a}},
		"OPS-13 CloudEvents binary":                   {"1", append(binary, "ce-traceparent: "+parentB, "ce-tracestate: b=2"), []trace.Context{b}},
		"OPS-13 CloudEvents binary, percent-encoded":  {"1", append(binary, "ce-traceparent: "+parentB, "ce-tracestate: b%3D2"), []trace.Context{b}},
	} {
		t.Run(name, func(t *testing.T) {
			h, q := handler(t)
			if w := post(h, tc.body, tc.headers...); w.Code != http.StatusAccepted {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			for i, e := range q.events(t) {
				expect.Equal(t, fmt.Sprintf("event %d", i), e.Trace, tc.want[i])
			}
			for _, m := range q.on[queue.Events] {
				expect.Equal(t, "the message has a trace", strings.Contains(string(m.Body), `"tp"`), tc.want[0] != none)
			}
		})
	}
	t.Run("OPS-13 an SQS message attribute at the inbox", func(t *testing.T) {
		in, q := inbox(t)
		m := message("m1", "["+plain+","+extension+"]")
		m.Attributes = map[string]string{"traceparent": parentA, "tracestate": "a=1"}
		if failed, err := in.Handle(t.Context(), []queue.Message{m}); len(failed) > 0 || err != nil {
			t.Fatal(failed, err)
		}
		if got := q.events(t); got[0].Trace != a || got[1].Trace != b {
			t.Errorf("got %+v", got)
		}
	})
}
