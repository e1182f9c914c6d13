//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// taskServer is a backend with the tasks extension, written after its specification. Each call of the tool "work" is a task. The task asks
// for a name, and completes when it gets one.
type taskServer struct {
	URL string

	mu     sync.Mutex
	tasks  map[string]string // the states of tasks, as members of JSON
	change chan struct{}     // is closed and replaced at each change
	names  []string          // the Mcp-Name headers of requests about tasks
}

const declaresTasks = `"extensions":{"io.modelcontextprotocol/tasks":{}}`

func newTaskServer(t *testing.T) *taskServer {
	s := &taskServer{tasks: map[string]string{}, change: make(chan struct{})}
	srv := httptest.NewServer(s)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	s.URL = srv.URL
	return s
}

func (s *taskServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			TaskID         string
			InputResponses map[string]struct{ Content struct{ Name string } }
			Notifications  struct{ TaskIDs []string }
			Meta           map[string]json.RawMessage `json:"_meta"`
		}
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&m) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := func(format string, args ...any) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,`+format+`}`, append([]any{m.ID}, args...)...)
	}
	result := func(format string, args ...any) { answer(`"result":{"resultType":"complete"`+format+`}`, args...) }
	if strings.HasPrefix(m.Method, "tasks/") {
		s.names = append(s.names, r.Header.Get("Mcp-Name"))
		if !strings.Contains(string(m.Params.Meta["io.modelcontextprotocol/clientCapabilities"]), "io.modelcontextprotocol/tasks") {
			answer(`"error":{"code":-32021,"message":"missing capability"}`)
			return
		}
		if _, ok := s.tasks[m.Params.TaskID]; !ok {
			answer(`"error":{"code":-32602,"message":"task not found"}`)
			return
		}
	}
	switch m.Method {
	case "server/discover":
		result(`,"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},%s}`, declaresTasks)
	case "tools/list":
		result(`,"tools":[{"name":"work","inputSchema":{"type":"object"}}]`)
	case "tools/call":
		id := fmt.Sprintf("Aufgabe №%d", len(s.tasks)+1)
		s.set(id, `"status":"input_required","inputRequests":{"name":{"method":"elicitation/create","params":{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}}}`)
		answer(`"result":{"resultType":"task","taskId":%q,"status":"working","createdAt":"2026-11-28T10:00:00Z","lastUpdatedAt":"2026-11-28T10:00:00Z","ttlMs":null}`, id)
	case "tasks/get":
		result(`,"taskId":%q,%s`, m.Params.TaskID, s.tasks[m.Params.TaskID])
	case "tasks/update":
		s.set(m.Params.TaskID, fmt.Sprintf(`"status":"completed","result":{"content":[{"type":"text","text":"Hello, %s!"}]}`, m.Params.InputResponses["name"].Content.Name))
		result("")
	case "tasks/cancel":
		s.set(m.Params.TaskID, `"status":"cancelled"`)
		result("")
	case "subscriptions/listen":
		s.listen(w, r, m.Params.Notifications.TaskIDs)
	default:
		answer(`"error":{"code":-32601,"message":"no such method"}`)
	}
}

// set changes the state of a task.
func (s *taskServer) set(id, state string) {
	s.tasks[id] = `"createdAt":"2026-11-28T10:00:00Z","lastUpdatedAt":"2026-11-28T10:00:00Z","ttlMs":null,` + state
	close(s.change)
	s.change = make(chan struct{})
}

// listen notifies of each change of the tasks.
func (s *taskServer) listen(w http.ResponseWriter, r *http.Request, ids []string) {
	w.Header().Set("Content-Type", "text/event-stream")
	honored, _ := json.Marshal(ids)
	fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"notifications\":{\"taskIds\":%s}}}\n\n", honored)
	for sent := map[string]string{}; ; {
		_ = http.NewResponseController(w).Flush()
		change := s.change
		s.mu.Unlock()
		select {
		case <-change:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
		for _, id := range ids {
			if state := s.tasks[id]; state != sent[id] {
				sent[id] = state
				fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tasks\",\"params\":{\"taskId\":%q,%s}}\n\n", id, state)
			}
		}
	}
}

func (s *taskServer) config() string {
	return fmt.Sprintf("backends:\n  - {name: worker, url: %q, prefix: w_}\n", s.URL)
}

// TestTasks checks the tasks of a backend with a stand-alone server (GWN-23).
func TestTasks(t *testing.T) {
	t.Parallel()
	backend := newTaskServer(t)
	s := harness.StartServer(t, harness.ServerOptions{Config: backend.config()})
	testTasks(t, &s.Target, backend, func() {
		s.Kill()
		s.Start()
	})
}

// TestTasksOnLocalAWS does the same with the functions. An open stream occupies an instance, so that other instances serve the tasks.
func TestTasksOnLocalAWS(t *testing.T) {
	t.Parallel()
	backend := newTaskServer(t)
	aws := harness.StartAWS(t, harness.AWSOptions{Config: backend.config()})
	testTasks(t, &aws.Target, backend, func() {})
	if n := aws.Starts("StreamFunction"); n < 2 {
		t.Errorf("GWN-23: only %d instances were running", n)
	}
}

