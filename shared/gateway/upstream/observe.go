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
	Name    string
	Metrics *metric.Set
	Tracer  *trace.Tracer
}

// The failures that the trace span of a request records: the response was an error, or there was no response.
const (
	failedAnswer = "error"
	noAnswer     = "no_answer"
)

// request is a running request that an [Observer] observes, from its POST to the end of the exchange.
type request struct {
	by   Observer
	span trace.Span
	done atomic.Bool
}

// begin starts to observe a message if it is a request, and returns the trace context to send with it. If the request's span is recorded,
// begin also writes the context to _meta, where it replaces the client's own context (SEP-414). It does not observe subscriptions/listen
// requests, because they last as long as their stream.
func (o Observer) begin(ctx context.Context, r *Request) (*request, trace.Context) {
	where := trace.From(ctx)
	method, is := requestMethod(r.Body)
	if !is || method == spec.MethodListen {
		return nil, where
	}
	q := &request{by: o, span: o.Tracer.Start(where, method, trace.Client)}
	if q.span.Recording() {
		q.span.Set(attribute.String("mcp.method.name", method), attribute.String("mcpevents.backend", o.Name))
		r.Body = addTrace(r.Body, q.span.Context)
	}
	return q, q.span.Context
}

// requestMethod returns the method of a request. It reports false if the message has no id or no method.
func requestMethod(body []byte) (method string, is bool) {
	id := false
	for key, value := range jsonrpc.Members(body) {
		switch string(key) {
		case "id":
			id = true
		case "method":
			method, _ = jsonrpc.String(value)
		case "params": // the gateway writes it last, and it may be long to read
			return method, id && method != ""
		}
	}
	return method, id && method != ""
}

func addTrace(body json.RawMessage, c trace.Context) json.RawMessage {
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

// end counts the request when it ends, but only once. The parameter failure is empty if the backend answered with a result.
func (q *request) end(failure string) {
	if q == nil || q.done.Swap(true) {
		return
	}
	q.by.Metrics.BackendCalled(q.by.Name, failure != "")
	q.span.End(failure)
}
