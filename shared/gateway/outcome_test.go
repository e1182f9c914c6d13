package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const (
	v2025 = "2025-11-25"
	v2026 = "2026-07-28"

	// able are all capabilities that a question may need.
	able = `{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}`
	// form asks for a name.
	form = `{"message":"Name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}`
)

// serving returns a backend with the tool "tool", the prompt "prompt" and the resource test://resource. The tool may have a given
// definition.
func serving(t *testing.T, stateless bool, call func(*turn), tool ...string) *scripted {
	t.Helper()
	tool = append(tool, `{"name":"tool","inputSchema":{"type":"object"}}`)
	return newScripted(t, func(s *scripted) {
		s.stateless, s.call = stateless, call
		s.lists = func(method, _ string) string {
			switch method {
			case "tools/list":
				return `{"tools":[` + tool[0] + `]}`
			case "prompts/list":
				return `{"prompts":[{"name":"prompt"}]}`
			case "resources/list":
				return `{"resources":[{"uri":"test://resource","name":"resource"}]}`
			}
			return emptyList(method)
		}
	})
}

// instances returns gateways that share only the store.
func instances(t *testing.T, n int, s *scripted) (all []*Gateway) {
	t.Helper()
	db := memory(t)
	for range n {
		all = append(all, gatewayOver(t, db, at("b", s)))
	}
	return all
}

func someone(version string) api.Client {
	c := api.Client{
		Principal: auth.Principal{Workspace: "default", ID: "alice"}, Version: spec.Version(version),
		Capabilities: json.RawMessage(able), Info: json.RawMessage(`{"name":"client","version":"2"}`),
	}
	if version == v2025 {
		c.Session = "client-session"
	}
	return c
}

// outcome is the result of a call, its notifications and its error as the client sees them.
type outcome struct {
	before   []json.RawMessage
	response json.RawMessage
	err      error
}

// called calls the tool. The text params has the members after the name.
func called(t *testing.T, g *Gateway, c api.Client, params string, change ...func(*api.Call)) outcome {
	t.Helper()
	call := api.Call{
		Client: c, Kind: api.Tools, Name: "tool", Member: "name", Method: "tools/call", ID: json.RawMessage(`7`),
		Params: json.RawMessage(`{"name":"tool"` + params + `}`), Header: http.Header{},
	}
	var o outcome
	call.Send = func(message json.RawMessage, response bool) error {
		if response {
			o.response = message
		} else {
			o.before = append(o.before, message)
		}
		return nil
	}
	for _, f := range change {
		f(&call)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o.err = g.Call(ctx, call)
	return o
}

// ofResource turns a call into a read of the resource.
func ofResource(c *api.Call) {
	c.Kind, c.Method, c.Name, c.Member = api.Resources, "resources/read", "test://resource", "uri"
	c.Params = json.RawMessage(`{"uri":"test://resource"}`)
}

// result returns the result of a successful call.
func (o outcome) result(t *testing.T) json.RawMessage {
	t.Helper()
	result := jsonrpc.Member(o.response, "result")
	if o.err != nil || result == nil {
		t.Fatalf("got the error %v and the response %s", o.err, o.response)
	}
	return result
}

// says returns the type and the text of the result.
func (o outcome) says(t *testing.T) string {
	t.Helper()
	var r struct {
		Kind    string                  `json:"resultType"`
		Content []struct{ Text string } `json:"content"`
	}
	if err := json.Unmarshal(o.result(t), &r); err != nil || len(r.Content) != 1 {
		t.Fatalf("got %s", o.response)
	}
	return r.Kind + ":" + r.Content[0].Text
}

// code returns the code and the data of the error with which a call ended.
func (o outcome) code() (int, string) {
	var e struct {
		Error struct {
			Code int
			Data json.RawMessage
		}
	}
	if o.response != nil {
		_ = json.Unmarshal(o.response, &e)
		return e.Error.Code, string(e.Error.Data)
	}
	if rpc, ok := o.err.(*jsonrpc.Error); ok {
		data, _ := json.Marshal(rpc.Data)
		return rpc.Code, string(data)
	}
	return 0, ""
}

// required is a parsed input_required result.
type required struct {
	Kind     string                     `json:"resultType"`
	Requests map[string]json.RawMessage `json:"inputRequests"`
	State    string                     `json:"requestState"`
}

func (o outcome) required(t *testing.T) (r required) {
	t.Helper()
	if err := json.Unmarshal(o.result(t), &r); err != nil || r.Kind != "input_required" || r.State == "" {
		t.Fatalf("got %s (%v), want input_required", o.response, err)
	}
	return r
}

// retry returns the params of the next round, with the same response to every request.
func (r required) retry(response string) string {
	return r.retryWith(func(string) string { return response })
}

// retryBy returns the params of the next round, with a response for each method.
func (r required) retryBy(responses map[string]string) string {
	return r.retryWith(func(method string) string { return responses[method] })
}

func (r required) retryWith(response func(method string) string) string {
	answers := map[string]json.RawMessage{}
	for key, request := range r.Requests {
		method, _ := jsonrpc.String(jsonrpc.Member(request, "method"))
		answers[key] = json.RawMessage(response(method))
	}
	b, _ := json.Marshal(answers)
	return fmt.Sprintf(`,"inputResponses":%s,"requestState":%q`, b, r.State)
}

// text returns the result of a tool with the given text.
func text(format string, a ...any) string {
	b, _ := json.Marshal(fmt.Sprintf(format, a...))
	return `{"content":[{"type":"text","text":` + string(b) + `}]}`
}

// same compares JSON regardless of the order of members.
func same(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && fmt.Sprint(x) == fmt.Sprint(y)
}
