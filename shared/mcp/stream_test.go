package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

// patience is how long a test waits for an expected message or state before it fails.
const patience = time.Minute

// open is an open stream that a test reads.
type open struct {
	t      testing.TB
	events chan sse.Event // closed when the stream ends
	header http.Header
	status int
	cancel context.CancelFunc
	ended  chan struct{}
	hold   chan struct{} // close it to stop reading
	listen bool          // each message must have the subscription's id and a cursor
}

// frame is a message on a stream.
type frame struct {
	ID     json.RawMessage
	Method string
	Params struct {
		URI, EventID, Name, Timestamp, Cursor, Reason string
		Payload, Data, Notifications                  json.RawMessage
		Truncated                                     *bool
		Error                                         *struct {
			Code int
			Data json.RawMessage
		}
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	Result struct {
		ResultType string
		Meta       map[string]json.RawMessage `json:"_meta"`
	}
	sse sse.Event
	at  time.Time // the time of the write, only set in a bubble
}

// says returns the same short text for a message in every framing. For an event it is "URI payload", for a gap "gap" and
// the URI if there is one, for a result its type, and for any other message its method.
func (m frame) says() string {
	switch p := m.Params; {
	case string(p.Meta[spec.MetaTruncated]) == "true" || p.Truncated != nil && *p.Truncated:
		return strings.TrimSpace("gap " + p.URI + string(p.Payload))
	case m.Method == spec.NoteUpdated:
		return p.URI + " " + string(p.Payload)
	case m.Method == spec.NoteEventsEvent:
		return strings.Trim(string(p.Meta[spec.MetaURI]), `"`) + " " + string(p.Data)
	}
	return cmp.Or(m.Method, m.Result.ResultType)
}

// position returns the position from which a client that has read this message can resume.
func (m frame) position() string {
	return cmp.Or(m.sse.ID, m.Params.Cursor, strings.Trim(string(m.Params.Meta[spec.MetaCursor])+string(m.Result.Meta[spec.MetaCursor]), `"`))
}

func decodeFrame(t testing.TB, e sse.Event) (m frame) {
	t.Helper()
	if len(e.Data) > 0 { // The first event on a session's stream has only an id.
		expect.OK(t, json.Unmarshal(e.Data, &m), e.Data)
	}
	m.sse = e
	return m
}

func (f *fixture) open(req *http.Request) *open {
	f.t.Helper()
	ctx, cancel := context.WithCancel(req.Context())
	f.t.Cleanup(cancel)
	res := expect.Value(f.server.Client().Do(req.WithContext(ctx)))(f.t)
	o := &open{t: f.t, events: make(chan sse.Event, 100), header: res.Header, status: res.StatusCode, cancel: cancel, ended: make(chan struct{}), hold: make(chan struct{}), listen: req.Header.Get(spec.HeaderMethod) == spec.MethodListen}
	go func() {
		defer close(o.ended)
		defer close(o.events)
		defer res.Body.Close()
		r := sse.NewReader(res.Body, 1<<20)
		for {
			select {
			case <-o.hold:
				<-ctx.Done()
				return
			default:
			}
			e, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && ctx.Err() == nil {
					f.t.Errorf("read the stream: %v", err)
				}
				return
			}
			o.events <- e
		}
	}()
	f.t.Cleanup(func() { <-o.ended })
	f.t.Cleanup(cancel)
	return o
}

// close closes the stream and waits until it has ended.
func (o *open) close() {
	o.cancel()
	<-o.ended
}

// event returns the next SSE event. It ends the test if no event arrives in time.
func (o *open) event() sse.Event {
	o.t.Helper()
	select {
	case e, ok := <-o.events:
		if !ok {
			o.t.Fatal("the stream ended")
		}
		return e
	case <-time.After(patience):
		o.t.Fatal("nothing came on the stream")
	}
	return sse.Event{}
}

// next returns the next message.
func (o *open) next() frame {
	o.t.Helper()
	m := decodeFrame(o.t, o.event())
	for _, name := range []string{spec.MetaSubscription, spec.MetaCursor} {
		if o.listen && m.Params.Meta[name] == nil && m.Result.Meta[name] == nil {
			o.t.Errorf("SUB-02 SUB-08: got %s, want %s in its _meta", m.sse.Data, name)
		}
	}
	return m
}

