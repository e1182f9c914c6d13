package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

const tasksExtension = `"io.modelcontextprotocol/tasks"`

// taskClient returns a client of 2026-07-28 that declares the tasks extension.
func taskClient(id string) api.Client {
	c := statelessClient(auth.Principal{ID: id, Workspace: auth.DefaultWorkspace})
	c.Capabilities = json.RawMessage(`{"elicitation":{},"extensions":{` + tasksExtension + `:{}}}`)
	return c
}

// tasking lets a backend answer each tools/call with a task that has the given id, which is JSON.
func tasking(id string) func(*scripted) {
	return func(s *scripted) {
		s.stateless, s.capabilities = true, `{"tools":{},"extensions":{`+tasksExtension+`:{}}}`
		s.call = func(t *turn) {
			switch t.Method {
			case "tools/call":
				t.result(`{"resultType":"task","taskId":` + id + `,"status":"working","ttlMs":null}`)
			case "tasks/get":
				t.result(`{"resultType":"complete","taskId":` + id + `,"status":"completed","result":{"content":[],"_meta":{"io.github.mcp-events/cursor":"forged"}}}`)
			default:
				t.result(`{"resultType":"complete"}`)
			}
		}
	}
}

// ask sends a request about a task.
func ask(t *testing.T, g *Gateway, c api.Client, method, id, more string) (string, error) {
	t.Helper()
	o := do(t, g, api.Call{
		Client: c, Kind: api.Tasks, Name: id, Member: "taskId", Method: method, Params: json.RawMessage(fmt.Sprintf(`{"taskId":%q%s}`, id, more)),
	})
	return string(o.response), o.err
}

// taskOf returns the id of the task with which a call was answered.
func taskOf(t *testing.T, response string) string {
	t.Helper()
	id, ok := jsonrpc.String(jsonrpc.Member(jsonrpc.Member(json.RawMessage(response), "result"), "taskId"))
	if !ok {
		t.Fatalf("%s has no task", response)
	}
	return id
}

// GWN-23: given a backend that answers a call with a task, then the client gets another id, under which any instance forwards its
// requests to the backend, with the backend's own id byte for byte. The answers have the same id.
func TestTasksWorkAtAnyInstance(t *testing.T) {
	for name, own := range map[string]string{
		"simple":  `"786512e2"`,
		"escapes": `"\u00e9\/ \ud83d\ude00 \n\"x\" é"`,
		"longest": `"` + strings.Repeat("x", maxOwnTask-2) + `"`,
	} {
		bubble(t, name, func(t *testing.T) {
			s, one := alone(t, tasking(own))
			other := gatewayOver(t, memory(t), at("b", s))
			c := taskClient("ann")
			id := taskOf(t, mustCall(t, one, c, "t"))
			if text, _ := jsonrpc.String(json.RawMessage(own)); strings.Contains(id, text) || len(id) > 2<<10 {
				t.Errorf("the client gets the id %s", id)
			}
			expect.Equal(t, "the id of the same task in another answer", taskOf(t, mustCall(t, other, c, "t")), id)
			for method, more := range map[string]string{
				"tasks/get": "", "tasks/cancel": "", "tasks/update": `,"inputResponses":{"name":{"action":"accept","n":9007199254740993}}`,
			} {
				got := expect.Value(ask(t, other, c, method, id, more))(t)
				if has := strings.Contains(got, own); has || strings.Contains(got, "forged") || !strings.Contains(got, `"id":7`) {
					t.Errorf("%s: got %s, want an answer without the backend's id and without our members", method, got)
				}
				if method == "tasks/get" {
					expect.Equal(t, "the id in the answer", taskOf(t, got), id)
				}
				m := s.received(method)[0]
				expect.Equal(t, method+": the id at the backend", string(jsonrpc.Member(m.Params, "taskId")), own)
				if text, _ := jsonrpc.String(json.RawMessage(own)); m.Header.Get("Mcp-Name") == "" || m.Header.Get("Mcp-Method") != method ||
					name == "simple" && m.Header.Get("Mcp-Name") != text {
					t.Errorf("%s: got the headers %v", method, m.Header)
				}
				expect.Contains(t, method+": the request at the backend", m.Raw, more)
			}
		})
	}
}

