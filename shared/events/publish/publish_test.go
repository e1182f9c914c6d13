package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
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
	}
	return out
}

var (
	noon      = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	publisher = auth.Principal{ID: "ci", Workspace: "default", Scopes: []string{auth.ScopePublish}}
)

func service(t testing.TB) (*Service, *sent) {
	t.Helper()
	cat := expect.Value(catalog.Parse([]byte(types)))(t)
	q, s := &sent{}, catalog.NewStatic(cat)
	return &Service{Catalog: catalog.Workspaces{Own: map[string]catalog.Source{"default": s, "other": s}}, Queue: q, Now: func() time.Time { return noon }}, q
}

func TestAcceptFillsIn(t *testing.T) {
	s, q := service(t)
	when := time.Date(2020, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	got := expect.Value(s.Accept(t.Context(), publisher, []Input{
		{URI: "EVENT://github/acme/a%2eb/pull_request", Data: json.RawMessage(`{ "action": "opened" }`)},
		{URI: "event://ci/build-finished", ID: "run-7", Time: when, Data: json.RawMessage(`7`)},
		{URI: "event://ci/build-finished", ID: "a/b", Source: "//x", Data: json.RawMessage(`null`)},
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
	if m[3].Group == m[0].Group || m[3].Dedup == m[0].Dedup {
		t.Error("AUT-05: two workspaces share a group or a deduplication id")
	}
	if len(m[0].Group) != 43 || !event.ValidID(m[0].Group) || !event.ValidID(m[0].Dedup) {
		t.Errorf("got %q, %q", m[0].Group, m[0].Dedup)
	}
	if digest("a", "bc") == digest("ab", "c") {
		t.Error("moving the border between the parts does not change the digest")
	}
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
		if n > 2*400/groups {
			t.Errorf("one group has %d of 400 events", n)
		}
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
	if n := len(q.on[queue.Events][0].Body); n > queue.MaxBody {
		t.Errorf("the message has %d bytes", n)
	}
}

func TestAcceptOfAFailingQueue(t *testing.T) {
	s, q := service(t)
	q.fail = map[queue.Name]error{queue.Events: context.DeadlineExceeded}
	_, err := s.Accept(t.Context(), publisher, []Input{{URI: "event://ci/build-finished", Data: json.RawMessage(`1`)}})
	if !fault.Is(err, fault.Unavailable) || strings.Contains(fault.Public(err), "deadline") {
		t.Errorf("got %v", err)
	}
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
		got, err := escape(json.RawMessage(in))
		if err != nil || string(got) != want {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
		again, _ := json.Marshal(got)
		expect.Equal(t, fmt.Sprintf("%q that is encoded again", got), string(again), string(got))
	}
}

// TestRate: AUT-07. Each principal has its own quota. With --auth none there is no quota.
func TestRate(t *testing.T) {
	now := noon
	s, q := service(t)
	s.Now = func() time.Time { return now }
	s.Rate = NewRate(quota.Same(100))
	batch := make([]Input, maxEvents)
	for i := range batch {
		batch[i] = Input{URI: "event://ci/build-finished", Data: json.RawMessage(`1`)}
	}
	if _, err := s.Accept(t.Context(), publisher, batch); err != nil {
		t.Errorf("AUT-07: a full request must pass: %v", err)
	}
	_, err := s.Accept(t.Context(), publisher, batch[:50])
	if data, ok := fault.DataOf(err).(quota.RetryAfter); !fault.Is(err, fault.Exhausted) || !ok || data.Seconds != 1 || data.LimitName() != "publishRate" || data.Max != 100 || !strings.Contains(err.Error(), "100 events per second") {
		t.Errorf("AUT-07: got %v, %+v", err, fault.DataOf(err))
	}
	other := publisher
	other.ID = "other"
	if _, err := s.Accept(t.Context(), other, batch[:1]); err != nil {
		t.Errorf("AUT-07: another principal is limited too: %v", err)
	}
	now = now.Add(time.Second)
	if _, err := s.Accept(t.Context(), publisher, batch[:100]); err != nil {
		t.Errorf("AUT-07: 100 events are refused a second later: %v", err)
	}
	expect.Fault(t, "AUT-07: a further event", expect.ErrOf(s.Accept(t.Context(), publisher, batch[:1])), fault.Exhausted)
	anonymous, _ := auth.None().Authenticate(t.Context(), nil)
	before := len(q.on[queue.Events])
	for range 5 {
		if _, err := s.Accept(t.Context(), anonymous, batch); err != nil {
			t.Errorf("AUT-07: --auth none is not limited: %v", err)
		}
	}
	expect.Equal(t, "events", len(q.on[queue.Events])-before, 5*maxEvents)
}