type taskResult struct {
	ResultType, TaskID, Status string
	InputRequests              map[string]any
	Result                     struct{ Content []struct{ Text string } }
}

func testTasks(t *testing.T, s *harness.Target, backend *taskServer, restart func()) {
	declaring := func(principal string) *harness.Client {
		c := s.Stateless(principal)
		c.Capabilities = object{"elicitation": object{}, "extensions": object{"io.modelcontextprotocol/tasks": object{}}}
		return c
	}
	work := object{"name": "w_work", "arguments": object{}}
	alice := declaring("alice")
	create := func(t *testing.T) string {
		t.Helper()
		var created taskResult
		alice.Call(t, "tools/call", work, &created)
		if created.ResultType != "task" || created.TaskID == "" || strings.Contains(created.TaskID, "Aufgabe") {
			t.Fatalf("got %+v, want a task with an id of ours", created)
		}
		return created.TaskID
	}
	id := create(t)
	t.Run("GWN-23 the extension is declared to 2026 clients only", func(t *testing.T) {
		var about struct{ Capabilities json.RawMessage }
		if alice.Call(t, "server/discover", nil, &about); !strings.Contains(string(about.Capabilities), `"io.modelcontextprotocol/tasks":{}`) {
			t.Errorf("got %s", about.Capabilities)
		}
		old := &harness.Client{URL: s.MCP, Key: s.Keys["alice"], Version: harness.V20251125}
		if got := old.Initialize(t); strings.Contains(string(got), "tasks") {
			t.Errorf("got %s", got)
		}
		for _, method := range []string{"tasks/get", "tasks/list", "tasks/result"} {
			old.Refused(t, -32601, method, object{"taskId": id})
		}
	})
	t.Run("GWN-23 a stream gets the states of a task", func(t *testing.T) {
		stream := alice.Listen(t, "l", object{"taskIds": []string{id, "unknown"}}, nil)
		if ack := stream.Next(t); !strings.Contains(string(ack.Params), fmt.Sprintf(`"taskIds":[%q]`, id)) {
			t.Errorf("the acknowledgment is %s, want only the known task", ack.Params)
		}
		alice.Call(t, "tasks/update", object{"taskId": id, "inputResponses": object{"name": object{"action": "accept", "content": object{"name": "Ada"}}}}, nil)
		note := stream.Next(t)
		var state taskResult
		if err := json.Unmarshal(note.Params, &state); err != nil || note.Method != "notifications/tasks" || state.TaskID != id || state.Status != "completed" {
			t.Errorf("got %s, %v, want the completed task", note.Raw, err)
		}
		if !strings.Contains(string(note.Params), `"io.modelcontextprotocol/subscriptionId":"l"`) {
			t.Errorf("got %s, want the id of the listen", note.Params)
		}
	})
	waiting := create(t)
	restart()
	t.Run("GWN-23 any instance serves a task", func(t *testing.T) {
		var got taskResult
		if alice.Call(t, "tasks/get", object{"taskId": id}, &got); got.Status != "completed" || got.TaskID != id || got.Result.Content[0].Text != "Hello, Ada!" {
			t.Errorf("got %+v", got)
		}
		if alice.Call(t, "tasks/get", object{"taskId": waiting}, &got); got.Status != "input_required" || got.InputRequests["name"] == nil {
			t.Errorf("got %+v", got)
		}
		alice.Call(t, "tasks/cancel", object{"taskId": waiting}, &got)
		if alice.Call(t, "tasks/get", object{"taskId": waiting}, &got); got.Status != "cancelled" {
			t.Errorf("got %+v", got)
		}
		backend.mu.Lock()
		defer backend.mu.Unlock()
		for _, name := range backend.names {
			if name != "=?base64?QXVmZ2FiZSDihJYx?=" && name != "=?base64?QXVmZ2FiZSDihJYy?=" {
				t.Errorf("the backend got the header Mcp-Name: %s", name)
			}
		}
	})
	t.Run("GWN-23 another principal's task does not exist", func(t *testing.T) {
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			if got := declaring("bob").Refused(t, -32602, method, object{"taskId": waiting}); got.Message != "there is no task with this id" {
				t.Errorf("%s: got %v", method, got)
			}
		}
		if ack := declaring("bob").Listen(t, "l", object{"taskIds": []string{waiting}}, nil).Next(t); strings.Contains(string(ack.Params), "taskIds") {
			t.Errorf("the acknowledgment is %s, want no task", ack.Params)
		}
	})
	t.Run("GWN-23 a client without the extension gets -32021", func(t *testing.T) {
		plain := s.Stateless("alice")
		plain.Refused(t, -32021, "tools/call", work)
		plain.Refused(t, -32021, "tasks/get", object{"taskId": id})
		plain.Refused(t, -32021, "subscriptions/listen", object{"notifications": object{"taskIds": []string{id}}})
	})
}
