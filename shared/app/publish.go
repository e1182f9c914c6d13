package app

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Publish takes events in. The service checks and queues them, the handler is POST /events,
// and the inbox handles the queue of that name, with what buses put there for sources.
func (c *Core) Publish() (*publish.Service, *publish.Handler, *publish.Inbox) {
	service := c.publisher()
	handler := &publish.Handler{
		Service: service, Auth: c.Auth, Guard: c.Guard(), MetadataURL: c.ResourceMetadata, Log: c.Log,
	}
	return service, handler, c.inbox(service)
}

// Inbox handles the inbox queue in a process that publishes nothing else.
func (c *Core) Inbox() *publish.Inbox { return c.inbox(c.publisher()) }

func (c *Core) publisher() *publish.Service {
	return &publish.Service{Catalog: c.Catalogs, Queue: c.Queues, Rate: publish.NewRate(c.Rate(quota.PublishRate)), Metrics: c.Metrics, Tracer: c.Tracer}
}

func (c *Core) inbox(service *publish.Service) *publish.Inbox {
	return &publish.Inbox{Service: service, Documents: &ingest.Bus{Intake: c.intake(service)}, Log: c.Log}
}

// Sources is POST /sources/{name}, which publishes by the service. Secrets looks up those of the sources.
func (c *Core) Sources(service *publish.Service, secrets func(context.Context, secret.Value) (string, error)) *ingest.Handler {
	return &ingest.Handler{
		Intake: c.intake(service), Secrets: secrets, Rate: publish.NewRate(c.Rate(quota.PublishRate)), Guard: c.Guard(),
		Limited: func(limit string) { c.Metrics.LimitReached(limit) },
	}
}

// intake is what requests and messages share, also the ids that this process knows, and the bound of what it writes.
func (c *Core) intake(service *publish.Service) ingest.Intake {
	c.sourcesOnce.Do(func() {
		c.seen, c.records = ingest.NewSeen(c.DB), ingest.NewRecords(c.DB, c.Limits.DeliveryLog, c.Metrics, c.Log)
	})
	return ingest.Intake{
		Sources: c.Config, Catalogs: c.Catalogs, Publisher: service, Seen: c.seen, Queue: c.Queues, Recorder: c.records, Metrics: c.Metrics, Log: c.Log,
	}
}
