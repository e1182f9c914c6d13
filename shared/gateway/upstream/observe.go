package upstream

import (
	"context"
	"encoding/json"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"

	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Observer counts and traces requests to a backend. Its zero value does nothing.
type Observer struct {
	// Name is the backend's.
	Name    string
	Metrics *metric.Set
	Tracer  *trace.Tracer
}

// Why a request failed, where no status or error of JSON-RPC says it.
const (
	failedAnswer = "error"
	noAnswer     = "no_answer"
)

// request is one under way: from its POST to the end of the exchange.
type request struct {
	by   Observer
	span trace.Span
	done atomic.Bool
}

// begin observes a message if it is a request, and returns the context to send with it. If there is a span, _meta says
// the same, where a client's own context may stand (SEP-414). A listen is no call: it ends when its stream does.
func (o Observer) begin(ctx context.Context, r *Request) (*request, trace.Context) {
	where := trace.From(ctx)
	method, is := requested(r.Body)
	if !is || method == spec.MethodListen {
		return nil, where
	}
	q := &request{by: o, span: o.Tracer.Start(where, method, trace.Client)}
	if q.span.On() {
		q.span.Set(attribute.String("mcp.method.name", method), attribute.String("mcpevents.backend", o.Name))
		r.Body = inMeta(r.Body, q.span.Context)
	}
	return q, q.span.Context
}

// requested reads the method of a request; what is none has no id, or no method.
func requested(body []byte) (method string, is bool) {
	id := false
	for key, value := range jsonrpc.Members(body) {
		switch string(key) {
		case "id":
			id = true
		case "method":
			method, _ = jsonrpc.String(value)
		case "params": // comes last, and may be long
			return method, id && method != ""
		}
	}
	return method, id && method != ""
}

// inMeta has params._meta of a request say where in a trace it belongs.
func inMeta(body json.RawMessage, c trace.Context) json.RawMessage {
	params := jsonrpc.Member(body, "params")
	if len(params) == 0 || params[0] != '{' {
		return body
	}
	had := jsonrpc.Member(params, "_meta")
	meta := json.RawMessage(`{}`)
	if len(had) > 0 && had[0] == '{' {
		meta = jsonrpc.Without(had, func(name string) bool { return name == trace.Parent || name == trace.State })
	}
	if c.State != "" {
		meta = jsonrpc.Insert(meta, trace.State, jsonrpc.Quote(c.State))
	}
	meta = jsonrpc.Insert(meta, trace.Parent, jsonrpc.Quote(c.Parent))
	if had == nil {
		params = jsonrpc.Insert(params, "_meta", meta)
	} else {
		params = jsonrpc.Replace(params, "_meta", meta)
	}
	return jsonrpc.Replace(body, "params", params)
}

// end counts the request, once. failure is empty for one that was answered.
func (q *request) end(failure string) {
	if q == nil || q.done.Swap(true) {
		return
	}
	q.by.Metrics.Called(q.by.Name, failure != "")
	q.span.End(failure)
}
