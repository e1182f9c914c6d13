// Package admin is the operators' HTTP API, /admin/v1: what there is, what became of it, and the
// few things that a person does to it.
//
// It has handlers and no store: each asks the package that owns the concept. Package operations declares the operations and
// has the document of the API. An operator (scope events:operate) sees the whole workspace; an owner
// (events:subscribe) sees their own subscriptions and what was delivered to them, and what belongs to another
// looks like what does not exist. Every change is in the audit trail before it is made.
package admin

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
)

// Prefix is where the API is.
const Prefix = "/admin/v1/"

// Backend is one of the servers behind the gateway.
type Backend struct {
	Name   string `json:"name"`
	URL    string `json:"url"`
	Prefix string `json:"prefix"`
	// State is "ready" or "unreachable"; empty where only callers have credentials.
	State string `json:"state,omitempty"`
}

// Options are what the API is made of.
type Options struct {
	Auth  auth.Authenticator
	Guard auth.Guard
	// MetadataURL is the protected resource metadata (RFC 9728) that a 401 names; may be empty.
	MetadataURL   string
	DB            store.DB // for what is read directly: the audit trail, quotas, the records of deliveries and sources
	Subscriptions *subscription.Service
	Lists         *subscription.Lists
	Operations    *deadletter.Operations
	Replays       *deadletter.Replays
	Eraser        *erase.Eraser
	Switches      *switches.Set
	Events        *eventlog.Log
	Catalogs      catalog.Source
	// Kept is what the delivery log keeps.
	Kept     records.Keep
	Backends func(ctx context.Context, workspace string) ([]Backend, error)
	Sources  ingest.Sources
	// SourceSecrets looks up the secrets of sources, for requests that are tried; nil checks no signature.
	SourceSecrets func(context.Context, secret.Value) (string, error)
	// Rate limits the changes that each owner makes; nil does not. Operators are not limited.
	Rate *quota.Rate
	// Most is how much a principal may have of a quota of package config.
	Most func(name string) func(ctx context.Context, workspace, principal string) float64
	// Live is closed when live streams are to end.
	Live <-chan struct{}
	// Limited, if not nil, gets the name of each limit that a request met.
	Limited func(limit string)
	Log     *slog.Logger
}

// Handler serves the API: it authenticates, routes, and answers with what the handlers of a resource return. Make it with [New].
type Handler struct {
	auth     auth.Authenticator
	guard    auth.Guard
	answers  httpjson.Answers
	trail    *audit.Trail
	mux      *http.ServeMux
	rate     *quota.Rate
	switches map[string]endpoint // what the methods of one switch do
}

// New makes the API.
func New(o Options) *Handler {
	h := &Handler{
		auth: o.Auth, guard: o.Guard, trail: &audit.Trail{DB: o.DB}, mux: http.NewServeMux(), rate: o.Rate,
		answers: httpjson.Answers{Scope: auth.ScopeOperate, MetadataURL: o.MetadataURL, Log: o.Log, Problems: true, Limited: o.Limited},
	}
	serve := handlers(o)
	paths := map[string]map[string]endpoint{}
	for _, op := range operations.All {
		if paths[op.Path] == nil {
			paths[op.Path] = map[string]endpoint{}
		}
		paths[op.Path][op.Method] = endpoint{op, serve[op.ID]}
	}
	h.switches = paths[oneSwitch] // ServeHTTP finds it before the mux
	delete(paths, oneSwitch)
	for path, methods := range paths {
		h.mux.HandleFunc(Prefix+path, func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, methods) })
	}
	h.mux.HandleFunc(Prefix+"{rest...}", func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, nil) })
	return h
}

// endpoint is an operation and its handler.
type endpoint struct {
	operations.Operation
	serve func(c *call) (any, error)
}

// oneSwitch is the path of one switch, whose name has slashes.
const oneSwitch = "switches/{name}"

