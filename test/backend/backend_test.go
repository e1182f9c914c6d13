//lint:file-ignore SA1019 sampling is deprecated since 2026-07-28 and still has to be relayed

package backend

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serve runs a backend in the test's process and returns its base URL.
func serve(t *testing.T, kind Kind) string {
	t.Helper()
	handler, err := New(kind)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// client is the official client, whose user is called Ada and likes green.
type client struct {
	*mcp.ClientSession
	changed  chan string // lists and resources
	progress chan float64
}

func connect(t *testing.T, base string) *client {
	t.Helper()
	c := &client{changed: make(chan string, 100), progress: make(chan float64, 100)}
	sdk := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{
				"name": "Ada", "color": "green", "ok": true, "username": "ada", "email": "ada@example.com",
			}}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "Paris"}}, nil
		},
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { c.changed <- "tools" },
		PromptListChangedHandler:    func(context.Context, *mcp.PromptListChangedRequest) { c.changed <- "prompts" },
		ResourceListChangedHandler:  func(context.Context, *mcp.ResourceListChangedRequest) { c.changed <- "resources" },
		ResourceUpdatedHandler:      func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { c.changed <- r.Params.URI },
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { c.progress <- r.Params.Progress },
	})
	session, err := sdk.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: base + "/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	c.ClientSession = session
	return c
}

func (c *client) call(t *testing.T, name string, args map[string]any) string {
	t.Helper()
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(r.Content) == 0 {
		t.Fatalf("%s: no content", name)
	}
	text, ok := r.Content[0].(*mcp.TextContent)
	if !ok || r.IsError {
		t.Fatalf("%s: %+v", name, r.Content[0])
	}
	return text.Text
}

// TestRevisions shows that each backend speaks its own revision only.
func TestRevisions(t *testing.T) {
	for kind, want := range map[Kind]string{Stateful: "2025-11-25", Stateless: v20260728} {
		if got := connect(t, serve(t, kind)).InitializeResult().ProtocolVersion; got != want {
			t.Errorf("%s speaks %s with the official client, want %s", kind, got, want)
		}
	}
}

// TestAsking shows that both backends ask the same of a client, each in its way.
func TestAsking(t *testing.T) {
	for _, kind := range []Kind{Stateful, Stateless} {
		t.Run(string(kind), func(t *testing.T) {
			c := connect(t, serve(t, kind))
			for _, call := range []struct {
				tool, want string
				args       map[string]any
			}{
				{"test_sampling", "the model said: Paris", map[string]any{"prompt": "?"}},
				{"test_elicitation", `action=accept, content={`, map[string]any{"message": "?"}},
				{"test_input_required_result_elicitation", "Hello, Ada!", nil},
				{"test_input_required_result_multi_round", "Ada likes green", nil},
				{"test_input_required_result_request_state", "state-ok", nil},
				{"test_input_required_result_multiple_inputs", "Paris, Ada, 0 roots", nil},
				{"test_missing_capability", "the client can sample", nil},
			} {
				if got := c.call(t, call.tool, call.args); !strings.Contains(got, call.want) {
					t.Errorf("%s: got %q, want %q", call.tool, got, call.want)
				}
			}
		})
	}
}

// TestNotifications shows progress, list changes and resource updates, and what
// the backend shows them at /state.
func TestNotifications(t *testing.T) {
	for _, kind := range []Kind{Stateful, Stateless} {
		t.Run(string(kind), func(t *testing.T) {
			base := serve(t, kind)
			c := connect(t, base)
			params := &mcp.CallToolParams{Name: "test_tool_with_progress", Arguments: map[string]any{}}
			params.SetProgressToken("p")
			if _, err := c.CallTool(t.Context(), params); err != nil {
				t.Fatal(err)
			}
			for _, want := range []float64{0, 50, 100} {
				if got := next(t, c.progress); got != want {
					t.Errorf("progress %v, want %v", got, want)
				}
			}

			const uri = "test://watched-resource"
			if err := c.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "one subscription and a stream", func() bool {
				s := state(t, base)
				return s.Subscribed[uri] == 1 && s.Streams+s.Listens > 0 && s.Calls["test_tool_with_progress"] == 1
			})
			for query, want := range map[string]string{"uri=" + uri: uri, "list=tools": "tools", "list=prompts": "prompts", "list=resources": "resources"} {
				post(t, base+"/changed?"+query)
				if got := next(t, c.changed); got != want {
					t.Errorf("POST /changed?%s announces %q, want %q", query, got, want)
				}
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "no subscription and no stream after the client has gone", func() bool {
				s := state(t, base)
				return len(s.Subscribed) == 0 && s.Streams+s.Listens+s.Sessions == 0
			})
		})
	}
}

// TestCancelled shows that the backend counts calls that were given up.
func TestCancelled(t *testing.T) {
	for _, kind := range []Kind{Stateful, Stateless, Misbehaving} {
		t.Run(string(kind), func(t *testing.T) {
			base := serve(t, kind)
			c := connect(t, base)
			tool := map[bool]string{true: "hang", false: "test_wait"}[kind == Misbehaving]
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: map[string]any{}})
				done <- err
			}()
			eventually(t, "the call has begun", func() bool { return state(t, base).Calls[tool] == 1 })
			cancel()
			if err := next(t, done); err == nil {
				t.Error("a cancelled call succeeded")
			}
			if kind == Misbehaving { // it takes no notice of a notification, as it should
				c.Close()
				return
			}
			eventually(t, "the call was cancelled", func() bool { return state(t, base).Cancelled[tool] == 1 })
		})
	}
}

func next[T any](t *testing.T, ch chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
	}
	return v
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		if cond() {
			return
		}
		<-tick.C
	}
	t.Fatalf("not in time: %s", what)
}

func state(t *testing.T, base string) (s State) {
	t.Helper()
	resp, err := http.Get(base + "/state")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func post(t *testing.T, url string) {
	t.Helper()
	resp, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("POST %s: %s", url, resp.Status)
	}
}
