package app

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/publish"
	"github.com/mcp-events/mcpevents/shared/source/ingest"
)

// Publish takes events in. The service checks and queues them, the handler is POST /events,
// and the inbox handles the queue of that name, with what buses put there for sources.
func (c *Core) Publish() (*publish.Service, *publish.Handler, *publish.Inbox) {
	service := &publish.Service{Catalog: c.Catalogs, Queue: c.Queues, Rate: publish.NewRate(c.rate(config.PublishRate)), Metrics: c.Metrics, Tracer: c.Tracer}
	handler := &publish.Handler{
		Service: service, Auth: c.Auth, Guard: c.Guard(), MetadataURL: c.ResourceMetadata, Log: c.Log,
	}
	seen, outcomes := c.ofSources()
	bus := &ingest.Bus{
		Sources: c.Config, Catalogs: c.Catalogs, Publisher: service, Seen: seen, Queue: c.Queues, Metrics: c.Metrics, Recorder: outcomes, Log: c.Log,
	}
	return service, handler, &publish.Inbox{Service: service, Documents: bus, Log: c.Log}
}

// Sources is POST /sources/{name}, which publishes by the service. Secrets looks up those of the sources.
func (c *Core) Sources(service *publish.Service, secrets func(context.Context, config.Value) (string, error)) *ingest.Handler {
	seen, outcomes := c.ofSources()
	return &ingest.Handler{
		Sources: c.Config, Secrets: secrets, Catalogs: c.Catalogs, Publisher: service, Seen: seen, Queue: c.Queues,
		Rate: publish.NewRate(c.rate(config.PublishRate)), Guard: c.Guard(), Limited: func(limit string) { c.Metrics.LimitReached(limit) },
		Metrics: c.Metrics, Recorder: outcomes, Log: c.Log,
	}
}

// ofSources is what requests and messages share: the ids that this process knows, and the bound of what it writes.
func (c *Core) ofSources() (ingest.Seen, *ingest.Records) {
	c.sourcesOnce.Do(func() {
		c.seen, c.records = ingest.NewSeen(c.DB), ingest.NewRecords(c.DB, c.Limits.DeliveryLog, c.Metrics, c.Log)
	})
	return c.seen, c.records
}