// handlers returns the handlers of all operations by their ids.
func handlers(o Options) map[string]func(*call) (any, error) {
	seen := visible{o.Subscriptions, o.Lists}
	subscriptions := &subscriptionHandlers{seen, o.Catalogs, o.Operations, o.Switches}
	deliveries := &deliveryHandler{seen, o.DB, o.Kept}
	letters := &letterHandlers{seen, o.Operations}
	switches := &switchHandlers{o.Switches, subscriptions, o.Catalogs}
	replays := &replayHandlers{seen, o.Replays}
	events := &eventHandlers{seen, o.DB, o.Events, o.Catalogs, o.Operations}
	principals := &principalHandler{o.Eraser}
	overview := &overviewHandler{o.Lists, o.Operations, o.Switches, o.DB, o.Kept, o.Most}
	backends := &backendHandler{o.Backends}
	sources := &sourceHandlers{o.Sources, o.SourceSecrets, o.DB, o.Kept, o.Catalogs}
	live := &liveHandler{events: events, auth: o.Auth, db: o.DB, ends: o.Live, log: o.Log}
	return map[string]func(*call) (any, error){
		"describe":           describe,
		"listSubscriptions":  subscriptions.list,
		"readSubscription":   show(subscriptions.named, viewOf),
		"endSubscription":    subscriptions.end,
		"pauseSubscription":  subscriptions.pause,
		"resumeSubscription": subscriptions.resume,
		"testSubscription":   subscriptions.test,
		"listDeliveriesOf":   deliveries.list,
		"listDeliveries":     deliveries.list,
		"listDeadLetters":    letters.list,
		"readDeadLetter":     show(letters.named, viewOfLetter),
		"retryDeadLetter":    letters.retry,
		"listSwitches":       switches.list,
		"readSwitch":         switches.read,
		"pause":              switches.put,
		"resume":             switches.remove,
		"replay":             replays.start,
		"readReplay":         show(replays.named, viewOfReplay),
		"cancelReplay":       replays.cancel,
		"listEvents":         events.list,
		"readEvent":          show(events.named, viewOfEvent),
		"deliverEvent":       events.deliver,
		"erasePrincipal":     principals.erase,
		"listAudit":          listAudit,
		"overview":           overview.show,
		"listBackends":       backends.list,
		"listEventTypes":     events.listTypes,
		"listSources":        sources.list,
		"readSource":         sources.read,
		"listOutcomes":       sources.outcomes,
		"trySource":          sources.try,
		"live":               live.stream,
	}
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The name of an origin's switch has two slashes, for which the mux would redirect.
	if name, ok := strings.CutPrefix(r.URL.Path, Prefix+"switches/"); ok {
		r.SetPathValue("name", name)
		h.answer(w, r, h.switches)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// call is one request of someone who may make it.
type call struct {
	*http.Request
	query
	who   auth.Principal
	trail *audit.Trail
	// operator is whether they may see all of the workspace.
	operator bool
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request, methods map[string]endpoint) {
	h.answers.Serve(w, r, http.StatusOK, func() (any, error) {
		guard := h.guard // a page of this very host, reached by TLS, is the console
		guard.Origins = append(slices.Clone(guard.Origins), "https://"+r.Host)
		if err := guard.Check(r); err != nil {
			return nil, err
		}
		who, err := h.auth.Authenticate(r.Context(), r.Header)
		if err != nil {
			return nil, err
		}
		c := &call{Request: r, who: who, trail: h.trail, operator: who.Has(auth.ScopeOperate)}
		if !c.operator && !who.Has(auth.ScopeSubscribe) {
			return nil, who.Require(auth.ScopeOperate)
		}
		if methods == nil {
			return nil, fault.New(fault.NotFound, "there is no such path in the admin API")
		}
		e, ok := methods[r.Method]
		if !ok {
			return nil, httpjson.NotAllowed(strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		}
		if !e.Owners && !c.operator {
			return nil, who.Require(auth.ScopeOperate)
		}
		if c.read(r, e.Query); c.err != nil {
			return nil, c.err
		}
		if r.Method != http.MethodGet && !c.operator {
			if err := h.rate.Take(r.Context(), who, 1, time.Now()); err != nil {
				return nil, err
			}
		}
		return e.serve(c)
	})
}

func describe(*call) (any, error) { return operations.Document(), nil }

// show answers with what something looks like, if it is found.
func show[T, V any](find func(*call) (*T, error), view func(T) V) func(*call) (any, error) {
	return func(c *call) (any, error) {
		v, err := find(c)
		if err != nil {
			return nil, err
		}
		return view(*v), nil
	}
}

// list is the answer to a list.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// listOf is a page of what items look like; key is that of the last one if there are more.
func listOf[T, V any](c *call, items []T, key string, view func(T) V) list[V] {
	views := make([]V, len(items))
	for i, item := range items {
		views[i] = view(item)
	}
	return list[V]{views, c.next(key)}
}

// cut is the page of a list that is whole in memory, after the item with that key, and the key of its last item if there are more.
// Where the item is no longer there, the list begins anew.
func cut[T any](all []T, key func(T) string, after string, limit int) (page []T, next string) {
	all = all[slices.IndexFunc(all, func(x T) bool { return key(x) == after })+1:]
	if len(all) <= limit {
		return all, ""
	}
	return all[:limit], key(all[limit-1])
}

// itself is the view of what is shown as it is.
func itself[T any](v T) T { return v }
