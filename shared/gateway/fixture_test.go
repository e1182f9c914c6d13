package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/pipes"
)

// patience is how long a test waits for something that should happen immediately.
const patience = 20 * time.Second

// got is one message that a backend received.
type got struct {
	Header  http.Header
	Session string
	Method  string          `json:"method"`
	ID      json.RawMessage `json:"id"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
	Raw     string
}

// turn is a request that a test answers by hand.
type turn struct {
	got
	w     http.ResponseWriter
	r     *http.Request
	at    *scripted
	asked int
	mu    sync.Mutex // is held while a message is written
}

// write sends one event with these bytes.
func (t *turn) write(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(t.w, "data: "+format+"\n\n", args...)
	t.w.(http.Flusher).Flush()
}

// notify sends a notification.
func (t *turn) notify(method, params string) {
	t.say(method, fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
}

// say writes a message about a method to the response stream of the call, or to the session's GET stream if the method is a stray one.
func (t *turn) say(method, message string) {
	if !t.at.strays[method] {
		t.write("%s", message)
		return
	}
	t.at.mu.Lock()
	defer t.at.mu.Unlock()
	for messages, session := range t.at.streams {
		if session == t.Session {
			messages <- message
		}
	}
}

// send asks a question under an id, and returns the channel of its answer.
func (t *turn) send(id, method, params string) <-chan got {
	c := make(chan got, 10)
	t.at.mu.Lock()
	t.at.answers[id] = c
	t.at.mu.Unlock()
	t.say(method, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	return c
}

// ask asks a question and waits for the answer. If the connection is closed before, it ends the call.
func (t *turn) ask(method, params string) got {
	t.asked++
	select {
	case answer := <-t.send(fmt.Sprintf(`"%s-%d"`, t.ID, t.asked), method, params):
		return answer
	case <-t.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

func (t *turn) fail(code int, data string) {
	t.write(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"it failed","data":%s}}`, t.ID, code, data)
}

// result answers the request.
func (t *turn) result(text string) {
	t.write(`{"jsonrpc":"2.0","id":%s,"result":%s}`, t.ID, text)
}

// scripted is a backend whose behavior a test scripts. It has sessions as in the session-based revisions, unless it is stateless.
type scripted struct {
	*httptest.Server
	stateless bool
	// supported is the version that server/discover returns; empty means 2026-07-28.
	supported    string
	capabilities string
	instructions string
	noSession    bool
	// lists returns the result of a list method for a cursor. An empty result means that the method is unknown.
	lists func(method, cursor string) string
	// call answers tools/call and all other requests that the backend does not answer itself. The default is an empty result.
	call func(*turn)
	// allow reports whether a request is allowed; nil allows all.
	allow func(http.Header) bool
	// lost answers a request in an unknown session; nil means 404.
	lost func(http.ResponseWriter)
	// hang reports whether a notification or an answer (method "") is never accepted; nil accepts all.
	hang func(method string) bool
	// ends delays the ends of sessions until it is closed. It may be nil.
	ends chan struct{}
	// strays has the methods of the messages that it sends on the GET stream of the session instead of the call's response stream, like the
	// official TypeScript SDK. Then a session may have only one GET stream. It may be nil.
	strays map[string]bool
	// getStatus is the status with which streams are refused, or 0.
	getStatus int
	// mute leaves listens without an acknowledgment, and refused leaves resources and lists out of it; may be nil.
	mute    bool
	refused func(name string) bool

	mu       sync.Mutex
	first    func(http.ResponseWriter, *http.Request, got) bool // see intercept; may be nil
	sessions map[string]bool
	made     int
	seen     []got
	answers  map[string]chan got    // the answers to a turn's questions, by the JSON of the id
	streams  map[chan string]string // the sessions of the open streams
	asked    map[chan string]string // the params of the open listens
	began    func()                 // called when a stream is open at the backend; may be nil
	opened   int                    // streams, in all
	arrived  chan got               // notifications and answers
}

