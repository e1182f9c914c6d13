// Package app is the graph, built once for all modes: [Core] is what every role shares, and
// each role has a constructor. The stand-alone server (package standalone) starts all roles in one
// process; a function starts one.
//
//	role        constructor                      a function                 stand-alone
//	publish     [Core.Publish]                   functions/publish          POST /events, inbox queue
//	fanout      webhooks.Fanout                  functions/fanout           events queue
//	dispatch    webhooks.Dispatch                functions/dispatch         deliveries queue, slow lane
//	retry       webhooks.Retry                   functions/retry            every minute
//	register    webhooks.Register                functions/register         /mcp
//	deregister  [Core.Subscriptions]             functions/deregister       /mcp
//	stream      [Core.Stream], [Core.Endpoint]   functions/stream           /mcp
//	relay       [Core.Relay]                     functions/relay            one goroutine
//	admin       operators.Admin                  functions/admin            /admin/v1
//
// It reads no environment and makes no client: functions/internal/boot and package standalone do,
// and fill a Core. Rules of the domain do not enter here either; this package only puts
// together what others are.
package app

import (
	"cmp"
	"context"
	"log/slog"
	"sync"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Version is the product's, as it calls itself to clients, backends and endpoints. The linker sets it for a release.
var Version = "0.1.0"

// UserAgent names the product to webhook endpoints and backends.
func UserAgent() string { return "mcp-events/" + Version }

// Core is what the roles share. All fields but Metrics, Tracer, Auth and ResourceMetadata are needed.
type Core struct {
	DB       store.DB
	Queues   queue.Sender
	Catalogs catalog.Source
	Config   *config.Stored
	EventLog *eventlog.Log
	Limits   config.Limits
	Log      *slog.Logger
	// Metrics counts what the roles do; nil counts nothing.
	Metrics *metric.Set
	// Tracer makes spans of what they do; nil makes none.
	Tracer *trace.Tracer
	// Auth authenticates callers. For a role that is not called it is the directory of
	// principals, or nil.
	Auth auth.Authenticator
	// ResourceMetadata is where clients learn how to get a token; empty unless they need one.
	ResourceMetadata string

	guardOnce   sync.Once
	guard       auth.Guard
	sourcesOnce sync.Once
	records     *ingest.Records
	seen        ingest.Seen
}

// Most is how much a principal may have of what a quota is named for. While the configuration cannot be read, the
// settings hold.
func (c *Core) Most(name string) func(ctx context.Context, workspace, principal string) float64 {
	return func(ctx context.Context, workspace, principal string) float64 {
		if c.Config == nil {
			return c.Limits.Most(name)
		}
		now, err := c.Config.Config(ctx)
		if err != nil {
			return c.Limits.Most(name)
		}
		return now.Most(name, workspace, principal, c.Limits)
	}
}

// Profile returns the profile of the MCP Events extension that a principal is configured for, or the default one.
func (c *Core) Profile(ctx context.Context, p auth.Principal) spec.Profile {
	profile := spec.Profile(c.Limits.Profile)
	if c.Config == nil {
		return profile
	}
	now, err := c.Config.Config(ctx)
	if err != nil {
		return profile
	}
	return cmp.Or(now.Profile(p.Workspace, p.ID), profile)
}

// Rate returns [Core.Most] for a quota that is counted per second.
func (c *Core) Rate(name string) quota.Of {
	most := c.Most(name)
	return func(ctx context.Context, p auth.Principal) float64 { return most(ctx, p.Workspace, p.ID) }
}

// Streams is how many streams a principal may have open.
func (c *Core) Streams(ctx context.Context, p auth.Principal) int {
	return int(c.Most(quota.Streams)(ctx, p.Workspace, p.ID))
}

// Sessions returns how many sessions a principal may have.
func (c *Core) Sessions(ctx context.Context, p auth.Principal) int {
	return int(c.Most(quota.Sessions)(ctx, p.Workspace, p.ID))
}

// Guard keeps pages of other sites out of the endpoints. It is one for all of them, so that it logs a
// host that it refuses once.
func (c *Core) Guard() auth.Guard {
	c.guardOnce.Do(func() { c.guard = auth.NewGuard(c.Limits.AllowedOrigins, c.Limits.AllowedHosts, c.Log) })
	return c.guard
}
