// Package relays has the constructor of the relay role, which receives the notifications and events of the gateway's backends. It is
// separate from package app because functions that do not import it are smaller.
package relays

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/events/demand/intake"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
)

// New returns the relay, which writes the notifications of the gateway's backends to the event log. The relay calls the function
// typesChanged after it has stored changed event types of a backend. If typesChanged is nil, the relay does not receive the events of
// backends.
//
// The function key returns the deployment's key. The secrets with which backends sign their webhooks are derived from this key.
func New(c *app.Core, g *gateway.Gateway, key func(context.Context) ([]byte, error), typesChanged func(context.Context) error) *relay.Relay {
	var events *relay.Events
	if typesChanged != nil {
		publisher := publish.NewBackendPublisher(&publish.Service{Catalog: c.Catalogs, Queue: c.Queues, Metrics: c.Metrics, Tracer: c.Tracer})
		events = &relay.Events{
			Intake: intake.Intake{Demand: c.Demand, Publish: publisher.Publish, Gap: publisher.Gap},
			Hooks:  app.NewHooks(c, key), Configured: c.Config.Backends, Changed: typesChanged, Agent: app.UserAgent(),
		}
	}
	return &relay.Relay{
		Backends: g.Followed,
		Announce: func(ctx context.Context, workspace, backend string, notice json.RawMessage) error {
			return c.EventLog.Notify(ctx, workspace, stream.TopicBackend(backend), notice)
		},
		DB: c.DB, Log: c.Log, Events: events,
	}
}