func newScripted(t *testing.T, change ...func(*scripted)) *scripted {
	t.Helper()
	s := &scripted{
		capabilities: `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true},"logging":{}}`,
		sessions:     map[string]bool{}, answers: map[string]chan got{}, streams: map[chan string]string{}, asked: map[chan string]string{},
		arrived: make(chan got, 1000),
	}
	s.lists = oneTool("t")
	s.call = func(t *turn) { t.result(`{}`) }
	for _, c := range change {
		c(s)
	}
	s.Server = pipes.Serve(t, s)
	return s
}

// oneTool returns lists with tools of the given names and no other entries.
func oneTool(names ...string) func(method, cursor string) string {
	var entries []string
	for _, name := range names {
		entries = append(entries, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name))
	}
	return listing("tools/list", `{"tools":[`+strings.Join(entries, ",")+`]}`)
}

// listing returns lists with the given results, each after its method. The other lists are empty.
func listing(results ...string) func(method, cursor string) string {
	return func(method, _ string) string {
		if at := slices.Index(results, method); at >= 0 {
			return results[at+1]
		}
		return emptyList(method)
	}
}

func emptyList(method string) string {
	for _, k := range api.Kinds {
		if k.Method() == method {
			return fmt.Sprintf(`{%q:[]}`, k.Member())
		}
	}
	return `{}`
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m := got{Header: r.Header.Clone(), Session: r.Header.Get("Mcp-Session-Id"), Raw: string(body)}
	err := json.Unmarshal(body, &m)
	s.mu.Lock()
	first, known, ends := s.first, m.Session == "" || s.sessions[m.Session], s.ends
	s.mu.Unlock()
	switch {
	case first != nil && first(w, r, m):
	case s.allow != nil && !s.allow(r.Header):
		w.WriteHeader(http.StatusUnauthorized)
	case !known && s.lost != nil:
		s.lost(w)
	case !known:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodDelete && ends != nil:
		<-ends
	case r.Method == http.MethodDelete:
		s.forget(m.Session)
	case r.Method == http.MethodGet:
		m.Method = "GET"
		s.stream(w, r, m)
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	default:
		s.post(w, r, m)
	}
}

