package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
)

// script is a backend that does what a test says. It serves one tool, tool, one
// prompt, prompt, and one resource, test://resource.
type script struct {
	URL string
	// call serves everything that is proxied.
	call func(*exchange)
	// tool is the definition of the tool.
	tool string

	t         *testing.T
	stateless bool
	mu        sync.Mutex
	answers   map[string]chan json.RawMessage // by the JSON of the id
	got       []json.RawMessage               // messages that are no call
	heard     chan json.RawMessage            // notifications/cancelled
	calls     []json.RawMessage
}

// exchange is one call at the script.
type exchange struct {
	*script
	Header http.Header
	Params json.RawMessage
	ID     json.RawMessage
	ctx    context.Context
	w      http.ResponseWriter
	asked  int
}

func newScript(t *testing.T, stateless bool, call func(*exchange)) *script {
	s := &script{
		t: t, stateless: stateless, call: call, tool: `{"name":"tool","inputSchema":{"type":"object"}}`,
		answers: map[string]chan json.RawMessage{}, heard: make(chan json.RawMessage, 10),
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	method, _ := jsonrpc.String(jsonrpc.Member(body, "method"))
	id, params := jsonrpc.Member(body, "id"), jsonrpc.Member(body, "params")
	answer := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(jsonrpc.AppendResult(nil, id, json.RawMessage(result)))
	}
	capabilities := `{"tools":{},"prompts":{},"resources":{},"logging":{}}`
	switch {
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case method == "server/discover" && s.stateless:
		answer(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":` + capabilities + `,"ttlMs":0,"cacheScope":"private"}`)
	case method == "initialize" && !s.stateless:
		s.note(body)
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", s.count("initialize")))
		answer(`{"protocolVersion":"2025-11-25","serverInfo":{"name":"script","version":"1"},"capabilities":` + capabilities + `}`)
	case method == "tools/list":
		answer(`{"tools":[` + s.tool + `]}`)
	case method == "prompts/list":
		answer(`{"prompts":[{"name":"prompt"}]}`)
	case method == "resources/list":
		answer(`{"resources":[{"uri":"test://resource","name":"resource"}]}`)
	case method == "resources/templates/list":
		answer(`{"resourceTemplates":[]}`)
	case method == "logging/setLevel" && !s.stateless:
		s.note(body)
		answer(`{}`)
	case method == "tools/call" || method == "prompts/get" || method == "resources/read":
		s.mu.Lock()
		s.calls = append(s.calls, body)
		s.mu.Unlock()
		s.call(&exchange{script: s, Header: r.Header, Params: params, ID: id, ctx: r.Context(), w: w})
	case method == "":
		s.mu.Lock()
		if c := s.answers[string(id)]; c != nil {
			c <- body
		}
		s.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
	case id == nil:
		if method == "notifications/cancelled" {
			s.heard <- params
		}
		w.WriteHeader(http.StatusAccepted)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: jsonrpc.MethodNotFound, Message: "not here"}))
	}
}

func (s *script) note(body json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, body)
}

// count is how often a method was called that is noted.
func (s *script) count(method string) (n int) { return len(s.noted(method)) }

func (s *script) noted(method string) (out []json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, body := range s.got {
		if m, _ := jsonrpc.String(jsonrpc.Member(body, "method")); m == method {
			out = append(out, body)
		}
	}
	return out
}

func (s *script) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func (x *exchange) write(message []byte) {
	x.w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprintf(x.w, "data: %s\n\n", message)
	x.w.(http.Flusher).Flush()
}

// tell sends a notification.
func (x *exchange) tell(method, params string) {
	x.write(jsonrpc.AppendNotification(nil, method, json.RawMessage(params)))
}

// send puts a question and returns where its answer comes.
func (x *exchange) send(method, params string) <-chan json.RawMessage {
	x.asked++
	id := fmt.Sprintf(`"%s-%d"`, x.ID, x.asked)
	c := make(chan json.RawMessage, 1)
	x.mu.Lock()
	x.answers[id] = c
	x.mu.Unlock()
	x.write([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`))
	return c
}

// ask puts a question and waits. Without an answer, because the connection was closed, it
// ends the call.
func (x *exchange) ask(method, params string) json.RawMessage {
	select {
	case a := <-x.send(method, params):
		return a
	case <-x.ctx.Done():
		panic(http.ErrAbortHandler)
	}
}

func (x *exchange) result(result string) {
	x.write(jsonrpc.AppendResult(nil, x.ID, json.RawMessage(result)))
}

func (x *exchange) fail(code int, data string) {
	x.write([]byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"it failed","data":%s}}`, x.ID, code, data)))
}

