package gateway

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// The outcomes of calls in the log and the metric. docs/reference/logs.md describes them.
const (
	outcomeOK          = "ok"
	outcomeToolError   = "tool_error"
	outcomeError       = "error"
	outcomeInput       = "input_required"
	outcomeUnknown     = "unknown"
	outcomeDenied      = "denied"
	outcomeScope       = "missing_scope"
	outcomeRefused     = "refused"
	outcomeCancelled   = "cancelled"
	outcomeUnavailable = "unavailable"
)

// record collects the data for a call's log line and metric, which contain no arguments and no results.
type record struct {
	call    *api.Call
	began   time.Time
	backend string // empty if no backend serves the name
	outcome string // the outcome in the backend's response; empty without a response
	gone    bool   // the client has disconnected
}

func outcomeOf(m upstream.Message) string {
	switch {
	case m.Error != nil:
		return outcomeError
	case string(jsonrpc.Member(m.Result, "isError")) == "true":
		return outcomeToolError
	case translate.InputRequired(m.Result):
		return outcomeInput
	}
	return outcomeOK
}

// write counts a call that has ended, and writes its log line.
//
// The principal and the tool are only in the log line. As attributes of the metric, they would make a time series for each combination, and
// a backend could make any number of time series with new names of tools. The metric has only the backends, which come from the
// configuration, and the outcomes, which are fixed.
func (g *Gateway) write(ctx context.Context, r record, err error) {
	c := r.call
	switch {
	case r.gone && r.outcome == "":
		r.outcome = outcomeCancelled
	case err != nil && !r.gone:
		r.outcome = outcomeOfFault(err)
	}
	if r.outcome == outcomeUnknown {
		if denier := g.DeniedBy(ctx, c.Client, c.Kind, c.Name); r.backend == "" && denier != "" {
			r.backend, r.outcome = denier, outcomeDenied
		} else if r.backend != "" {
			r.outcome = outcomeRefused
		}
	}
	now := time.Now()
	took := now.Sub(r.began)
	g.options.Metrics.GatewayCalled(r.backend, r.outcome, took)
	if !g.options.Log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	line := slog.NewRecord(now, slog.LevelInfo, "gateway call", 0)
	line.AddAttrs(
		slog.String("workspace", c.Principal.Workspace), slog.String("principal", c.Principal.LogName()),
		slog.String("backend", r.backend), slog.String("method", fault.Clip(c.Method, maxName)),
	)
	if c.Kind.Prefixed() { // a URI may contain data that must not be logged
		line.AddAttrs(slog.String(c.Kind.String(), fault.Clip(c.Name, maxName)))
	}
	line.AddAttrs(slog.String("outcome", r.outcome), slog.Float64("took_ms", float64(took.Microseconds())/1000))
	g.lines.Add(ctx, line)
}

const maxName = 128 // bytes of a name in a log line, because a client may choose a long one

// Flush writes the log lines that are waiting because of [Options.LogDelay].
func (g *Gateway) Flush() { g.lines.Flush() }

func outcomeOfFault(err error) string {
	_, refused := errors.AsType[*jsonrpc.Error](err)
	switch kind := fault.KindOf(err); {
	case errors.Is(err, errCancelled), errors.Is(err, context.Canceled):
		return outcomeCancelled
	case auth.LacksScope(err):
		return outcomeScope
	case kind == fault.Invalid && !refused:
		return outcomeUnknown
	case refused, kind == fault.Conflict, kind == fault.Exhausted, kind == fault.Forbidden, kind == fault.Unauthenticated:
		return outcomeRefused
	}
	return outcomeUnavailable
}
