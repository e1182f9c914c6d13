//go:build unix

package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// GWN-10, GWN-13: a tool of a server on version 1 of the official TypeScript SDK asks on the GET stream of the session, as its
// server.elicitInput does. The question reaches a client with a session, and its answer reaches the tool. Questions on the call's stream
// reach clients of both kinds.
func TestQuestionsOnTheGETStream(t *testing.T) {
	t.Parallel()
	dir, addr := t.TempDir(), harness.FreeAddr(t)
	expect.OK(t, os.WriteFile(filepath.Join(dir, "list"), []byte("1"), 0o600))
	host, port, _ := strings.Cut(addr, ":")
	backend := start(t, harness.Node(t).Command(context.Background(), "backend.js", host, port, dir))
	backend.next(t, "") // it serves
	gateway := harness.StartServer(t, harness.ServerOptions{Config: fmt.Sprintf("backends:\n  - {name: ts, url: \"http://%s/mcp\"}\n", addr)})
	for name, tt := range map[string]struct {
		version string
		stray   bool
	}{
		"2025-11-25 on the call's stream": {"2025-11-25", false}, "2026-07-28 on the call's stream": {"2026-07-28", false},
		"2025-11-25 on the GET stream": {"2025-11-25", true}, // a stateless client gets no such question
	} {
		t.Run(name, func(t *testing.T) {
			client := sdk.NewClient(&sdk.Implementation{Name: "go", Version: "1"}, &sdk.ClientOptions{
				ElicitationHandler: func(_ context.Context, req *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
					return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"value": "answer to " + req.Params.Message}}, nil
				},
			})
			session := gateway.ConnectSDK(t, client, "alice", tt.version)
			for i := range 2 {
				mark := fmt.Sprint("question ", i)
				result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "ask", Arguments: map[string]any{
					"mark": mark, "ms": harness.Patience.Milliseconds(), "stray": tt.stray,
				}})
				expect.OK(t, err)
				text, _ := result.Content[0].(*sdk.TextContent)
				expect.Equal(t, "the result", text.Text, "accept answer to "+mark)
			}
		})
	}
}
