//go:build unix

//lint:file-ignore SA1019 sampling is deprecated since 2026-07-28 and still has to be relayed

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// official is the Go SDK's client, with the handlers of an application.
func (s *soak) official(ctx context.Context, who, version string, n int) {
	name := fmt.Sprintf("S%s%d", version[:4], n)
	var current atomic.Value // the mark of the call under way
	current.Store("")
	own := func(what, text string) {
		for _, mark := range marks.FindAllString(text, -1) {
			if !strings.HasPrefix(mark, "mk-"+name+"-") { // its handlers may run late
				s.fault("the official client %s: its %s is of %s: %s", current.Load(), what, mark, text)
			}
		}
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "official", Version: "1"}, &sdk.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			own("question", req.Params.Message)
			s.questions.Add(1)
			mark := current.Load()
			return &sdk.ElicitResult{Action: accept, Content: map[string]any{
				"name": mark, "username": mark, "email": mark, "color": mark,
			}}, nil
		},
		CreateMessageHandler: func(_ context.Context, req *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
			s.questions.Add(1)
			for _, m := range req.Params.Messages {
				if text, ok := m.Content.(*sdk.TextContent); ok {
					own("prompt", text.Text)
				}
			}
			return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: current.Load().(string)}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, req *sdk.ProgressNotificationClientRequest) {
			own("progress", fmt.Sprint(req.Params.ProgressToken, req.Params.Message))
		},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { s.changes.Add(1) },
	})
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	session, err := client.Connect(s.t.Context(), &sdk.StreamableClientTransport{
		Endpoint: s.MCP, HTTPClient: &http.Client{Transport: authorized{s.Keys[who], transport}},
	}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		s.fault("the official client does not connect: %v", err)
		return
	}
	for n := 0; ctx.Err() == nil; n++ {
		mark := fmt.Sprintf("mk-%s-%d-end", name, n)
		current.Store(mark)
		b := draw(soundTools, false)
		if strings.HasSuffix(b.tool, "roots") {
			continue // it has none
		}
		params := &sdk.CallToolParams{Name: prefixOfSound() + b.tool, Arguments: arguments(b, mark)}
		params.SetProgressToken(mark)
		bounded, cancel := context.WithTimeout(s.t.Context(), s.bound+slack)
		s.calls.Add(1)
		result, err := session.CallTool(bounded, params)
		cancel()
		if err != nil {
			s.fault("the official client's %s: %v", params.Name, err)
			continue
		}
		text, _ := json.Marshal(result) // it came as JSON
		own("result", string(text))
		if b.tool != "test_wait" && b.tool != "test_tool_with_progress" && !strings.Contains(string(text), mark) {
			s.fault("the official client's %s of %s has %s", params.Name, mark, text)
		}
	}
	if err := session.Close(); err != nil {
		s.fault("the official client does not close: %v", err)
	}
}

// authorized adds a key to each request.
type authorized struct {
	key  string
	next http.RoundTripper
}

func (a authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+a.key)
	return a.next.RoundTrip(req)
}