func (s *scripted) post(w http.ResponseWriter, r *http.Request, m got) {
	s.mu.Lock()
	s.seen = append(s.seen, m)
	answered := s.answers[string(m.ID)]
	s.mu.Unlock()
	if m.ID == nil || m.Method == "" {
		s.arrived <- m
		if m.Method == "" && answered != nil {
			answered <- m
		}
		if s.hang != nil && s.hang(m.Method) {
			<-r.Context().Done()
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	answer := func(text string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, text)
	}
	switch {
	case m.Method == "server/discover" && (s.stateless || s.supported != ""):
		answer(`"result":{"supportedVersions":["` + cmp.Or(s.supported, "2026-07-28") + `"],"capabilities":` + s.capabilities + `,"instructions":` + strconv.Quote(s.instructions) + `}`)
	case m.Method == "server/discover", m.Method == "initialize" && s.stateless:
		answer(`"error":{"code":-32601,"message":"no such method"}`)
	case m.Method == "initialize":
		var p struct{ ProtocolVersion string }
		_ = json.Unmarshal(m.Params, &p) // a test of the gateway's own message
		if !s.noSession {
			w.Header().Set("Mcp-Session-Id", s.begin())
		}
		answer(`"result":{"protocolVersion":"` + p.ProtocolVersion + `","serverInfo":{},"capabilities":` + s.capabilities + `,"instructions":` + strconv.Quote(s.instructions) + `}`)
	case m.Method == "subscriptions/listen":
		s.stream(w, r, m)
	case m.Method == "ping":
		answer(`"result":{}`)
	case strings.HasSuffix(m.Method, "/list"):
		var p struct{ Cursor string }
		_ = json.Unmarshal(m.Params, &p)
		s.mu.Lock()
		lists := s.lists
		s.mu.Unlock()
		if result := lists(m.Method, p.Cursor); result != "" {
			answer(`"result":` + result)
			return
		}
		answer(`"error":{"code":-32601,"message":"Method not found"}`)
	case strings.HasPrefix(m.Method, "resources/") && strings.HasSuffix(m.Method, "subscribe"), m.Method == "logging/setLevel":
		answer(`"result":{}`)
	default:
		s.call(&turn{got: m, w: w, r: r, at: s})
	}
}

// stream serves a notification stream until the client or [scripted.hangUp] ends it.
func (s *scripted) stream(w http.ResponseWriter, r *http.Request, m got) {
	s.mu.Lock()
	refused := s.getStatus
	if s.strays != nil && slices.Contains(slices.Collect(maps.Values(s.streams)), m.Session) {
		refused = http.StatusConflict
	}
	s.mu.Unlock()
	if refused != 0 {
		w.WriteHeader(refused)
		return
	}
	messages := make(chan string, 10_000)
	s.mu.Lock()
	s.streams[messages] = m.Session
	s.asked[messages] = string(m.Params)
	s.opened++
	began := s.began
	if m.Method == "GET" {
		s.seen = append(s.seen, m)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, messages)
		delete(s.asked, messages)
		s.mu.Unlock()
	}()
	if began != nil {
		began()
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	if m.Method == "subscriptions/listen" && !s.mute {
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":%s}\n\n", s.acknowledge(m.Params))
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case text, ok := <-messages:
			if !ok {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", text)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// acknowledge returns the params of an acknowledgment. It honors the whole request except the refused resources and lists.
func (s *scripted) acknowledge(params json.RawMessage) string {
	var p struct {
		Notifications map[string]json.RawMessage
	}
	_ = json.Unmarshal(params, &p)
	if asked := p.Notifications["resourceSubscriptions"]; asked != nil && s.refused != nil {
		var uris []string
		_ = json.Unmarshal(asked, &uris)
		p.Notifications["resourceSubscriptions"], _ = json.Marshal(slices.DeleteFunc(uris, s.refused))
	}
	maps.DeleteFunc(p.Notifications, func(name string, _ json.RawMessage) bool { return s.refused != nil && s.refused(name) })
	text, _ := json.Marshal(p.Notifications)
	return `{"notifications":` + string(text) + `}`
}

// notify sends a message to all open streams and returns their number.
func (s *scripted) notify(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.streams {
		c <- text
	}
	return len(s.streams)
}

// sendTo sends a message to the listens whose params contain the text asked.
func (s *scripted) sendTo(asked, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, params := range s.asked {
		if _, open := s.streams[c]; open && strings.Contains(params, asked) {
			c <- text
		}
	}
}

// intercept makes first handle requests before the scripted backend. A request for which first reports false goes to the backend.
func (s *scripted) intercept(first func(w http.ResponseWriter, r *http.Request, m got) bool) {
	s.change(func(s *scripted) { s.first = first })
}

// on makes handle answer the requests of a method in place of the scripted backend.
func (s *scripted) on(method string, handle func(w http.ResponseWriter, r *http.Request, m got)) {
	s.intercept(func(w http.ResponseWriter, r *http.Request, m got) bool {
		if m.Method == method {
			handle(w, r, m)
		}
		return m.Method == method
	})
}

// onGET makes handle answer the GET requests in place of the scripted backend.
func (s *scripted) onGET(handle func(w http.ResponseWriter, r *http.Request)) {
	s.intercept(func(w http.ResponseWriter, r *http.Request, _ got) bool {
		if r.Method == http.MethodGet {
			handle(w, r)
		}
		return r.Method == http.MethodGet
	})
}

// unavailable refuses every request. It is a function for [scripted.intercept].
func unavailable(w http.ResponseWriter, _ *http.Request, _ got) bool {
	w.WriteHeader(http.StatusServiceUnavailable)
	return true
}

// showSession lets a backend answer calls with their session.
func showSession(s *scripted) { s.call = func(t *turn) { t.result(`{"by":"` + t.Session + `"}`) } }

// fails answers a request with a status and a JSON-RPC error.
func (m got) fails(w http.ResponseWriter, status, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, m.ID, code, message)
}

// change changes the backend while it serves.
func (s *scripted) change(f func(*scripted)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// alive returns the number of its sessions.
func (s *scripted) alive() (n int) {
	s.change(func(s *scripted) { n = len(s.sessions) })
	return n
}

// hangUp ends all open streams.
func (s *scripted) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.streams {
		close(c)
		delete(s.streams, c)
	}
}

// refuse answers further streams with the status, or accepts them if it is 0.
func (s *scripted) refuse(status int) { s.change(func(s *scripted) { s.getStatus = status }) }

func (s *scripted) begin() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	id := fmt.Sprintf("session-%d", s.made)
	s.sessions[id] = true
	return id
}

func (s *scripted) forget(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.sessions, id)
	}
	if len(ids) == 0 {
		clear(s.sessions)
	}
}

