//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/backend/tasks"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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
	t.Run("GWN-23 another principal's task does not exist", func(t *testing.T) {
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			expect.Equal(t, method, declaring("bob").Refused(t, -32602, method, object{"taskId": waiting}).Message, "there is no task with this id")
		}
		if ack := declaring("bob").Listen(t, "l", object{"taskIds": []string{waiting}}, nil).Next(t); strings.Contains(string(ack.Params), "taskIds") {
			t.Errorf("the acknowledgment is %s, want no task", ack.Params)
		}
	})
}