// GWN-23: two backends may use the same ids. Each request reaches the backend that has the task, and gets its own credentials.
func TestTasksOfEqualIDs(t *testing.T) {
	var got []string
	var backends []api.Backend
	for _, name := range []string{"a", "b"} {
		s := newScripted(t, tasking(`"1"`), func(s *scripted) {
			answer := s.call
			s.call = func(t *turn) {
				if t.Method == "tasks/cancel" {
					got = append(got, name)
				}
				answer(t)
			}
		})
		backends = append(backends, at(name, s, prefix(name+"_")))
	}
	g := gatewayOver(t, memory(t), backends...)
	c := taskClient("ann")
	a, b := taskOf(t, mustCall(t, g, c, "a_t")), taskOf(t, mustCall(t, g, c, "b_t"))
	expect.Differ(t, "the id of the second task", a, b)
	for _, id := range []string{b, a, b} {
		expect.OK(t, expect.ErrOf(ask(t, g, c, "tasks/cancel", id, "")))
	}
	expect.List(t, "the backends that were asked to cancel", got, []string{"b", "a", "b"})
}

// GWN-23: a request about a task of another principal, a forged id, or a task of a backend that is gone fails as for an unknown task. The
// backend does not hear of it. A client that does not declare the extension gets -32021.
func TestUnknownTasks(t *testing.T) {
	s, g := alone(t, tasking(`"1"`))
	ann := taskClient("ann")
	id := taskOf(t, mustCall(t, g, ann, "t"))
	bob, elsewhere, plain, scoped := taskClient("bob"), taskClient("ann"), statelessClient(ann.Principal), gatewayOver(t, memory(t), at("b", s, func(b *api.Backend) { b.Scopes = []string{"x"} }))
	elsewhere.Principal.Workspace = "elsewhere"
	other := newScripted(t, tasking(`"1"`))
	older := newScripted(t, func(s *scripted) { s.capabilities = `{"tools":{}}` })
	downgraded := newScripted(t, tasking(`"1"`))
	lost := taskOf(t, mustCall(t, gatewayOver(t, memory(t), at("b", downgraded)), ann, "t"))
	downgraded.change(func(s *scripted) { s.stateless = false })
	if _, _, ok := g.tasks.Open(elsewhere.Principal, id); ok {
		t.Error("the id is valid in another workspace")
	}
	for name, tt := range map[string]struct {
		g  *Gateway
		c  api.Client
		id string
	}{
		"another principal":      {g, bob, id},
		"another workspace":      {g, elsewhere, id},
		"the backend's id":       {g, ann, "1"},
		"changed":                {g, ann, id[:len(id)-2] + "AA"},
		"huge":                   {g, ann, strings.Repeat("A", 1<<20)},
		"the backend is hidden":  {scoped, ann, id},
		"the backend is gone":    {gatewayOver(t, memory(t)), ann, id},
		"another server":         {gatewayOver(t, memory(t), at("b", other)), ann, id},
		"a server without tasks": {gatewayOver(t, memory(t), at("b", older)), ann, id},
		"a downgraded server":    {gatewayOver(t, memory(t), at("b", downgraded)), ann, lost},
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
				got, err := ask(t, tt.g, tt.c, method, tt.id, "")
				expect.Fault(t, method+" "+got, err, fault.Invalid)
			}
		})
	}
	_, err := ask(t, g, plain, "tasks/get", id, "")
	code, data := outcome{err: err}.code()
	expect.Equal(t, "the code for a client without the extension", code, -32021)
	expect.Contains(t, "the data", data, `{"requiredCapabilities":{"extensions":{`+tasksExtension+`:{}}}}`)
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		for _, b := range []*scripted{s, other, older, downgraded} {
			expect.Equal(t, "requests at a backend", len(b.received(method)), 0)
		}
	}
}

