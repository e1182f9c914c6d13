package standalone

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/test/expect"
)

// program is the MCP server of a program that embeds the package.
type program struct {
	*sdk.Server
	asked chan http.Header // of each HTTP request
}

func newProgram() *program {
	p := &program{sdk.NewServer(&sdk.Implementation{Name: "orders", Version: "1"}, nil), make(chan http.Header, 1000)}
	sdk.AddTool(p.Server, &sdk.Tool{Name: "ship", Description: "Ship an order."}, ship)
	return p
}

type order struct {
	Order string `json:"order"`
}

// ship handles calls of the tool ship, and reports progress. For the order "never" it runs until the caller cancels the call.
func ship(ctx context.Context, req *sdk.CallToolRequest, in order) (*sdk.CallToolResult, any, error) {
	if token := req.Params.GetProgressToken(); token != nil {
		_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: 1, Message: "packed"})
	}
	if in.Order == "never" {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "shipped " + in.Order}}}, nil, nil
}

func (p *program) handler() http.Handler {
	streamable := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return p.Server }, nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked <- r.Header
		streamable.ServeHTTP(w, r)
	})
}

// mounted starts a server with the program as its upstream, and serves its handler from an HTTP server of the test.
func mounted(t *testing.T, p *program, change func(*Options)) (*Server, *httptest.Server) {
	t.Helper()
	s := serve(t, func(o *Options) {
		o.Addr, o.Upstream = "", p.handler()
		if change != nil {
			change(o)
		}
	})
	mine := httptest.NewServer(s.Handler())
	t.Cleanup(func() { end(t, s); mine.Close() })
	return s, mine
}

func dial(t *testing.T, url string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	session := expect.Value(sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url + "/mcp"}, nil))(t)
	t.Cleanup(func() { _ = session.Close() })
	return session
}

func tools(t *testing.T, session *sdk.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range session.Tools(t.Context(), nil) {
		expect.OK(t, err)
		names = append(names, tool.Name)
	}
	return names
}

func TestAProgramsOwnServer(t *testing.T) {
	p := newProgram()
	s, mine := mounted(t, p, nil)
	progress, changed := make(chan string, 10), make(chan bool, 10)
	session := dial(t, mine.URL, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { progress <- r.Params.Message },
		ToolListChangedHandler:      func(context.Context, *sdk.ToolListChangedRequest) { changed <- true },
	})

	t.Run("RCH-07 its tools have their names, next to the event types", func(t *testing.T) {
		expect.List(t, "the tools", tools(t, session), []string{"ship"})
		types := 0
		for _, err := range session.ResourceTemplates(t.Context(), nil) {
			expect.OK(t, err)
			types++
		}
		expect.True(t, "there are event types", types > 0)
	})

	t.Run("RCH-07 a call's progress and result come through", func(t *testing.T) {
		params := &sdk.CallToolParams{Name: "ship", Arguments: order{"42"}}
		params.SetProgressToken("token")
		result := expect.Value(session.CallTool(t.Context(), params))(t)
		expect.Equal(t, "the result", result.Content[0].(*sdk.TextContent).Text, "shipped 42")
		expect.Equal(t, "the progress", <-progress, "packed")
	})

	t.Run("RCH-07 a notification of it reaches clients", func(t *testing.T) {
		sdk.AddTool(p.Server, &sdk.Tool{Name: "return"}, ship)
		expect.Receive(t, "a notification", changed)
		expect.List(t, "the tools", tools(t, session), []string{"return", "ship"})
	})

	t.Run("RCH-07 a shutdown ends calls that do not end", func(t *testing.T) {
		failed := make(chan error, 1)
		go func() {
			_, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "ship", Arguments: order{"never"}, Meta: sdk.Meta{"progressToken": "x"}})
			failed <- err
		}()
		<-progress // it runs
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		expect.OK(t, s.Shutdown(ctx))
		expect.Error(t, "the call", <-failed)
	})
}

func TestAProgramsOwnServerIsForTheDefaultWorkspace(t *testing.T) {
	p := newProgram()
	_, mine := mounted(t, p, func(o *Options) {
		o.Auth = auth.ModeKeys
		o.Config = configured(t, "keys:\n  - {principal: a, scopes: [events:read], sha256: "+hash("key")+"}\n"+
			"  - {principal: b, workspace: other, scopes: [events:read], sha256: "+hash("two")+"}\n")
	})
	as := func(key string) []string {
		t.Helper()
		session := expect.Value(sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &sdk.StreamableClientTransport{
			Endpoint: mine.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(key)},
		}, nil))(t)
		defer session.Close()
		return tools(t, session)
	}
	expect.List(t, "RCH-07: the tools in the default workspace", as("key"), []string{"ship"})
	expect.Len(t, "the tools that another workspace sees", as("two"), 0)
	expect.AtLeast(t, "the program's requests", len(p.asked), 1)
	for range len(p.asked) {
		expect.Equal(t, "the credentials that the program gets", (<-p.asked).Get("Authorization"), "")
	}
}

// bearer is an HTTP transport that adds an API key to each request.
type bearer string

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(req)
}

func TestABackendMustNotHaveTheNameOfTheProgramsOwn(t *testing.T) {
	o := Options{
		Data: t.TempDir(), Catalog: types(t, "a"), Upstream: newProgram().handler(), Log: quiet(),
		Config: configured(t, "backends:\n  - {name: upstream, url: 'http://127.0.0.1:1/mcp'}\n"),
	}
	refuses(t, o, "upstream")
	o.Config = configured(t, "backends:\n  - {name: upstream, workspace: other, url: 'http://127.0.0.1:1/mcp'}\n")
	starts(t, o)
}
