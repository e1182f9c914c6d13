package gateway

import (
	"net/http"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// checkParameters compares the headers of a client's request with its arguments.
func (x *exchange) checkParameters() error {
	c := x.call
	if c.Method != mcpspec.MethodToolsCall {
		return nil
	}
	list, err := translate.Parameters(x.entry.JSON)
	if err != nil {
		return nil // no client may use such a tool, and the backend has the last word
	}
	arguments := jsonrpc.Member(c.Params, "arguments")
	for _, p := range list {
		want, expected := p.Text(arguments)
		values := c.Header[p.Header]
		if !expected && len(values) == 0 {
			continue
		}
		if !expected || len(values) != 1 || !p.Equal(values[0], want) {
			return &jsonrpc.Error{Code: mcpspec.CodeHeaderMismatch, Message: "Header mismatch: " + p.Header + " does not repeat its argument"}
		}
	}
	return nil
}

// addParameters repeats the arguments in headers.
func (x *exchange) addParameters(h http.Header) error {
	c := x.call
	if c.Method != mcpspec.MethodToolsCall {
		return nil
	}
	list, err := translate.Parameters(x.entry.JSON)
	if err != nil {
		return err
	}
	arguments := jsonrpc.Member(c.Params, "arguments")
	for _, p := range list {
		if text, ok := p.Text(arguments); ok {
			h[p.Header] = []string{mcpspec.EncodeHeader(text)}
		}
	}
	return nil
}