func (s *scripted) open() (n int) {
	s.change(func(s *scripted) { n = len(s.streams) })
	return n
}

// only waits until the nth stream is open and is the only one.
func (s *scripted) only(t *testing.T, n int) {
	t.Helper()
	expect.Eventually(t, fmt.Sprintf("stream %d is the only one that is open", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.opened == n && len(s.streams) == 1
	})
}

// list replaces the lists.
func (s *scripted) list(lists func(method, cursor string) string) {
	s.change(func(s *scripted) { s.lists = lists })
}

// received returns the messages with the given method so far.
func (s *scripted) received(method string) (out []got) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.seen {
		if m.Method == method {
			out = append(out, m)
		}
	}
	return out
}

// next waits for a notification of that method, or an answer for "".
func (s *scripted) next(t *testing.T, method string) got {
	t.Helper()
	for {
		if m := expect.Receive(t, fmt.Sprintf("a message with the method %q", method), s.arrived); m.Method == method {
			return m
		}
	}
}

// memory returns an empty store.
func memory(t testing.TB) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// at returns the configuration of a scripted backend.
func at(name string, s *scripted, change ...func(*api.Backend)) api.Backend {
	b := api.Backend{Name: name, URL: s.URL, Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion}
	for _, c := range change {
		c(&b)
	}
	return b
}

// parsed returns a configuration with the given YAML as its backends.
func parsed(t *testing.T, format string, args ...any) *config.Config {
	t.Helper()
	return expect.Value(config.Parse(fmt.Appendf(nil, "backends:\n"+format, args...)))(t)
}

func prefix(p string) func(*api.Backend) { return func(b *api.Backend) { b.Prefix = p } }

// quiet is the log of tests.
var quiet = slog.New(slog.DiscardHandler)

func gatewayOver(t *testing.T, db store.DB, backends ...api.Backend) *Gateway {
	t.Helper()
	return newGateway(t, Options{Backends: backends, DB: db})
}

// alone returns a backend and a gateway that serves it alone.
func alone(t *testing.T, change ...func(*scripted)) (*scripted, *Gateway) {
	t.Helper()
	s := newScripted(t, change...)
	return s, gatewayOver(t, memory(t), at("b", s))
}

// newGateway returns a gateway with the given options and the defaults of tests.
func newGateway(t testing.TB, o Options) *Gateway {
	t.Helper()
	if o.DB == nil {
		o.DB = memory(t)
	}
	o.Server, o.Key = json.RawMessage(`{"name":"gw","version":"1"}`), []byte("0123456789abcdef0123456789abcdef")
	o.Log, o.ListTTL = cmp.Or(o.Log, quiet), time.Minute
	return expect.Value(New(o))(t)
}

