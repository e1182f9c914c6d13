package gateway

import (
	"context"
	"log/slog"

	"github.com/mcp-events/mcpevents/shared/metric"
)

// MetricDropped is the name under which messages of backends that were not handed on are
// counted, by workspace, backend and reason.
const MetricDropped = "GatewayMessagesDropped"

// Why a message of a backend was not handed on; packages upstream and relay have further reasons. There are few,
// since they are counted by.
const (
	dropOther      = "it answers another request"
	dropProgress   = "it is the progress of another request"
	dropOutOfPlace = "its method does not belong into a call"
	dropNameless   = "an entry of a list without a name"
	dropControls   = "an entry of a list with control characters in its name"
)

func newDrops(log *slog.Logger) *metric.Tally {
	return &metric.Tally{Name: MetricDropped, Text: "backend messages dropped", Log: log}
}

func (b *backend) dropped(ctx context.Context, reason string) {
	b.gateway.drops.Add(ctx, slog.String("workspace", b.Workspace), slog.String("backend", b.Name), slog.String("reason", reason))
}

// Dropped is how many messages of each backend, named workspace/backend, were not handed
// on since the process began, and why.
func (g *Gateway) Dropped() map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	g.drops.Each(func(by []string, n int64) {
		name := by[0] + "/" + by[1]
		if out[name] == nil {
			out[name] = map[string]int64{}
		}
		out[name][by[2]] = n
	})
	return out
}
