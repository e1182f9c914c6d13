//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/backend/tasks"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// toolRules are the rules for the backends of these tests. auditor has the scope conversation, and alice does not.
const toolRules = `    tools:
      allow: ["test_*"]
      deny: ["*error*"]
      scopes: {"test_echo": [conversation]}
    resources: {scopes: {"test://*-binary": [conversation]}}
`

// TestGateway tests the rules of backends in one stand-alone process.
func TestGateway(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Config: gatewayConfig(t)})
	followsRules(t, &s.Target, s.Output)
	forwardsExtensions(t, &s.Target)
	t.Run("GWN-25 a call is counted by backend and outcome", func(t *testing.T) {
		for _, want := range []string{`backend="old",outcome="ok"`, `backend="new",outcome="denied"`, `backend="new",outcome="missing_scope"`} {
			expect.Contains(t, "the metrics", s.Metrics(t), "mcpevents_gateway_call_duration_seconds_count{"+want)
		}
	})
}

// TestGatewayOnLocalAWS does the same with the functions.
func TestGatewayOnLocalAWS(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{Config: gatewayConfig(t)})
	followsRules(t, &aws.Target, aws.Output)
	forwardsExtensions(t, &aws.Target)
}

// gatewayConfig starts a backend of each kind of revisions, and one that declares an extension. It returns the configuration with all.
func gatewayConfig(t *testing.T) string {
	t.Helper()
	extended := startStub(t, func(method string, params json.RawMessage) string {
		if method == "server/discover" {
			return `{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"com.example/catalog":{"suggest":true}}}}`
		}
		return fmt.Sprintf(`{"got":%s}`, params)
	})
	return "backends:\n" + harness.StartBackend(t, backend.Stateful).Config("old", "old_", toolRules) +
		harness.StartBackend(t, backend.Stateless).Config("new", "new_", toolRules) + fmt.Sprintf("  - {name: catalog, url: %q}\n", extended)
}