// GWN-23: a task that the client cannot use is an error, and its id does not reach the client.
func TestUnusableTasks(t *testing.T) {
	for name, tt := range map[string]struct {
		id     string
		client api.Client
		want   any // a kind of fault, or the code of an error
	}{
		"a client without the extension": {`"secret-1"`, statelessClient(ann), -32021},
		"a client with a session": {`"secret-1"`, func() api.Client {
			c := sessionBased("s")
			c.Capabilities = taskClient("ann").Capabilities
			return c
		}(), -32600},
		"a number as the id": {`17`, taskClient("ann"), fault.Unavailable},
		"an empty id":        {`""`, taskClient("ann"), fault.Unavailable},
		"a huge id":          {`"secret-` + strings.Repeat("x", maxOwnTask) + `"`, taskClient("ann"), fault.Unavailable},
	} {
		bubble(t, name, func(t *testing.T) {
			s, g := alone(t, tasking(tt.id))
			got, err := call(t, g, tt.client, "t")
			if kind, ok := tt.want.(fault.Kind); ok {
				expect.Fault(t, "the call "+got, err, kind)
			} else if rpc, ok := errors.AsType[*jsonrpc.Error](err); !ok || rpc.Code != tt.want {
				t.Errorf("got %s, %v, want the error %v", got, err, tt.want)
			}
			expect.Lacks(t, "the client's answer", fmt.Sprint(got, fault.Public(err)), "secret-")
			for _, m := range s.received("tools/call") {
				if declared := strings.Contains(m.Raw, tasksExtension); declared && tt.client.Session != "" {
					t.Errorf("the gateway declares the extension for a client that cannot have it: %s", m.Raw)
				}
			}
		})
	}
}

// GWN-23: the extension is declared to clients if a backend that they can see declares it and has a revision that has it.
func TestTasksAreDeclared(t *testing.T) {
	with := newScripted(t, tasking(`"1"`))
	without := newScripted(t, func(s *scripted) { s.stateless, s.capabilities = true, `{"tools":{}}` })
	older := newScripted(t, func(s *scripted) { s.capabilities = `{"tools":{},"tasks":{},"extensions":{` + tasksExtension + `:{}}}` })
	hidden := func(b *api.Backend) { b.Scopes = []string{"x"} }
	for name, tt := range map[string]struct {
		backends []api.Backend
		want     bool
	}{
		"one of two has it":    {[]api.Backend{at("a", without), at("b", with)}, true},
		"no backend has it":    {[]api.Backend{at("a", without), at("c", older)}, false},
		"a hidden one has it":  {[]api.Backend{at("a", without), at("b", with, hidden)}, false},
		"there is no backend ": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := gatewayOver(t, memory(t), tt.backends...)
			expect.Equal(t, "tasks", g.Capabilities(t.Context(), taskClient("ann")).Tasks, tt.want)
		})
	}
}

// GWN-23: a message that names its task in _meta has our id of the task.
func TestRelatedTasks(t *testing.T) {
	s, g := alone(t, tasking(`"secret-1"`))
	c := taskClient("ann")
	id := taskOf(t, mustCall(t, g, c, "t"))
	s.change(func(s *scripted) {
		s.call = func(t *turn) {
			meta := `"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"secret-1","x":1}}`
			t.notify("notifications/progress", `{"progressToken":"p","progress":1,`+meta+`}`)
			t.result(`{"content":[],` + meta + `}`)
		}
	})
	x := start(t, g, c, "t", "1", `{"name":"t","_meta":{"progressToken":"p"}}`)
	expect.OK(t, x.end(t))
	for _, text := range []string{x.next(t).text, x.next(t).text} {
		expect.Contains(t, "the state", text, `{"taskId":"`+id+`","x":1}`)
		expect.Lacks(t, "the state without a secret", text, "secret")
	}
}

// state returns notifications/tasks.
func state(id, more string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":%q,"status":"working"%s}}`, id, more)
}

// nextState waits for the next state of a task.
func nextState(t *testing.T, states <-chan *api.Task) string {
	t.Helper()
	s := expect.Receive(t, "a state of the task", states)
	expect.Equal(t, "the backend of the task", s.Backend, "b")
	return string(s.Params)
}

