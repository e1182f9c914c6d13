// Package webhooks has the constructors of the roles on the way from an event to its webhooks. It is
// apart from package app for what it brings: the functions without webhooks are a third smaller.
package webhooks

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/events/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/console"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
)

// Fanout appends accepted events to the log and finds who wants them.
func Fanout(c *app.Core) *fanout.Fanout {
	return &fanout.Fanout{DB: c.DB, Log: c.EventLog, Catalog: c.Catalogs, Queue: c.Queues, Metrics: c.Metrics, Tracer: c.Tracer}
}

// Guard is where webhooks may go.
func Guard(c *app.Core) *webhook.Guard {
	l := c.Limits
	g := &webhook.Guard{AllowInsecure: l.AllowInsecureTargets, BlockedHosts: l.BlockedTargets}
	if l.AllowInsecureTargets {
		return g // any port, as any address
	}
	for _, p := range l.TargetPorts {
		g.Ports = append(g.Ports, uint16(p))
	}
	return g
}

// Register makes subscriptions: sender verifies endpoints, sealer seals their secrets, and cursors their cursors.
func Register(c *app.Core, subs *subscription.Service, sender *webhook.Sender, sealer targets.Sealer, cursors *eventlog.Sealer) *subscription.Registrar {
	return &subscription.Registrar{
		Service: subs, Sealer: cursors, Targets: targets.Targets{Sender: sender, Sealer: sealer}, Options: c.Registrations(),
		Replay: &deadletter.Replayer{Log: c.EventLog, Queue: c.Queues}, Watermark: &delivery.Watermark{DB: c.DB},
	}
}

// Deliveries are the rules of attempts, as the operator set them.
func Deliveries(l config.Limits) delivery.Options {
	return delivery.Options{
		Schedule: l.RetrySchedule, EventsSchedule: l.EventsSchedule,
		Timeout: l.WebhookTimeout, EventsTimeout: l.EventsTimeout,
		EndpointRate: l.EndpointRate,
		Records:      records.Keep(l.DeliveryLog), Profile: spec.Profile(l.Profile),
	}
}

// Terminator ends subscriptions that may not go on. [app.Core.Auth] may be a directory of principals; if
// not, what they were granted stands.
func Terminator(c *app.Core, subs *subscription.Service) *delivery.Terminator {
	directory, _ := c.Auth.(auth.Directory)
	return &delivery.Terminator{
		Queue: c.Queues, Subscriptions: subs, Lists: c.Lists(), ErrorObject: method.ErrorObject, Profile: spec.Profile(c.Limits.Profile), Plain: c.Limits.PlainTargets, Log: c.Log,
		Review: &subscription.Review{DB: c.DB, Catalog: c.Catalogs, Directory: directory},
	}
}

// Dispatch signs and POSTs. Gate is nil where subscriptions end in another process.
func Dispatch(c *app.Core, subs *subscription.Service, terminator *delivery.Terminator, sender delivery.Poster, opener delivery.Opener,
	cursors func(context.Context) (*eventlog.Sealer, error), gate *delivery.Gate, set *switches.Set, options delivery.Options,
) *delivery.Dispatcher {
	return delivery.NewDispatcher(&delivery.Dispatcher{
		DB: c.DB, Queue: c.Queues, Subscriptions: subs, Catalog: c.Catalogs,
		Poster: sender, Opener: opener, Terminator: terminator, Gaps: &delivery.Gaps{Log: c.EventLog, Sealer: cursors}, Gate: gate, Switches: set, Options: options, Metrics: c.Metrics, Tracer: c.Tracer, Log: c.Log,
	})
}

