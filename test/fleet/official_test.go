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

	"github.com/mcp-events/mcpevents/test/harness"
)

// runOfficial calls tools with the client of the official Go SDK, which has an application's handlers.
func (s *soak) runOfficial(ctx context.Context, principal, version string, n int) {
	name := fmt.Sprintf("S%s%d", version[:4], n)
	var current atomic.Value // the mark of the call under way
	current.Store("")
	checkMarks := func(kind, text string) {
		for _, mark := range marks.FindAllString(text, -1) {
			if !strings.HasPrefix(mark, "mk-"+name+"-") { // handlers may run after their call has ended
				s.fault("the official client in call %s: the %s has the mark %s: %s", current.Load(), kind, mark, text)
			}
		}
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "official", Version: "1"}, &sdk.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			checkMarks("question", req.Params.Message)
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
					checkMarks("prompt", text.Text)
				}
			}
			return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: current.Load().(string)}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, req *sdk.ProgressNotificationClientRequest) {
			checkMarks("progress", fmt.Sprint(req.Params.ProgressToken, req.Params.Message))
		},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { s.changes.Add(1) },
	})
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	session, err := client.Connect(s.t.Context(), &sdk.StreamableClientTransport{
		Endpoint: s.MCP, HTTPClient: &http.Client{Transport: harness.Bearer{Key: s.Keys[principal], Next: transport}},
	}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		s.fault("connect the official client: %v", err)
		return
	}
	for n := 0; ctx.Err() == nil; n++ {
		mark := fmt.Sprintf("mk-%s-%d-end", name, n)
		current.Store(mark)
		b := draw(soundTools, false)
		if strings.HasSuffix(b.tool, "roots") {
			continue // this client declares no roots
		}
		params := &sdk.CallToolParams{Name: randomSoundPrefix() + b.tool, Arguments: arguments(b, mark)}
		params.SetProgressToken(mark)
		bounded, cancel := context.WithTimeout(s.t.Context(), s.bound+slack)
		s.calls.Add(1)
		result, err := session.CallTool(bounded, params)
		cancel()
		if err != nil {
			s.fault("the official client's %s: %v", params.Name, err)
			continue
		}
		text, _ := json.Marshal(result) // cannot fail, because it was decoded from JSON
		checkMarks("result", string(text))
		if b.tool != "test_wait" && b.tool != "test_tool_with_progress" && !strings.Contains(string(text), mark) {
			s.fault("the official client's %s: got %s, want the mark %s", params.Name, text, mark)
		}
	}
	if err := session.Close(); err != nil {
		s.fault("close the official client: %v", err)
	}
}