// startStub starts a backend of 2026-07-28, and returns its URL. answer returns the results as JSON, or "" for unknown methods.
func startStub(t *testing.T, answer func(method string, params json.RawMessage) string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID, Params json.RawMessage
			Method     string
		}
		if json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if result := answer(m.Method, m.Params); result != "" {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"not here"}}`, m.ID)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// forwardsExtensions calls a method of a backend's extension, with clients of both kinds of revisions.
func forwardsExtensions(t *testing.T, target *harness.Target) {
	t.Helper()
	for revision, c := range map[string]*harness.Client{"2026-07-28": target.Stateless("alice"), "2025-11-25": target.SessionBased(t, "alice", harness.V20251125)} {
		t.Run("GWN-24 a method goes to the backend that declares its extension, "+revision, func(t *testing.T) {
			var got struct{ Got struct{ Query json.Number } }
			c.Call(t, "com.example/search", object{"query": json.Number("9007199254740993")}, &got)
			expect.Equal(t, "the query", got.Got.Query, "9007199254740993")
			expect.Equal(t, "the status of a notification", c.Notify(t, "notifications/com.example/changed", nil), http.StatusAccepted)
		})
	}
}

// followsRules calls what the rules allow and deny, with clients of both kinds of revisions. shared/gateway tests all rules.
func followsRules(t *testing.T, target *harness.Target, output func() string) {
	t.Helper()
	clients := map[string]func(who string) *harness.Client{
		"2026-07-28": target.Stateless,
		"2025-11-25": func(who string) *harness.Client { return target.SessionBased(t, who, harness.V20251125) },
	}
	for revision, as := range clients {
		alice, auditor := as("alice"), as("auditor")
		t.Run("GWN-25 a denied call gets the error of an unknown name, "+revision, func(t *testing.T) {
			for _, prefix := range []string{"old_", "new_"} {
				denied := alice.Refused(t, -32602, "tools/call", object{"name": prefix + "test_error_handling", "arguments": object{}})
				unknown := alice.Refused(t, -32602, "tools/call", object{"name": "unknown", "arguments": object{}})
				if got := strings.Replace(denied.Message, prefix+"test_error_handling", "unknown", 1); got != unknown.Message || string(denied.Data) != string(unknown.Data) {
					t.Errorf("got %v for a denied tool and %v for an unknown one", denied, unknown)
				}
				alice.Call(t, "tools/call", object{"name": prefix + "test_simple_text", "arguments": object{}}, nil)
			}
		})
		t.Run("GWN-25 a missing scope is named, "+revision, func(t *testing.T) {
			for _, call := range []struct {
				method string
				params object
			}{
				{"tools/call", object{"name": "new_test_echo", "arguments": object{"text": "xylophone-4711"}}},
				{"resources/read", object{"uri": "test://static-binary"}},
			} {
				a := alice.Do(t, call.method, call.params)
				challenge := a.Header.Get("WWW-Authenticate")
				if a.Status != http.StatusForbidden || !strings.Contains(challenge, `error="insufficient_scope"`) || !strings.Contains(challenge, `conversation`) {
					t.Errorf("%s: got status %d, WWW-Authenticate %q: %s", call.method, a.Status, challenge, a.Body)
				}
				auditor.Call(t, call.method, call.params, nil)
			}
		})
	}
	t.Run("GWN-25 the log has each call without its arguments", func(t *testing.T) {
		harness.Eventually(t, harness.Patience, "the calls are in the log", func() bool {
			for _, outcome := range []string{"ok", "denied", "missing_scope", "unknown"} {
				if !slices.ContainsFunc(strings.Split(output(), "\n"), func(line string) bool {
					return strings.Contains(line, "gateway call") && strings.Contains(line, outcome)
				}) {
					return false
				}
			}
			return true
		})
		expect.Lacks(t, "the log", output(), "xylophone-4711")
	})
}

// startTasks starts a backend with the tasks extension, and returns its configuration.
func startTasks(t *testing.T) (b *tasks.Backend, config string) {
	b = tasks.New()
	s := httptest.NewServer(b)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return b, fmt.Sprintf("backends:\n  - {name: worker, url: %q, prefix: w_}\n", s.URL)
}

// TestTasks checks the tasks of a backend with a stand-alone server (GWN-23).
func TestTasks(t *testing.T) {
	t.Parallel()
	backend, config := startTasks(t)
	s := harness.StartServer(t, harness.ServerOptions{Config: config})
	testTasks(t, &s.Target, backend, func() {
		s.Kill()
		s.Start()
	})
}

// TestTasksOnLocalAWS does the same with the functions. An open stream occupies an instance, so that other instances serve the tasks.
func TestTasksOnLocalAWS(t *testing.T) {
	t.Parallel()
	backend, config := startTasks(t)
	aws := harness.StartAWS(t, harness.AWSOptions{Config: config})
	testTasks(t, &aws.Target, backend, func() {})
	expect.AtLeast(t, "GWN-23 the running instances", aws.Starts("StreamFunction"), 2)
}

type taskResult struct {
	ResultType, TaskID, Status string
	InputRequests              map[string]any
	Result                     struct{ Content []struct{ Text string } }
}

func testTasks(t *testing.T, s *harness.Target, backend *tasks.Backend, restart func()) {
	declaring := func(principal string) *harness.Client {
		c := s.Stateless(principal)
		c.Capabilities = object{"elicitation": object{}, "extensions": object{"io.modelcontextprotocol/tasks": object{}}}
		return c
	}
	work := object{"name": "w_confirm_delete", "arguments": object{"filename": "x"}}
	alice := declaring("alice")
	create := func(t *testing.T) string {
		t.Helper()
		var created taskResult
		alice.Call(t, "tools/call", work, &created)
		if created.ResultType != "task" || created.TaskID == "" || strings.Contains(created.TaskID, "Aufgabe") {
			t.Fatalf("got %+v, want a task with another id than the backend's", created)
		}
		return created.TaskID
	}
	// waitFor polls until the task has the state.
	waitFor := func(t *testing.T, id, status string) (got taskResult) {
		t.Helper()
		harness.Eventually(t, harness.Patience, "the task is "+status, func() bool {
			got = taskResult{}
			alice.Call(t, "tasks/get", object{"taskId": id}, &got)
			return got.Status == status
		})
		return got
	}
	id := create(t)
	waitFor(t, id, "input_required")
	t.Run("GWN-23 a stream gets the states of a task", func(t *testing.T) {
		stream := alice.Listen(t, "l", object{"taskIds": []string{id, "unknown"}}, nil)
		expect.Contains(t, "the acknowledgment", string(stream.Next(t).Params), fmt.Sprintf(`"taskIds":[%q]`, id))
		alice.Call(t, "tasks/update", object{"taskId": id, "inputResponses": object{"confirm": object{"action": "accept", "content": object{"name": "Ada"}}}}, nil)
		for _, status := range []string{"input_required", "completed"} {
			note := stream.Next(t)
			var state taskResult
			if err := json.Unmarshal(note.Params, &state); err != nil || note.Method != "notifications/tasks" || state.TaskID != id || state.Status != status {
				t.Errorf("got %s, %v, want the task as %s", note.Raw, err, status)
			}
			expect.Contains(t, "the notification", string(note.Params), `"io.modelcontextprotocol/subscriptionId":"l"`)
		}
	})
	waiting := create(t)
	restart()
	t.Run("GWN-23 any instance serves a task", func(t *testing.T) {
		if got := waitFor(t, id, "completed"); got.TaskID != id || len(got.Result.Content) != 1 || got.Result.Content[0].Text != "deleted x for Ada" {
			t.Errorf("got %+v", got)
		}
		if got := waitFor(t, waiting, "input_required"); got.InputRequests["confirm"] == nil {
			t.Errorf("got %+v", got)
		}
		alice.Call(t, "tasks/cancel", object{"taskId": waiting}, nil)
		waitFor(t, waiting, "cancelled")
		for _, name := range backend.Names() {
			if want := "=?base64?QXVmZ2FiZSDihJY"; !strings.HasPrefix(name, want) { // Aufgabe №
				t.Errorf("the backend got the header Mcp-Name: %s, want it to begin with %s", name, want)
			}
		}
	})
}
