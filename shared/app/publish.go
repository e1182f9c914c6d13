package app

import (
	"github.com/mcp-events/mcpevents/shared/publish"
)

// Publish takes events in. The service checks and queues them, the handler is POST /events,
// and the inbox handles the queue of that name.
func (c *Core) Publish() (*publish.Service, *publish.Handler, *publish.Inbox) {
	service := &publish.Service{Catalog: c.Catalogs, Queue: c.Queues, Rate: publish.NewRate(c.Limits.PublishRate), Metrics: c.Metrics, Tracer: c.Tracer}
	handler := &publish.Handler{
		Service: service, Auth: c.Auth, Guard: c.Guard(), MetadataURL: c.ResourceMetadata, Log: c.Log,
	}
	return service, handler, &publish.Inbox{Service: service, Log: c.Log}
}