// brings checks that the next messages say these texts, see [frame.says], and returns the last message.
func (o *open) brings(says ...string) (last frame) {
	o.t.Helper()
	for _, want := range says {
		if last = o.next(); last.says() != want {
			o.t.Fatalf("got %q, want %q: %s", last.says(), want, last.sse.Data)
		}
	}
	return last
}

// isQuiet checks that no unread message has arrived.
func (o *open) isQuiet(what string) {
	o.t.Helper()
	select {
	case e := <-o.events:
		o.t.Errorf("%s: got %s, want no message", what, e.Data)
	default:
	}
}

// end waits for the end of the stream, before which no further message may arrive.
func (o *open) end() {
	o.t.Helper()
	select {
	case e, ok := <-o.events:
		if ok {
			o.t.Fatalf("more on the stream: %q", e.Data)
		}
	case <-time.After(patience):
		o.t.Fatal("the stream did not end")
	}
}

// listenRequest returns a subscriptions/listen request. The text meta adds members to its _meta.
func (f *fixture) listenRequest(key, id, filter, meta string) *http.Request {
	if meta != "" {
		meta = "," + meta
	}
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"subscriptions/listen","params":{"notifications":` + filter +
		`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{}}` + meta + `}}}`
	return f.request("POST", key, body, statelessHeaders(spec.MethodListen, "")...)
}

// listen opens a subscriptions/listen stream.
func (f *fixture) listen(key, id, filter string) *open {
	f.t.Helper()
	return f.open(f.listenRequest(key, id, filter, ""))
}

// listening opens a subscriptions/listen stream and reads its acknowledgment.
func (f *fixture) listening(key, id, filter string) *open {
	f.t.Helper()
	l := f.listen(key, id, filter)
	l.brings(spec.NoteAcknowledged)
	return l
}

// stream opens a session's GET stream.
func (f *fixture) stream(key, session, last string) *open {
	f.t.Helper()
	headers := []string{"Accept:", "Accept: text/event-stream", "Mcp-Session-Id: " + session}
	if last != "" {
		headers = append(headers, "Last-Event-ID: "+last)
	}
	return f.open(f.request("GET", key, "", headers...))
}

// framing is one of the ways in which a stream sends events.
type framing struct {
	name    string
	request func(f *fixture, c *follower) *http.Request
	payload string // the text before each payload on the stream
}

var (
	byListen  = framing{"a listen", followByListen, `"payload":`}
	bySession = framing{"the stream of a session", func(f *fixture, c *follower) *http.Request { return followInSession(f, c, "/mcp") }, `"payload":`}
	byDialect = framing{"a stream of the dialect", func(f *fixture, c *follower) *http.Request { return followInSession(f, c, dialectPath) }, `"payload":`}
	byType    = framing{"an events/stream", followByType, `"data":`}
)

// follower is a client that follows events and can resume at any instance.
type follower struct {
	framing
	key      string
	uris     []string // An events/stream needs exactly one URI, of an event type without variables.
	lists    bool     // also subscribes to changes of lists and declares MCP Events
	session  string   // started by the first request
	position string   // the position of the last message that it read
	*open
}

// follow opens a stream as alice and reads its first message.
func (f *fixture) follow(by framing, uris ...string) *follower {
	f.t.Helper()
	c := &follower{framing: by, key: alice, uris: uris}
	c.resume(f)
	return c
}

// opening returns a function that makes billing's request to follow these URIs.
func (by framing) opening(uris ...string) func(f *fixture) *http.Request {
	return func(f *fixture) *http.Request { return by.request(f, &follower{key: billing, uris: uris}) }
}

// resume closes the stream and opens it again after the last message that was read. It returns the new stream's first
// message.
func (c *follower) resume(f *fixture) frame {
	f.t.Helper()
	if c.open != nil {
		c.close()
	}
	c.open = f.open(c.request(f, c))
	return c.next()
}

func (c *follower) next() frame {
	c.t.Helper()
	m := c.open.next()
	if at := m.position(); at != "" {
		c.position = at
	}
	return m
}

// brings checks the next messages, as [open.brings] does, and that the client can resume after each of them.
func (c *follower) brings(says ...string) {
	c.t.Helper()
	for _, want := range says {
		if m := c.next(); m.says() != want || m.position() == "" {
			c.t.Fatalf("got %q with the position %q, want %q and a position: %s", m.says(), m.position(), want, m.sse.Data)
		}
	}
}

func followByListen(f *fixture, c *follower) *http.Request {
	quoted, _ := json.Marshal(c.uris)
	filter, meta := `{"resourceSubscriptions":`+string(quoted)+`}`, ""
	if c.lists {
		filter = strings.TrimSuffix(filter, "}") + `,"resourcesListChanged":true,"eventsListChanged":true}`
	}
	if c.position != "" {
		meta = `"` + spec.MetaCursor + `":"` + c.position + `"`
	}
	return f.listenRequest(c.key, "1", filter, meta)
}

func followInSession(f *fixture, c *follower, path string) *http.Request {
	at := func(method, body string, headers ...string) *http.Request {
		r := f.request(method, c.key, body, headers...)
		r.URL.Path = path
		return r
	}
	if c.session == "" {
		capabilities := `{}`
		if c.lists {
			capabilities = `{"extensions":{"` + spec.EventsExtension + `":{}}}`
		}
		r := f.served(at("POST", rpcText("0", spec.MethodInitialize, `"protocolVersion":"2025-11-25","capabilities":`+capabilities)))
		c.session = r.Header().Get(spec.HeaderSession)
		for i, uri := range c.uris {
			f.served(at("POST", rpcText(fmt.Sprint(i+1), spec.MethodSubscribe, `"uri":"`+uri+`"`), "Mcp-Session-Id: "+c.session))
		}
	}
	headers := []string{"Accept:", "Accept: text/event-stream", "Mcp-Session-Id: " + c.session}
	if c.position != "" {
		headers = append(headers, "Last-Event-ID: "+c.position)
	}
	return at("GET", "", headers...)
}

func followByType(f *fixture, c *follower) *http.Request {
	cat, _ := f.catalogs.Catalog(context.Background(), auth.DefaultWorkspace)
	entry, _, _ := cat.Match(c.uris[0])
	return f.statelessRequest(c.key, spec.MethodEventsStream, pollParams(entry.Name, `{}`, c.position))
}

// endedLine is the line that is logged when a stream ends.
type endedLine struct {
	Msg, Level, Reason, Kind, Workspace, Principal, Error string

	Open float64 `json:"open_s"`
}

// ends returns the lines logged so far for ended streams.
func ends(t *testing.T, log *expect.Buffer) (all []endedLine) {
	for line := range strings.Lines(log.String()) {
		var e endedLine
		expect.OK(t, json.Unmarshal([]byte(line), &e))
		if e.Msg == "stream ended" {
			all = append(all, e)
		}
	}
	return all
}

// fading is an authenticator whose callers' tokens expire after 100 ms.
type fading struct{ auth.Authenticator }

func (f fading) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	p, err := f.Authenticator.Authenticate(ctx, h)
	p.Expires = time.Now().Add(100 * time.Millisecond)
	return p, err
}

// OPS-12: the end of each stream is logged and counted with its reason.
func TestWhyAStreamEnded(t *testing.T) {
	opened := func(by framing) func(*fixture) *follower {
		return func(f *fixture) *follower { return f.follow(by, deploy) }
	}
	listen, inSession, ofType := opened(byListen), opened(bySession), opened(byType)
	leave := func(_ *fixture, c *follower) { c.cancel() }
	revoking := &revocable{}
	for name, tc := range map[string]struct {
		change func(*Options)
		open   func(*fixture) *follower
		end    func(*fixture, *follower) // nil if the stream ends by itself
		reason string
		kind   string
	}{
		"a listen is closed":        {nil, listen, leave, "client_closed", "subscriptions/listen"},
		"a session's is closed":     {nil, inSession, leave, "client_closed", "session"},
		"an events/stream is":       {nil, ofType, leave, "client_closed", "events/stream"},
		"its age":                   {func(o *Options) { o.MaxAge = 50 * time.Millisecond }, listen, nil, "max_age", "subscriptions/listen"},
		"shutdown":                  {nil, listen, func(f *fixture, _ *follower) { f.close() }, "shutdown", "subscriptions/listen"},
		"shutdown, for the dialect": {nil, opened(byDialect), func(f *fixture, _ *follower) { f.close() }, "shutdown", "named_events"},
		"a listen over the quota":   {keep(1), listen, func(f *fixture, _ *follower) { listen(f) }, "superseded", "subscriptions/listen"},
		"another of its session":    {nil, inSession, func(f *fixture, c *follower) { f.stream(alice, c.session, "").event() }, "session_taken", "session"},
		"the credentials expire":    {func(o *Options) { o.Auth = fading{o.Auth} }, listen, nil, "credentials_expired", "subscriptions/listen"},
		"its event type is removed": {nil, ofType, func(f *fixture, _ *follower) {
			f.catalogs.Replace(mustParse(f.t, "events: []\n"))
			f.announceCatalog()
		}, "subscription_ended", "events/stream"},
		"the credentials are revoked": {func(o *Options) { revoking.Authenticator = o.Auth; o.Auth = revoking }, listen, func(f *fixture, _ *follower) {
			revoking.say(auth.Principal{}, auth.ErrNoToken)
			f.announceCatalog()
		}, "credentials_revoked", "subscriptions/listen"},
	} {
		t.Run("OPS-12 "+name, func(t *testing.T) {
			log := new(expect.Buffer)
			reader := sdk.NewManualReader()
			set := expect.Value(metric.NewSet(sdk.NewMeterProvider(sdk.WithReader(reader))))(t)
			f := newFixture(t, func(o *Options) {
				o.Logger, o.Metrics = slog.New(slog.NewJSONHandler(log, nil)), set
				if tc.change != nil {
					tc.change(o)
				}
			})
			c := tc.open(f)
			if tc.end != nil {
				tc.end(f, c)
			}
			f.waitFor("the end of the stream", func() bool { return len(ends(t, log)) > 0 })
			got := ends(t, log)[0]
			hash := sha256.Sum256([]byte("alice"))
			if got.Reason != tc.reason || got.Kind != tc.kind || got.Level != "INFO" || got.Workspace != auth.DefaultWorkspace ||
				got.Principal != hex.EncodeToString(hash[:6]) || strings.Contains(log.String(), "alice") || got.Open < 0 || got.Error != "" {
				t.Errorf("got %+v, want %s of %s", got, tc.reason, tc.kind)
			}
			var data metricdata.ResourceMetrics
			expect.OK(t, reader.Collect(t.Context(), &data))
			if text := fmt.Sprint(data); !strings.Contains(text, metric.StreamsEnded) || !strings.Contains(text, tc.reason) {
				t.Errorf("the metrics are %s, want %s with the reason %s", text, metric.StreamsEnded, tc.reason)
			}
		})
	}
}

// OPS-13: a message joins the trace in its _meta. Without a valid one, it joins the trace of the HTTP request.
func TestATraceComesInMetaOrByHTTP(t *testing.T) {
	const a, b = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, tc := range map[string]struct {
		header, meta string
		want         trace.Context
	}{
		"none":               {},
		"HTTP":               {a, `{}`, trace.Context{Parent: a}},
		"_meta":              {a, `{"traceparent":"` + b + `","tracestate":"x=1"}`, trace.Context{Parent: b, State: "x=1"}},
		"_meta is malformed": {a, `{"traceparent":7}`, trace.Context{Parent: a}},
	} {
		c := method.Call{Request: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil), Meta: json.RawMessage(tc.meta)}
		if tc.header != "" {
			c.Request.Header.Set("traceparent", tc.header)
		}
		joinTrace(&c)
		expect.Deep(t, name, trace.From(c.Request.Context()), tc.want)
	}
}