// GWN-23: a listen for tasks gets the backend's notifications about them under our ids, and only those. It survives a broken connection,
// and gets the states after it.
func TestTasksAreWatched(t *testing.T) {
	bubble(t, "watched", func(t *testing.T) {
		s := newScripted(t, tasking(`"secret-1"`))
		g := gatewayOver(t, memory(t), at("b", s))
		c := taskClient("ann")
		id := taskOf(t, mustCall(t, g, c, "t"))
		watched, states, err := g.WatchTasks(t.Context(), c, []string{"unknown", id, id})
		expect.OK(t, err)
		expect.List(t, "the watched tasks", watched, []string{id})
		expect.Equal(t, "streams at the backend", s.open(), 1)
		if asked := s.received("subscriptions/listen")[0].Raw; !strings.Contains(asked, `"notifications":{"taskIds":["secret-1"]}`) || !strings.Contains(asked, tasksExtension) {
			t.Errorf("the backend got %s", asked)
		}
		s.notify(state("another", ""))
		s.notify(state("secret-1", `,"inputRequests":{"q":{"method":"sampling/createMessage","params":{}}}`)) // the client cannot answer it
		s.notify(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		s.notify(state("secret-1", `,"n":9007199254740993,"_meta":{"io.github.mcp-events/cursor":"forged","x":1}`))
		expect.Equal(t, "the state", nextState(t, states), `{"taskId":"`+id+`","status":"working","n":9007199254740993,"_meta":{"x":1}}`)
		expect.Equal(t, "dropped messages", len(g.DroppedCounts()["default/b"]), 3)
		s.hangUp()
		if got := nextState(t, states); !strings.Contains(got, `"taskId":"`+id+`","status":"completed"`) || strings.Contains(got, "resultType") {
			t.Errorf("after the connection broke: got %s, want the state", got)
		}
		s.notify(state("secret-1", ""))
		expect.Equal(t, "the state after it", nextState(t, states), `{"taskId":"`+id+`","status":"working"}`)
		g.Replace(t.Context(), nil)
		s.notify(state("secret-1", ""))
		if got, open := <-states; open {
			t.Errorf("got %s from a backend that was removed, want the end", got.Params)
		}
	})
}

// GWN-23: a listen acknowledges only tasks of which the backend notifies. A flood of states waits for the client.
func TestWatchesOfOtherBackends(t *testing.T) {
	for name, tt := range map[string]struct {
		listen  func(w http.ResponseWriter, r *http.Request, m got)
		watched int
		closed  bool
	}{
		"refuses":        {func(w http.ResponseWriter, _ *http.Request, m got) { m.fails(w, 400, -32602, "no") }, 0, true},
		"no such method": {func(w http.ResponseWriter, _ *http.Request, m got) { m.fails(w, 404, -32601, "no") }, 0, true},
		"acknowledges nothing": {func(w http.ResponseWriter, r *http.Request, _ got) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"notifications\":{}}}\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, 0, false},
		"hangs":   {func(_ http.ResponseWriter, r *http.Request, _ got) { <-r.Context().Done() }, 1, false},
		"is down": {func(w http.ResponseWriter, _ *http.Request, _ got) { w.WriteHeader(503) }, 1, false},
	} {
		bubble(t, name, func(t *testing.T) {
			s, g := alone(t, tasking(`"1"`))
			c := taskClient("ann")
			id := taskOf(t, mustCall(t, g, c, "t"))
			s.on("subscriptions/listen", tt.listen)
			began := time.Now()
			watched, states, err := g.WatchTasks(t.Context(), c, []string{id})
			expect.OK(t, err)
			expect.Equal(t, "watched tasks", len(watched), tt.watched)
			expect.AtMost(t, "the time that the client waits for the acknowledgment", time.Since(began), ackTime)
			select {
			case _, open := <-states:
				if open || !tt.closed {
					t.Errorf("open %t, want an end %t", open, tt.closed)
				}
			case <-time.After(time.Minute):
				if tt.closed {
					t.Error("the watch does not end")
				}
			}
		})
	}
	bubble(t, "floods", func(t *testing.T) {
		s, g := alone(t, tasking(`"1"`))
		c := taskClient("ann")
		id := taskOf(t, mustCall(t, g, c, "t"))
		_, states, err := g.WatchTasks(t.Context(), c, []string{id})
		expect.OK(t, err)
		for range 5000 {
			s.notify(state("1", ""))
		}
		time.Sleep(time.Second)
		expect.Equal(t, "states in memory", len(states), maxStates)
		for range 5000 {
			nextState(t, states)
		}
	})
	bubble(t, "no extension", func(t *testing.T) {
		_, g := alone(t, tasking(`"1"`))
		_, _, err := g.WatchTasks(t.Context(), statelessClient(ann), []string{"x"})
		if rpc, ok := errors.AsType[*jsonrpc.Error](err); !ok || rpc.Code != -32021 {
			t.Errorf("got %v, want -32021", err)
		}
	})
}

// withExtensions returns a change of a scripted backend that declares extensions, which are members of a JSON object.
func withExtensions(stateless bool, extensions string) func(*scripted) {
	return func(s *scripted) {
		s.stateless, s.capabilities = stateless, `{"tools":{},"extensions":{`+extensions+`}}`
		s.call = func(t *turn) {
			t.notify("notifications/com.example/found", `{"n":1}`)
			t.notify("notifications/org.other/found", `{"n":2}`)
			t.result(`{"items":["a"],"big":9007199254740993}`)
		}
	}
}

// callMethod calls a method of an extension and returns the messages to the client.
func callMethod(t *testing.T, g *Gateway, c api.Client, method, params string) (messages []string, err error) {
	t.Helper()
	call := api.Call{Client: c, Kind: api.Extensions, Name: method, Method: method}
	if params != "" {
		call.Params = json.RawMessage(params)
	}
	o := do(t, g, call)
	for _, m := range append(o.before, o.response) {
		messages = append(messages, string(m))
	}
	return messages, o.err
}

// eachClient runs a test with a client of each kind of revisions.
func eachClient(t *testing.T, f func(t *testing.T, c api.Client)) {
	for name, c := range map[string]api.Client{"client of 2025": sessionBased("s"), "client of 2026": statelessClient(ann)} {
		t.Run(name, func(t *testing.T) { f(t, c) })
	}
}

// GWN-24: a method of an extension goes to the only backend that declares the extension, with its params, and the result comes back
// byte for byte. The gateway relays notifications of the extension within the call, and drops notifications of other extensions.
func TestExtensionMethods(t *testing.T) {
	for _, stateless := range []bool{false, true} {
		eachClient(t, func(t *testing.T, c api.Client) {
			s, other := newScripted(t, withExtensions(stateless, `"com.example/catalog":{"suggest":true}`)), newScripted(t, withExtensions(!stateless, ``))
			g := gatewayOver(t, memory(t), at("other", other), at("b", s))
			expect.Equal(t, "the settings", string(g.Capabilities(t.Context(), c).Extensions["com.example/catalog"]), `{"suggest":true}`)
			for _, method := range []string{"com.example/search", "com.example/catalog/search", "catalog/search"} {
				messages, err := callMethod(t, g, c, method, `{"query":"x","limit":9007199254740993}`)
				text := strings.Join(messages, "\n")
				if err != nil || !strings.Contains(text, `"items":["a"],"big":9007199254740993`) ||
					!strings.Contains(text, "com.example/found") || strings.Contains(text, "org.other/found") {
					t.Errorf("%s: got %s, %v", method, text, err)
				}
				got := s.received(method)
				if len(got) != 1 || !strings.Contains(string(got[0].Params), `"query":"x","limit":9007199254740993`) || len(other.received(method)) != 0 {
					t.Errorf("%s: the backend got %v", method, got)
				}
				expect.Equal(t, method+": the header Mcp-Method", got[0].Header.Get("Mcp-Method"), map[bool]string{true: method}[stateless])
				expect.Equal(t, method+": the header Mcp-Name", got[0].Header.Get("Mcp-Name"), "")
			}
			if _, err := callMethod(t, g, c, "com.example/search", ""); err != nil {
				t.Errorf("a call without params: %v", err)
			}
			for _, method := range []string{"com.example.search", "com.other/search", "com.example/other/search", "other/search", "com.example/", "catalog"} {
				expect.True(t, method+" is no method of the extension", !g.Has(t.Context(), c, api.Extensions, method))
			}
		})
	}
}

// GWN-24: a method of an extension that several backends declare is refused with an error that names them. Rules can make it unambiguous.
func TestAmbiguousExtension(t *testing.T) {
	eachClient(t, func(t *testing.T, c api.Client) {
		one, two := newScripted(t, withExtensions(true, `"com.example/catalog":{"n":1}`)), newScripted(t, withExtensions(false, `"com.example/catalog":{"n":2}`))
		db := memory(t)
		g := gatewayOver(t, db, at("one", one), at("two", two))
		_, err := callMethod(t, g, c, "com.example/search", `{}`)
		if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Public(err), "one, two") || fmt.Sprint(fault.DataOf(err)) != "map[backends:[one two]]" {
			t.Errorf("got %v with the data %v, want an error that names both backends", err, fault.DataOf(err))
		}
		expect.Equal(t, "calls of an ambiguous method at the backends", len(one.received("com.example/search"))+len(two.received("com.example/search")), 0)
		expect.Equal(t, "the settings of the first backend", string(g.Capabilities(t.Context(), c).Extensions["com.example/catalog"]), `{"n":1}`)
		g = gatewayOver(t, db, at("one", one, func(b *api.Backend) { b.Extensions = rules.Rules{Deny: []string{"com.example/*"}} }), at("two", two))
		if _, err = callMethod(t, g, c, "com.example/search", `{}`); err != nil || len(two.received("com.example/search")) != 1 {
			t.Errorf("with a rule for one of them: got %v", err)
		}
		expect.Equal(t, "the settings of the allowed backend", string(g.Capabilities(t.Context(), c).Extensions["com.example/catalog"]), `{"n":2}`)
	})
}

// GWN-25: the name of a method, which the client chooses, is short in the log.
func TestLongMethodsAreShortInTheLog(t *testing.T) {
	var out bytes.Buffer
	s := newScripted(t, withExtensions(true, `"com.example/catalog":{}`), func(s *scripted) { s.call = func(t *turn) { t.result(`{}`) } })
	g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, Log: slog.New(slog.NewJSONHandler(&out, nil))})
	expect.OK(t, expect.ErrOf(callMethod(t, g, statelessClient(ann), "com.example/"+strings.Repeat("x", 500), `{}`)))
	var line struct{ Msg, Method, Outcome string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Outcome != "ok" || !strings.HasPrefix(line.Method, "com.example/x") || len(line.Method) > 140 {
		t.Errorf("got %s, %v, want a line with a short method", out.String(), err)
	}
}

