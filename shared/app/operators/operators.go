// Package operators has the constructors of the admin API and the console. It is separate from package webhooks, so that
// functions without an admin API do not contain its operations.
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
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/console"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
)

// Admin returns the options of the admin API. The API leaves attempts to dispatch and retry.
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

// Handler serves the admin API and the console, and passes other requests to rest. It is not part of a mux, because a mux
// would redirect requests for switches whose names contain a URL.
func Handler(c *app.Core, mode auth.Mode, api *admin.Handler, rest http.Handler) http.Handler {
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

// withoutSecrets returns a backend's URL without its user information and query, which often hold keys.
func withoutSecrets(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