// Admin is what the operators' API is made of. Nothing is attempted here.
func Admin(c *app.Core, subs *subscription.Service, operations *deadletter.Operations, replays *deadletter.Replays, set *switches.Set) admin.Options {
	lists := c.Lists()
	eraser := &erase.Eraser{DB: c.DB, Subscriptions: subs, Lists: lists, Operations: operations, Replays: replays, Trail: &audit.Trail{DB: c.DB}}
	return admin.Options{
		Eraser: eraser,
		Auth:   c.Auth, Guard: c.Guard(), MetadataURL: c.ResourceMetadata, DB: c.DB, Subscriptions: subs, Lists: lists,
		Operations: operations, Replays: replays, Switches: set, Events: c.EventLog, Catalogs: c.Catalogs, Sources: c.Config,
		Kept: records.Keep(cmp.Or(c.Limits.DeliveryLog, string(records.Failures))), Most: c.Most, Rate: subscription.NewRate(c.Rate(quota.RegistrationRate)), Limited: c.Metrics.LimitReached, Log: c.Log,
		Backends: func(ctx context.Context, workspace string) (list []admin.Backend, err error) {
			conf, err := c.Config.Config(ctx)
			if err != nil || conf == nil {
				return nil, err
			}
			for _, b := range conf.Backends {
				if b.Workspace == workspace {
					list = append(list, admin.Backend{Name: b.Name, URL: withoutSecrets(b.URL), Prefix: b.Prefix})
				}
			}
			return list, nil
		},
	}
}

// Operators serves the admin API and the console that uses it, and all else by rest. It stands before a mux, which would
// redirect from the name of a switch.
func Operators(c *app.Core, mode auth.Mode, api *admin.Handler, rest http.Handler) http.Handler {
	page := newConsole(c, mode)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch at := r.URL.Path; {
		case strings.HasPrefix(at, admin.Prefix):
			api.ServeHTTP(w, r)
		case strings.HasPrefix(at, console.Prefix):
			page.ServeHTTP(w, r)
		case at == strings.TrimSuffix(console.Prefix, "/"):
			http.Redirect(w, r, console.Prefix, http.StatusPermanentRedirect)
		default:
			rest.ServeHTTP(w, r)
		}
	})
}

func newConsole(c *app.Core, mode auth.Mode) *console.Handler {
	o := console.Options{Auth: mode}
	if server, ok := c.Auth.(interface {
		Endpoints(context.Context) (authorize, token string, err error)
	}); ok && c.Limits.ConsoleClientID != "" {
		o.Client = &console.Client{
			Issuer: c.Limits.JWTIssuers[0], ID: c.Limits.ConsoleClientID, Scopes: c.Limits.ConsoleScopes,
			Resource: c.Limits.JWTAudience[0], Endpoints: server.Endpoints,
		}
	}
	return console.New(o, c.Log)
}

// Operations are what operators and owners do to deliveries.
func Operations(c *app.Core) *deadletter.Operations {
	o := deadletter.NewOperations(c.DB, c.Queues, nil)
	o.Metrics = c.Metrics
	return o
}

// Replays are the jobs that deliver again what a selection has.
func Replays(c *app.Core, subs *subscription.Service, operations *deadletter.Operations) *deadletter.Replays {
	return deadletter.NewReplays(operations, subs, c.EventLog)
}

// Switches are what people pause. Alone is true where no other process attempts deliveries.
func Switches(c *app.Core, alone bool) *switches.Set {
	return &switches.Set{DB: c.DB, Queue: c.Queues, Alone: alone}
}

// Retry moves what is due to the slow lane.
func Retry(c *app.Core) *delivery.Retry {
	return &delivery.Retry{DB: c.DB, Queue: c.Queues, EventLog: c.EventLog, Log: c.Log}
}

// Expiry removes subscriptions that expired, and dead-letters what it cannot read.
func Expiry(c *app.Core, subs *subscription.Service) *subscription.Sweeper {
	return &subscription.Sweeper{Service: subs, DeadLetter: state.DeadLetterItem(c.DB, c.Queues, time.Now, c.Log)}
}

// withoutSecrets returns a backend's URL without its user information and query, which often hold keys.
func withoutSecrets(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
