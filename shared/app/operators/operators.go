// Package operators has the constructor of the handler for the admin API and the console. It is separate from package webhooks, so that
// the binaries of functions without an admin API do not contain the API.
package operators

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/judge"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/console"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Options configure [NewHandler].
type Options struct {
	Mode          auth.Mode // how callers are authenticated, which determines how the console signs people in
	Subscriptions *subscription.Service
	Operations    *deadletter.Operations
	Replays       *deadletter.Replays
	Switches      *switches.Set
	// AddStates fills in the states of a workspace's backends, such as "ready". It is nil on AWS, where the function admin sends no
	// requests to backends. The states are empty then.
	AddStates func(ctx context.Context, workspace string, backends []admin.Backend)
	// SourceSecrets looks up the secret of a source, with which the API checks the signature of a request that an operator tries. It is
	// nil on AWS, because the function admin must not read secrets. The signature is not checked then.
	SourceSecrets func(context.Context, secret.Value) (string, error)
	// Closing is a channel that is closed when the server shuts down. The live streams of the admin API then end. Closing may be nil.
	Closing <-chan struct{}
	Rest    http.Handler
}

// NewHandler returns the handler for the admin API and the console. It passes all other requests to [Options.Rest]. It sends no webhooks
// itself: when an operator retries a delivery, the roles retry and dispatch send the webhook.
//
// The caller must not put the handler into a mux, because a mux redirects paths that contain "//". Paths of the API can contain it. For
// example, a switch that pauses the deliveries to a host has the host's URL in its name.
func NewHandler(c *app.Core, o Options) http.Handler {
	api, page := newAPI(c, o), newConsole(c, o.Mode)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch at := r.URL.Path; {
		case strings.HasPrefix(at, admin.Prefix):
			api.ServeHTTP(w, r)
		case strings.HasPrefix(at, console.Prefix):
			page.ServeHTTP(w, r)
		case at == strings.TrimSuffix(console.Prefix, "/"):
			http.Redirect(w, r, console.Prefix, http.StatusPermanentRedirect)
		case at == "/" && r.Method == http.MethodGet:
			http.Redirect(w, r, console.Prefix, http.StatusFound)
		default:
			o.Rest.ServeHTTP(w, r)
		}
	})
}

func newAPI(c *app.Core, o Options) *admin.Handler {
	lists, kept := app.NewLists(c), records.Keep(cmp.Or(c.Limits.DeliveryLog, string(records.Failures)))
	return admin.New(admin.Options{
		Auth: c.Auth, Guard: c.Guard, MetadataURL: c.ResourceMetadata, DB: c.DB, Subscriptions: o.Subscriptions, Lists: lists,
		Operations: o.Operations, Replays: o.Replays, Switches: o.Switches,
		Eraser: &erase.Eraser{
			DB: c.DB, Subscriptions: o.Subscriptions, Lists: lists, Operations: o.Operations, Replays: o.Replays, Trail: &audit.Trail{DB: c.DB},
			Backends: func(ctx context.Context, workspace string) (names []string, err error) {
				backends, err := c.Config.Backends(ctx)
				for _, b := range backends {
					if b.Workspace == workspace {
						names = append(names, b.Name)
					}
				}
				return names, err
			},
		},
		Events: c.EventLog, Catalogs: c.Catalogs, Sources: c.Config, SourceSecrets: o.SourceSecrets,
		Kept: kept, Quota: c.Quota,
		Explainer: &judge.Explainer{
			DB: c.DB, Lists: lists, Subscriptions: o.Subscriptions, Catalogs: c.Catalogs, Switches: o.Switches, Kept: kept,
			Review: app.NewReview(c),
		},
		Rate: subscription.NewRate(c.CallerQuota(quota.RegistrationRate)), Limited: c.Metrics.LimitReached, Closing: o.Closing, Log: c.Log,
		Backends: func(ctx context.Context, workspace string) ([]admin.Backend, error) {
			conf, err := c.Config.Config(ctx)
			if err != nil || conf == nil {
				return nil, err
			}
			types, err := c.Catalogs.Catalog(ctx, workspace)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return nil, err
			}
			var list []admin.Backend
			for _, b := range conf.Backends {
				if b.Workspace == workspace {
					list = append(list, admin.Backend{Name: b.Name, URL: withoutSecrets(b.URL), Prefix: b.Prefix, Rules: b.Rules(), Warnings: types.Warnings(b.Name)})
				}
			}
			if o.AddStates != nil {
				o.AddStates(ctx, workspace, list)
			}
			return list, nil
		},
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

// withoutSecrets returns a backend's URL without its user information and its query, because these often contain keys.
func withoutSecrets(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
