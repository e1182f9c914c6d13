//go:build unix

//lint:file-ignore SA1019 roots are deprecated since 2026-07-28 and still have to be relayed

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestReferenceServersAsCommands puts the reference servers of the MCP project behind a stand-alone gateway, which starts them as
// commands: filesystem and everything on the TypeScript SDK, git on the Python SDK.
func TestReferenceServersAsCommands(t *testing.T) {
	t.Parallel()
	js, python := harness.Node(t), harness.NewPython(t)
	files, repository := t.TempDir(), t.TempDir()
	expect.OK(t, os.WriteFile(filepath.Join(files, "hello.txt"), []byte("hello, stdio"), 0o600))
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "the first one"}} {
		if out, err := exec.Command("git", append([]string{"-C", repository}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
	}
	script := func(name string) string {
		return js.Path("node_modules/@modelcontextprotocol/server-" + name + "/dist/index.js")
	}
	s := harness.StartServer(t, harness.ServerOptions{
		Env: []string{"TOKEN_FOR_IT=t0ken"},
		Config: fmt.Sprintf(`backends:
  - {name: files, prefix: files_, command: [%q, %q, %q]}
  - {name: everything, prefix: every_, command: [%[1]q, %[4]q, stdio], env: {A_TOKEN: "env:TOKEN_FOR_IT", LEVEL: debug}}
  - {name: git, prefix: git_, command: [%[5]q, -m, mcp_server_git, --repository, .], dir: %[6]q}
  - {name: broken, command: [%[1]q, -e, process.exit(3)]}
  - {name: rooted, prefix: rooted_, command: [%[1]q, %[2]q]}
`, js.Program(), script("filesystem"), files, script("everything"), python.Command(t.Context(), "").Path, repository),
	})
	call := func(t *testing.T, c *harness.Client, tool string, arguments object) string {
		t.Helper()
		var r struct {
			IsError bool
			Content []struct{ Text string }
		}
		c.Call(t, "tools/call", object{"name": tool, "arguments": arguments}, &r)
		if r.IsError || len(r.Content) == 0 {
			t.Fatalf("%s: %+v", tool, r)
		}
		return r.Content[0].Text
	}
	clients := func(t *testing.T) map[string]*harness.Client {
		return map[string]*harness.Client{
			"a session": s.SessionBased(t, "alice", harness.V20251125), "2026-07-28": s.Stateless("alice"),
		}
	}
	for name, c := range clients(t) {
		t.Run("GWN-26 lists have the tools of all commands that run: "+name, func(t *testing.T) {
			var names []string
			for _, tool := range c.All(t, "tools/list", "tools") {
				names = append(names, tool["name"].(string))
			}
			for _, want := range []string{"files_read_text_file", "every_echo", "git_git_log"} {
				expect.Has(t, "the names", names, want)
			}
		})
		t.Run("GWN-26 filesystem, everything and git answer: "+name, func(t *testing.T) {
			expect.Equal(t, "the file", call(t, c, "files_read_text_file", object{"path": filepath.Join(files, "hello.txt")}), "hello, stdio")
			expect.Contains(t, "the sum", call(t, c, "every_get-sum", object{"a": 2, "b": 3}), "5")
			expect.Contains(t, "the log", call(t, c, "git_git_log", object{"repo_path": repository}), "the first one")
			var prompt struct{ Messages []json.RawMessage }
			c.Call(t, "prompts/get", object{"name": "every_simple-prompt"}, &prompt)
			expect.AtLeast(t, "the messages of the prompt", len(prompt.Messages), 1)
		})
	}
	t.Run("GWN-26 progress and roots pass, and each session has a process of its own", func(t *testing.T) {
		before := len(processes(s, "everything"))
		const calls = 2
		for range calls {
			progress, asked := make(chan float64, 100), make(chan bool, 100)
			client := sdk.NewClient(&sdk.Implementation{Name: "go", Version: "1"}, &sdk.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { progress <- r.Params.Progress },
			})
			//lint:ignore SA1019 clients of 2025-11-25 have roots, and the gateway must pass the request for them.
			client.AddRoots(&sdk.Root{URI: "file:///work", Name: "work"})
			client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
				return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
					if method == "roots/list" {
						asked <- true
					}
					return next(ctx, method, r)
				}
			})
			session := s.ConnectSDK(t, client, "alice", harness.V20251125)
			params := &sdk.CallToolParams{Name: "every_trigger-long-running-operation", Arguments: object{"duration": 0.6, "steps": 3}}
			params.SetProgressToken("p")
			expect.OK(t, expect.ErrOf(session.CallTool(t.Context(), params)))
			for want := 1.0; want <= 3; want++ {
				expect.Equal(t, "the progress", <-progress, want)
			}
			expect.Receive(t, "the server's question for roots", asked)
		}
		expect.Equal(t, "the started processes", len(processes(s, "everything"))-before, calls)
	})
	t.Run("GWN-26 GWN-10 roots arrive although the call that carried the question has ended", func(t *testing.T) {
		client := sdk.NewClient(&sdk.Implementation{Name: "go", Version: "1"}, nil)
		//lint:ignore SA1019 as above
		client.AddRoots(&sdk.Root{URI: "file://" + files, Name: "files"})
		client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
			return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
				if method == "roots/list" { // the call has ended before the client answers
					time.Sleep(500 * time.Millisecond)
				}
				return next(ctx, method, r)
			}
		})
		session := s.ConnectSDK(t, client, "alice", harness.V20251125)
		expect.OK(t, expect.ErrOf(session.CallTool(t.Context(), &sdk.CallToolParams{Name: "rooted_list_allowed_directories", Arguments: object{}})))
		harness.Eventually(t, harness.Patience, "the server knows the roots", func() bool {
			result, err := session.CallTool(t.Context(), &sdk.CallToolParams{
				Name: "rooted_read_text_file", Arguments: object{"path": filepath.Join(files, "hello.txt")},
			})
			return err == nil && !result.IsError
		})
	})
	t.Run("GWN-26 operators see the states of commands, and neither arguments nor variables", func(t *testing.T) {
		code, out, errs := s.Command(t, "monitor", "backends", "--json")
		for name, state := range map[string]string{"files": "ready", "everything": "ready", "broken": "unreachable"} {
			if code != 0 || !regexp.MustCompile(`"name": ?"`+name+`"[^}]*"state": ?"`+state+`"`).MatchString(out) {
				t.Errorf("%s is not %s: %d %s%s", name, state, code, out, errs)
			}
		}
		expect.Lacks(t, "the output", out, files, "TOKEN")
	})
	t.Run("GWN-26 all processes end with the server", func(t *testing.T) {
		s.Stop()
		for _, backend := range []string{"files", "everything", "git"} {
			for _, pid := range processes(s, backend) {
				if syscall.Kill(pid, 0) == nil {
					t.Errorf("process %d of %s still runs", pid, backend)
				}
			}
		}
	})
}

// processes returns the ids of the processes that have started for a backend, from the server's log.
func processes(s *harness.Server, backend string) (pids []int) {
	for line := range strings.Lines(s.Output()) {
		var l struct {
			Msg, Backend string
			PID          int
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "backend process started" && l.Backend == backend {
			pids = append(pids, l.PID)
		}
	}
	return pids
}