var ann = auth.Principal{ID: "ann", Workspace: auth.DefaultWorkspace, Scopes: []string{"mcp"}}

// sessionBased returns a client of 2025-11-25 that can answer questions.
func sessionBased(session string) api.Client {
	return api.Client{
		Principal: ann, Session: session, Version: "2025-11-25",
		Capabilities: json.RawMessage(`{"elicitation":{},"sampling":{},"roots":{}}`), Info: json.RawMessage(`{"name":"c","version":"1"}`),
	}
}

// of returns a client of which only the principal matters.
func of(p auth.Principal) api.Client { return api.Client{Principal: p} }

func statelessClient(p auth.Principal) api.Client {
	return api.Client{Principal: p, Version: "2026-07-28", Capabilities: json.RawMessage(`{}`)}
}

// clientOf returns a client of a stateless revision, or one with the session s1.
func clientOf(stateless bool) api.Client {
	if stateless {
		return statelessClient(ann)
	}
	return sessionBased("s1")
}

// sent is a message that the client got.
type sent struct {
	text     string
	response bool
}

// calling is a running call and the messages that its client has received.
type calling struct {
	messages chan sent
	done     chan error
}

// start calls a tool in the background. The text params is the whole of params.
func start(t *testing.T, g *Gateway, c api.Client, name, id, params string) *calling {
	t.Helper()
	x := &calling{messages: make(chan sent, 1000), done: make(chan error, 1)}
	go func() {
		x.done <- g.Call(t.Context(), api.Call{
			Client: c, Kind: api.Tools, Name: name, Member: "name", Method: "tools/call",
			ID: json.RawMessage(id), Params: json.RawMessage(params),
			Send: func(m json.RawMessage, response bool) error {
				x.messages <- sent{string(m), response}
				return nil
			},
		})
	}()
	return x
}

// next waits for a message.
func (x *calling) next(t *testing.T) sent {
	t.Helper()
	return expect.Receive(t, "a message", x.messages)
}

// end waits for the end of the call.
func (x *calling) end(t *testing.T) error {
	t.Helper()
	return expect.Receive(t, "the end of the call", x.done)
}

// call calls a tool and waits for the response.
func call(t *testing.T, g *Gateway, c api.Client, name string) (string, error) {
	t.Helper()
	x := start(t, g, c, name, "1", fmt.Sprintf(`{"name":%q,"arguments":{}}`, name))
	if err := x.end(t); err != nil {
		return "", err
	}
	return x.next(t).text, nil
}

// responds waits for the response and the end of the call.
func (x *calling) responds(t *testing.T) {
	t.Helper()
	expect.Contains(t, "the response", x.next(t).text, `"result"`)
	expect.OK(t, x.end(t))
}

// accept answers the next question of a call in a session, and returns the question's id.
func (x *calling) accept(t *testing.T, g *Gateway, session string) (id string) {
	t.Helper()
	id, _ = x.question(t)
	expect.OK(t, g.Answer(t.Context(), sessionBased(session), id, accepting(id)))
	return id
}

// mustCall calls a tool and fails the test if the call has an error.
func mustCall(t *testing.T, g *Gateway, c api.Client, name string) string {
	t.Helper()
	return expect.Value(call(t, g, c, name))(t)
}

// sees checks the names of the tools that a client sees.
func sees(t *testing.T, g *Gateway, c api.Client, want ...string) {
	t.Helper()
	expect.List(t, "the tools", names(g.List(t.Context(), c, api.Tools)), want)
}

// bubble runs a subtest that has a clock of its own.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// revisions runs a test with a session-based backend and with a stateless one.
func revisions(t *testing.T, f func(t *testing.T, stateless bool)) {
	for name, stateless := range map[string]bool{"2025": false, "2026": true} {
		bubble(t, name, func(t *testing.T) { f(t, stateless) })
	}
}
