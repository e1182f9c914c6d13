package gateway

import (
	"net/http"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// parameters returns the tool's arguments that headers must repeat.
func (x *exchange) parameters() ([]translate.Parameter, error) {
	if x.call.Method != spec.MethodToolsCall {
		return nil, nil
	}
	return translate.Parameters(x.entry.JSON)
}

// checkParameters checks that the headers of a client's request repeat its arguments.
func (x *exchange) checkParameters() error {
	list, err := x.parameters()
	if err != nil {
		return nil // no client may use such a tool, and the backend decides
	}
	arguments := jsonrpc.Member(x.call.Params, "arguments")
	for _, p := range list {
		want, expected := p.Text(arguments)
		values := x.call.Header[p.Header]
		if !expected && len(values) == 0 {
			continue
		}
		if !expected || len(values) != 1 || !p.Equal(values[0], want) {
			return &jsonrpc.Error{Code: spec.CodeHeaderMismatch, Message: "Header mismatch: " + p.Header + " does not repeat its argument"}
		}
	}
	return nil
}

// addParameters adds the headers that repeat arguments.
func (x *exchange) addParameters(h http.Header) error {
	list, err := x.parameters()
	if err != nil {
		return err
	}
	arguments := jsonrpc.Member(x.call.Params, "arguments")
	for _, p := range list {
		if text, ok := p.Text(arguments); ok {
			h[p.Header] = []string{spec.EncodeHeader(text)}
		}
	}
	return nil
}
