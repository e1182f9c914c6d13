// Package app puts the parts of the product together, in the same way for both modes. [Core] holds what all roles share,
// and each role has one constructor. The stand-alone server (package standalone) runs all roles in one process. On AWS,
// each function runs one.
//
//	role        constructor                       on AWS                stand-alone
//	publish     [NewPublishing]                   functions/publish     POST /events, POST /sources/…, inbox queue
//	fanout      webhooks.NewFanout                functions/fanout      events queue
//	dispatch    webhooks.NewDispatcher            functions/dispatch    deliveries queue, slow lane
//	retry       webhooks.NewJobs                  functions/retry       every minute
//	register    webhooks.NewRegistrar             functions/register    /mcp
//	deregister  [NewSubscriptions]                functions/deregister  /mcp
//	stream      [NewStreamEndpoint]               functions/stream      /mcp
//	relay       [NewRelay]                        functions/relay       one goroutine
//	admin       operators.NewHandler              functions/admin       /admin/v1, /console
//
// An event gets its parts in publish.go and webhooks/webhooks.go, a subscribe in subscriptions.go and
// webhooks/webhooks.go, and a tools/call in mcp.go. Packages webhooks and operators are separate from this one only
// because functions that do not import them are much smaller.
//
// Package app contains no domain rules. It does not read the environment or create clients either: package standalone and
// functions/internal/boot do that, and fill in a Core.
package app

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Version is the version that the product reports to clients, backends and endpoints. The linker sets it for a release.
var Version = "0.1.0"

// UserAgent identifies the product to webhook endpoints and backends.
func UserAgent() string { return "mcp-events/" + Version }

// Core holds the parts that all roles share. Metrics, Tracer, Auth and ResourceMetadata are optional.
type Core struct {
	DB       store.DB
	Queues   queue.Sender
	Catalogs catalog.Source
	Config   *config.Stored
	EventLog *eventlog.Log
	Limits   config.Limits
	Log      *slog.Logger
	// Metrics and Tracer may be nil, which turns counting or tracing off.
	Metrics *metric.Set
	Tracer  *trace.Tracer
	// Auth authenticates callers. In a role without callers it is the directory of principals, or nil.
	Auth auth.Authenticator
	// Guard keeps the pages of other sites out of the endpoints. All endpoints share one, so that it logs a refused host
	// only once.
	Guard auth.Guard
	// ResourceMetadata is the URL at which clients learn how to get a token. It is empty if they do not need one.
	ResourceMetadata string
}

// config returns the current configuration, or nil if it cannot be read. Then the settings apply.
func (c *Core) config(ctx context.Context) *config.Config {
	if c.Config == nil {
		return nil
	}
	now, err := c.Config.Config(ctx)
	if err != nil {
		return nil
	}
	return now
}

// Quota returns a function that looks up a quota of a principal.
func (c *Core) Quota(name string) func(ctx context.Context, workspace, principal string) float64 {
	return func(ctx context.Context, workspace, principal string) float64 {
		if now := c.config(ctx); now != nil {
			return now.Most(name, workspace, principal, c.Limits)
		}
		return c.Limits.Most(name)
	}
}

// CallerQuota returns the same limits as [Core.Quota], for code that has the caller as an [auth.Principal].
func (c *Core) CallerQuota(name string) quota.Of {
	of := c.Quota(name)
	return func(ctx context.Context, p auth.Principal) float64 { return of(ctx, p.Workspace, p.ID) }
}

// MaxStreams returns the number of streams that a principal may have open.
func (c *Core) MaxStreams(ctx context.Context, p auth.Principal) int {
	return int(c.CallerQuota(quota.Streams)(ctx, p))
}

// MaxSessions returns the number of sessions that a principal may have.
func (c *Core) MaxSessions(ctx context.Context, p auth.Principal) int {
	return int(c.CallerQuota(quota.Sessions)(ctx, p))
}

// Profile returns the profile of the MCP Events extension that is configured for a principal, or the default one.
func (c *Core) Profile(ctx context.Context, p auth.Principal) spec.Profile {
	profile := spec.Profile(c.Limits.Profile)
	if now := c.config(ctx); now != nil {
		return cmp.Or(now.Profile(p.Workspace, p.ID), profile)
	}
	return profile
}

// WatchLog registers the metrics of the event log. They reveal violated timing assumptions that would otherwise go
// unnoticed.
func (c *Core) WatchLog() error {
	for name, n := range map[string]*atomic.Int64{
		metric.LogSlowAppends: &c.EventLog.Slow, metric.LogClockSkew: &c.EventLog.Skewed,
		metric.LogLateEntries: &c.EventLog.Late, metric.LogBrokenSegments: &c.EventLog.Broken,
	} {
		err := c.Metrics.Watch(name, func(context.Context) ([]metric.Reading, error) { return metric.One(float64(n.Load())), nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// clockLeeway is how far the clock of an issuer of tokens may be off.
const clockLeeway = 30 * time.Second

// NewTokenAuthenticator returns the authenticator of --auth jwt. If settings are missing or out of range, the error is of
// kind fault.Invalid.
func NewTokenAuthenticator(l config.Limits, log *slog.Logger) (*jwt.Authenticator, error) {
	return jwt.New(jwt.Options{
		Issuers: l.JWTIssuers, JWKS: l.JWTKeys, Audience: l.JWTAudience, Algorithms: l.JWTAlgorithms,
		PrincipalClaim: l.JWTPrincipal, WorkspaceClaim: l.JWTWorkspace, ScopePrefix: l.JWTScopePrefix, Leeway: clockLeeway, Log: log,
	})
}
