package app

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Publishing is the role that accepts events.
type Publishing struct {
	Service *publish.Service // validates events and puts them on the events queue
	Handler *publish.Handler // serves POST /events
	Sources *ingest.Handler  // serves POST /sources/{name}
	Inbox   *publish.Inbox   // handles the messages of the inbox queue
}

// NewPublishing returns the role publish. The function secrets looks up the secrets of sources.
func NewPublishing(c *Core, secrets func(context.Context, secret.Value) (string, error)) Publishing {
	service := newPublisher(c)
	intake := newIntake(c, service)
	return Publishing{
		Service: service,
		Handler: &publish.Handler{Service: service, Auth: c.Auth, Guard: c.Guard, MetadataURL: c.ResourceMetadata, Log: c.Log},
		Sources: &ingest.Handler{
			Intake: intake, Secrets: secrets, Rate: publish.NewRate(c.CallerQuota(quota.PublishRate)), Guard: c.Guard,
			Limited: func(limit string) { c.Metrics.LimitReached(limit) },
		},
		Inbox: newInbox(c, intake, service),
	}
}

// NewInbox returns the handler of the inbox queue for a process that does not publish anything else.
func NewInbox(c *Core) *publish.Inbox {
	service := newPublisher(c)
	return newInbox(c, newIntake(c, service), service)
}

func newPublisher(c *Core) *publish.Service {
	return &publish.Service{
		Catalog: c.Catalogs, Queue: c.Queues, Rate: publish.NewRate(c.CallerQuota(quota.PublishRate)), Metrics: c.Metrics, Tracer: c.Tracer,
	}
}

func newInbox(c *Core, intake ingest.Intake, service *publish.Service) *publish.Inbox {
	return &publish.Inbox{Service: service, Documents: &ingest.Bus{Intake: intake}, Log: c.Log}
}

// newIntake returns the parts that the requests and the messages of sources share.
func newIntake(c *Core, service *publish.Service) ingest.Intake {
	return ingest.Intake{
		Sources: c.Config, Catalogs: c.Catalogs, Publisher: service, Seen: ingest.NewSeen(c.DB), Queue: c.Queues,
		Recorder: ingest.NewRecords(c.DB, c.Limits.DeliveryLog, c.Metrics, c.Log), Metrics: c.Metrics, Log: c.Log,
	}
}