// GWN-24, GWN-25: a caller can use only the extensions of backends that it may see, and that the rules allow it.
func TestExtensionsForWhom(t *testing.T) {
	s := newScripted(t, withExtensions(true, `"com.example/catalog":{},"com.example.admin/users":{}`))
	g := gatewayOver(t, memory(t), at("b", s, func(b *api.Backend) {
		b.Scopes, b.Extensions = []string{"mcp"}, rules.Rules{Scopes: map[string][]string{"com.example.admin/*": {"write"}}}
	}))
	stranger := auth.Principal{ID: "stranger", Workspace: auth.DefaultWorkspace}
	for _, tc := range []struct {
		who    auth.Principal
		method string
		has    bool
		want   string // in the error
	}{
		{ann, "com.example/search", true, ""},
		{ann, "com.example.admin/delete", true, "this needs the scope write"},
		{bea, "com.example.admin/delete", true, ""},
		{stranger, "com.example/search", false, "there is no extension method"},
	} {
		_, err := callMethod(t, g, statelessClient(tc.who), tc.method, `{}`)
		if has := g.Has(t.Context(), of(tc.who), api.Extensions, tc.method); has != tc.has || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s by %s: got %v and the error %v, want %v and %q", tc.method, tc.who.ID, has, err, tc.has, tc.want)
		}
	}
	expect.Equal(t, "the number of ann's extensions", len(g.Capabilities(t.Context(), of(ann)).Extensions), 1)
	expect.Equal(t, "the number of the stranger's extensions", len(g.Capabilities(t.Context(), of(stranger)).Extensions), 0)
}