// text is the result of a tool that says something.
func text(format string, a ...any) string {
	b, _ := json.Marshal(fmt.Sprintf(format, a...))
	return `{"content":[{"type":"text","text":` + string(b) + `}]}`
}

// instances are gateways that share nothing but the store.
func instances(t *testing.T, n int, backends ...*script) []*gateway.Gateway {
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return overStore(t, n, db, backends...)
}

func overStore(t *testing.T, n int, db store.DB, backends ...*script) []*gateway.Gateway {
	var list []config.Backend
	for i, s := range backends {
		list = append(list, config.Backend{
			Name: fmt.Sprintf("b%d", i), URL: s.URL, Prefix: strings.Repeat("b_", i), Workspace: "default", ProtocolVersion: config.AutoVersion,
		})
	}
	out := make([]*gateway.Gateway, n)
	for i := range out {
		var err error
		out[i], err = gateway.New(gateway.Options{
			Backends: list, DB: db, Key: make([]byte, 32), Log: slog.New(slog.DiscardHandler),
			Server: json.RawMessage(`{"name":"gateway","version":"1"}`),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

const (
	all = `{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}`
	// form asks for a name.
	form = `{"message":"Name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}`
)

func someone(version string) api.Client {
	c := api.Client{
		Principal: auth.Principal{Workspace: "default", ID: "alice"}, Version: mcpspec.Version(version),
		Capabilities: json.RawMessage(all), Info: json.RawMessage(`{"name":"client","version":"2"}`),
	}
	if version < "2026" {
		c.Session = "client-session"
	}
	return c
}

const (
	v2025 = "2025-11-25"
	v2026 = "2026-07-28"
)

// outcome is what a client saw of a call.
type outcome struct {
	before   []json.RawMessage
	response json.RawMessage
	err      error
}

// called makes a call of the tool; params are those behind the name.
func called(t *testing.T, g *gateway.Gateway, c api.Client, params string, change ...func(*api.Call)) outcome {
	t.Helper()
	call := api.Call{
		Client: c, Kind: api.Tools, Name: "tool", Member: "name", Method: "tools/call", ID: json.RawMessage(`7`),
		Params: json.RawMessage(`{"name":"tool"` + params + `}`), Header: http.Header{},
	}
	var o outcome
	call.Send = func(message json.RawMessage, response bool) error {
		if response {
			o.response = message
		} else {
			o.before = append(o.before, message)
		}
		return nil
	}
	for _, f := range change {
		f(&call)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	o.err = g.Call(ctx, call)
	return o
}

// result is the result of a call that went well.
func (o outcome) result(t *testing.T) json.RawMessage {
	t.Helper()
	result := jsonrpc.Member(o.response, "result")
	if o.err != nil || result == nil {
		t.Fatalf("got the error %v and the response %s", o.err, o.response)
	}
	return result
}

// code is the code of the error that a call ended with, and its data.
func (o outcome) code(t *testing.T) (int, string) {
	t.Helper()
	var e struct {
		Error struct {
			Code int             `json:"code"`
			Data json.RawMessage `json:"data"`
		} `json:"error"`
	}
	if o.response != nil {
		_ = json.Unmarshal(o.response, &e)
		return e.Error.Code, string(e.Error.Data)
	}
	if rpc, ok := o.err.(*jsonrpc.Error); ok {
		data, _ := json.Marshal(rpc.Data)
		return rpc.Code, string(data)
	}
	return 0, ""
}

// required is an input_required result in its parts.
type required struct {
	Kind     string                     `json:"resultType"`
	Requests map[string]json.RawMessage `json:"inputRequests"`
	State    string                     `json:"requestState"`
}

func (o outcome) required(t *testing.T) required {
	t.Helper()
	var r required
	if err := json.Unmarshal(o.result(t), &r); err != nil || r.Kind != "input_required" || r.State == "" {
		t.Fatalf("got %s (%v), want input_required", o.response, err)
	}
	return r
}

// retry are the params of the next round; every request gets the response.
func (r required) retry(response string) string {
	answers := map[string]json.RawMessage{}
	for key := range r.Requests {
		answers[key] = json.RawMessage(response)
	}
	b, _ := json.Marshal(answers)
	return fmt.Sprintf(`,"inputResponses":%s,"requestState":%q`, b, r.State)
}
