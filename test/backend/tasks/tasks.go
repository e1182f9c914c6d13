// Package tasks has a backend of 2026-07-28 with the tasks extension (SEP-2663) and the tools that the official conformance suite uses for
// it. No official SDK has the extension yet, so it is written after the specification.
package tasks

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Backend is the backend. Its ids of tasks are not ASCII.
type Backend struct {
	mu      sync.Mutex
	tasks   map[string]*task
	changed chan struct{} // is closed and replaced at each change
	names   []string
}

// New returns a backend without tasks.
func New() *Backend { return &Backend{tasks: map[string]*task{}, changed: make(chan struct{})} }

// Names returns the headers Mcp-Name of the requests about tasks.
func (b *Backend) Names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.names)
}

type object = map[string]any

// task is the state of a task.
type task struct {
	fields  object // of a Task
	pending object // inputRequests
	answers map[string]answer
	finish  func(map[string]answer) object // returns the last fields, when all input is there
}

type answer struct{ Content struct{ Name string } }

const tasksExtension = "io.modelcontextprotocol/tasks"

// taskMessage is a request.
type taskMessage struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Name, TaskID string
		Arguments    struct {
			Name, Label, Filename string
			Seconds               float64
		}
		InputResponses map[string]answer
		Notifications  struct{ TaskIDs []string }
		Meta           map[string]struct{ Extensions map[string]any } `json:"_meta"`
	}
}

func (m *taskMessage) declares() bool {
	_, ok := m.Params.Meta["io.modelcontextprotocol/clientCapabilities"].Extensions[tasksExtension]
	return ok
}

// rpcError is an error response.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

var errUndeclared = &rpcError{-32021, "Missing required client capability", object{"requiredCapabilities": object{"extensions": object{tasksExtension: object{}}}}}

// ServeHTTP implements [http.Handler].
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m taskMessage
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	raw := json.RawMessage{}
	if json.NewDecoder(r.Body).Decode(&raw) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_ = json.Unmarshal(raw, &m) // members of other types stay empty
	if m.Method == "subscriptions/listen" {
		b.listen(w, r, m.Params.Notifications.TaskIDs)
		return
	}
	result, bad := b.answer(&m, r.Header)
	response := object{"jsonrpc": "2.0", "id": m.ID}
	if bad != nil {
		response["error"] = bad
	} else {
		if result["resultType"] == nil {
			result["resultType"] = "complete"
		}
		response["result"] = result
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(response)
}