// GWN-24: a client's notification of an extension reaches the backend in the form of its revision. Others are dropped.
func TestNotificationsOfExtensions(t *testing.T) {
	for _, stateless := range []bool{false, true} {
		eachClient(t, func(t *testing.T, c api.Client) {
			s := newScripted(t, withExtensions(stateless, `"com.example/catalog":{}`))
			g := gatewayOver(t, memory(t), at("b", s))
			const method = "notifications/com.example/changed"
			expect.OK(t, g.NotifyExtension(t.Context(), c, "notifications/com.unknown/changed", nil))
			expect.OK(t, g.NotifyExtension(t.Context(), c, "notifications/initialized", nil))
			params := `{"n":1,"_meta":{"x":1}}`
			if c.Version.Stateless() {
				params = `{"n":1,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","x":1}}`
			}
			expect.OK(t, g.NotifyExtension(t.Context(), c, method, json.RawMessage(params)))
			m := s.next(t, method)
			if has := strings.Contains(m.Raw, "protocolVersion"); has != stateless || (m.Session == "") != stateless || !strings.Contains(m.Raw, `"x":1`) || !strings.Contains(m.Raw, `"n":1`) {
				t.Errorf("the backend got %s in session %q", m.Raw, m.Session)
			}
			expect.Equal(t, "notifications at the backend", len(s.received("notifications/com.unknown/changed"))+len(s.received(method)), 1)
		})
	}
}