func (b *Backend) answer(m *taskMessage, h http.Header) (object, *rpcError) {
	switch m.Method {
	case "server/discover":
		return object{
			"supportedVersions": []string{"2026-07-28"}, "ttlMs": 0, "cacheScope": "public",
			"capabilities": object{"tools": object{}, "extensions": object{tasksExtension: object{}}},
		}, nil
	case "tools/list":
		var tools []object
		for _, name := range []string{"greet", "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task"} {
			tools = append(tools, object{"name": name, "description": "A tool for tasks.", "inputSchema": object{"type": "object"}})
		}
		return object{"tools": tools, "ttlMs": 1000, "cacheScope": "public"}, nil
	case "tools/call":
		return b.call(m)
	}
	if !strings.HasPrefix(m.Method, "tasks/") {
		return nil, &rpcError{-32601, "Method not found", nil}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names = append(b.names, h.Get("Mcp-Name"))
	t := b.tasks[m.Params.TaskID]
	switch {
	case !slices.Contains([]string{"tasks/get", "tasks/update", "tasks/cancel"}, m.Method):
		return nil, &rpcError{-32601, "Method not found", nil}
	case !m.declares():
		return nil, errUndeclared
	case t == nil:
		return nil, &rpcError{-32602, "Task not found", nil}
	case m.Method == "tasks/get":
		return maps.Clone(t.fields), nil
	case m.Method == "tasks/update":
		for key, a := range m.Params.InputResponses {
			if t.pending[key] != nil {
				delete(t.pending, key)
				t.answers[key] = a
			}
		}
		if t.fields["status"] == "input_required" && len(t.pending) == 0 {
			b.set(t, t.finish(t.answers))
		} else if t.fields["status"] == "input_required" {
			b.set(t, object{"status": "input_required", "inputRequests": maps.Clone(t.pending)})
		}
	default:
		b.end(t, object{"status": "cancelled"})
	}
	return object{}, nil
}

func text(format string, args ...any) object {
	return object{"content": []object{{"type": "text", "text": fmt.Sprintf(format, args...)}}}
}

func completed(result object) object { return object{"status": "completed", "result": result} }

// askName is a request for input.
var askName = object{"method": "elicitation/create", "params": object{
	"mode": "form", "message": "What is the name?", "requestedSchema": object{"type": "object", "properties": object{"name": object{"type": "string"}}},
}}

// call calls a tool.
func (b *Backend) call(m *taskMessage) (object, *rpcError) {
	arguments := m.Params.Arguments
	seconds := time.Duration(arguments.Seconds * float64(time.Second))
	switch m.Params.Name {
	case "greet":
		return text("Hello, %s!", arguments.Name), nil
	case "slow_compute":
		if !m.declares() {
			time.Sleep(seconds)
			return text("computed %s", arguments.Label), nil
		}
		return b.begin(seconds, nil, func(map[string]answer) object { return completed(text("computed %s", arguments.Label)) }), nil
	case "test_tool_with_task":
		given, ok := m.Params.InputResponses["user_name"]
		if !ok {
			return object{"resultType": "input_required", "inputRequests": object{"user_name": askName}, "requestState": "asked"}, nil
		}
		return b.begin(0, nil, func(map[string]answer) object { return completed(text("Hello, %s!", given.Content.Name)) }), nil
	}
	if !m.declares() {
		return nil, errUndeclared
	}
	switch m.Params.Name {
	case "failing_job":
		return b.begin(time.Second, nil, func(map[string]answer) object {
			result := text("the job failed")
			result["isError"] = true
			return completed(result)
		}), nil
	case "protocol_error_job":
		return b.begin(0, nil, func(map[string]answer) object {
			return object{"status": "failed", "error": rpcError{-32603, "the job crashed", nil}}
		}), nil
	case "confirm_delete":
		return b.begin(0, object{"confirm": askName}, func(answers map[string]answer) object {
			return completed(text("deleted %s for %s", arguments.Filename, answers["confirm"].Content.Name))
		}), nil
	case "multi_input":
		return b.begin(0, object{"first": askName, "second": askName}, func(map[string]answer) object { return completed(text("done")) }), nil
	}
	return nil, &rpcError{-32602, "there is no such tool", nil}
}

// begin creates a task, which asks for the pending input after a while or, without any, is finished.
func (b *Backend) begin(after time.Duration, pending object, finish func(map[string]answer) object) object {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, now := fmt.Sprintf("Aufgabe №%d", len(b.tasks)+1), time.Now().UTC().Format(time.RFC3339)
	t := &task{finish: finish, pending: pending, answers: map[string]answer{}, fields: object{
		"taskId": id, "status": "working", "createdAt": now, "lastUpdatedAt": now, "ttlMs": 3_600_000, "pollIntervalMs": 100,
	}}
	b.tasks[id] = t
	created := maps.Clone(t.fields)
	created["resultType"] = "task"
	time.AfterFunc(after+10*time.Millisecond, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(pending) > 0 {
			b.end(t, object{"status": "input_required", "inputRequests": maps.Clone(pending)})
			return
		}
		b.end(t, finish(nil))
	})
	return created
}

// end changes a task that has not ended.
func (b *Backend) end(t *task, fields object) {
	if s := t.fields["status"]; s == "working" || s == "input_required" {
		b.set(t, fields)
	}
}

// set changes a task. The caller holds the lock.
func (b *Backend) set(t *task, fields object) {
	delete(t.fields, "inputRequests")
	maps.Copy(t.fields, fields)
	t.fields["lastUpdatedAt"] = time.Now().UTC().Format(time.RFC3339)
	close(b.changed)
	b.changed = make(chan struct{})
}

// listen sends the states of the named tasks, first the current ones.
func (b *Backend) listen(w http.ResponseWriter, r *http.Request, ids []string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(method string, params any) {
		text, _ := json.Marshal(object{"jsonrpc": "2.0", "method": method, "params": params})
		fmt.Fprintf(w, "data: %s\n\n", text)
	}
	send("notifications/subscriptions/acknowledged", object{"notifications": object{"taskIds": ids}})
	for sent := map[string]string{}; ; {
		b.mu.Lock()
		changed := b.changed
		for _, id := range ids {
			if t := b.tasks[id]; t != nil {
				if now := fmt.Sprint(t.fields); now != sent[id] {
					send("notifications/tasks", t.fields)
					sent[id] = now
				}
			}
		}
		b.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
