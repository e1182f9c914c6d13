// Package admin is the HTTP API for operators, at /admin/v1. It shows subscriptions, deliveries, events and settings. With it, people
// pause and resume deliveries, retry and replay them, and erase the data of principals.
//
// Package operations declares the operations of the API and has its OpenAPI document. [readRequest] checks the parameters of a request
// before a handler is called. An operator (scope events:operate) sees the whole workspace. An owner (scope events:subscribe) sees only
// their own subscriptions and deliveries. Before a handler changes something, it writes the change to the audit trail.
package admin

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/judge"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Prefix is the path of the API.
const Prefix = "/admin/v1/"

// Backend is a server behind the gateway.
type Backend struct {
	Name   string `json:"name"`
	URL    string `json:"url"`
	Prefix string `json:"prefix"`
	// State is "ready" or "unreachable". For a backend that is a command on this machine, it is "resting" while the command is not
	// running. It is empty if the server cannot check the backend, for example because only callers have credentials for it.
	State string `json:"state,omitempty"`
	// Rules has the configured access rules by the kind of entries that they apply to, for example "tools".
	Rules map[string]rules.Rules `json:"rules,omitempty"`
	// Warnings explain why some event types of the backend are not listed.
	Warnings []string `json:"warnings,omitempty"`
}

// Options configure a [Handler].
type Options struct {
	Auth          auth.Authenticator
	Guard         auth.Guard
	MetadataURL   string
	DB            store.DB
	Subscriptions *subscription.Service
	Lists         *subscription.Lists
	Operations    *deadletter.Operations
	Replays       *deadletter.Replays
	Eraser        *erase.Eraser
	Switches      *switches.Set
	Events        *eventlog.Log
	Catalogs      catalog.Source
	Kept          records.Keep
	Explainer     *judge.Explainer
	Backends      func(ctx context.Context, workspace string) ([]Backend, error)
	Sources       ingest.Sources
	// SourceSecrets looks up the secret of a source. The API needs the secret if an operator tries the source with a saved request. If
	// SourceSecrets is nil, such a trial does not check the request's signature.
	SourceSecrets func(context.Context, secret.Value) (string, error)
	// Rate limits how many changes each owner may make per second. Operators are not limited. If Rate is nil, nothing limits the owners.
	Rate  *quota.Rate
	Quota func(name string) func(ctx context.Context, workspace, principal string) float64
	// Closing is a channel that is closed when the server shuts down. The live streams then end. Closing may be nil.
	Closing <-chan struct{}
	// Limited is called with the name of a limit whenever a request exceeds that limit. It may be nil.
	Limited func(limit string)
	Log     *slog.Logger
}

// Handler serves the API. Use [New] to create one.
type Handler struct {
	auth      auth.Authenticator
	guard     auth.Guard
	responder httpjson.Responder
	trail     *audit.Trail
	mux       *http.ServeMux
	rate      *quota.Rate
	slashed   map[string]map[string]endpoint // by the path before the name, and by method; for names with slashes
}

// New returns the handler of the API.
func New(o Options) *Handler {
	h := &Handler{
		auth: o.Auth, guard: o.Guard, trail: &audit.Trail{DB: o.DB}, mux: http.NewServeMux(), rate: o.Rate,
		responder: httpjson.Responder{Scope: auth.ScopeOperate, MetadataURL: o.MetadataURL, Log: o.Log, Problems: true, Limited: o.Limited},
	}
	serve := handlers(o)
	paths := map[string]map[string]endpoint{}
	for _, op := range operations.All {
		if paths[op.Path] == nil {
			paths[op.Path] = map[string]endpoint{}
		}
		paths[op.Path][op.Method] = endpoint{Operation: op, serve: serve[op.ID]}
	}
	h.slashed = map[string]map[string]endpoint{}
	for _, path := range []string{oneSwitch, oneNote} {
		before, _, _ := strings.Cut(path, "{")
		h.slashed[Prefix+before] = paths[path]
		delete(paths, path)
	}
	for path, methods := range paths {
		h.mux.HandleFunc(Prefix+path, func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, methods) })
	}
	h.mux.HandleFunc(Prefix+"{rest...}", func(w http.ResponseWriter, r *http.Request) { h.answer(w, r, nil) })
	return h
}

type endpoint struct {
	operations.Operation
	serve func(c *call) (any, error)
}

// The mux redirects paths that contain "//". Names of switches and origins may contain it, so ServeHTTP handles the paths of switches and
// notes before it calls the mux.
const (
	oneSwitch = "switches/{name}"
	oneNote   = "notes/{origin}"
)

func handlers(o Options) map[string]func(*call) (any, error) {
	seen := visible{subscriptions: o.Subscriptions, lists: o.Lists}
	subscriptions := &subscriptionHandlers{visible: seen, catalogs: o.Catalogs, operations: o.Operations, switches: o.Switches}
	attempts := &attemptHandler{visible: seen, db: o.DB, kept: o.Kept}
	letters := &letterHandlers{visible: seen, operations: o.Operations}
	switches := &switchHandlers{switches: o.Switches, subscriptions: subscriptions, catalogs: o.Catalogs}
	notes := &noteHandlers{switches: o.Switches}
	replays := &replayHandlers{visible: seen, replays: o.Replays}
	events := &eventHandlers{visible: seen, db: o.DB, log: o.Events, catalogs: o.Catalogs, operations: o.Operations}
	eventOutcomes := &eventOutcomeHandler{events: events, explainer: o.Explainer, kept: o.Kept}
	principals := &principalHandler{eraser: o.Eraser}
	overview := &overviewHandler{lists: o.Lists, operations: o.Operations, switches: o.Switches, db: o.DB, kept: o.Kept, quota: o.Quota}
	backends := &backendHandler{backends: o.Backends}
	sources := &sourceHandlers{sources: o.Sources, secrets: o.SourceSecrets, db: o.DB, kept: o.Kept, catalogs: o.Catalogs}
	live := &liveHandler{events: events, auth: o.Auth, db: o.DB, closing: o.Closing, log: o.Log}
	return map[string]func(*call) (any, error){
		"describe":           describe,
		"listSubscriptions":  subscriptions.list,
		"readSubscription":   subscriptions.read,
		"endSubscription":    subscriptions.end,
		"pauseSubscription":  subscriptions.pause,
		"resumeSubscription": subscriptions.resume,
		"testSubscription":   subscriptions.test,
		"listDeliveriesOf":   attempts.list,
		"listDeliveries":     attempts.list,
		"listDeadLetters":    letters.list,
		"readDeadLetter":     letters.read,
		"retryDeadLetter":    letters.retry,
		"listSwitches":       switches.list,
		"readSwitch":         switches.read,
		"pause":              switches.put,
		"resume":             switches.remove,
		"listNotes":          notes.list,
		"writeNote":          notes.put,
		"removeNote":         notes.remove,
		"replay":             replays.start,
		"readReplay":         show(replays.find, viewOfReplay),
		"cancelReplay":       replays.cancel,
		"listEvents":         events.list,
		"readEvent":          show(events.find, viewOfEvent),
		"deliverEvent":       events.deliver,
		"listEventOutcomes":  eventOutcomes.list,
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

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for before, methods := range h.slashed {
		if name, ok := strings.CutPrefix(r.URL.Path, before); ok {
			r.SetPathValue("name", name)
			h.answer(w, r, methods)
			return
		}
	}
	h.mux.ServeHTTP(w, r)
}

// call is a request that its caller is allowed to make.
type call struct {
	*http.Request
	request
	principal auth.Principal
	trail     *audit.Trail
	// operator is true if the caller may see the whole workspace.
	operator bool
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request, methods map[string]endpoint) {
	h.responder.Serve(w, r, http.StatusOK, func() (any, error) {
		guard := h.guard // also allow the console's own origin, which is https://HOST
		guard.Origins = append(slices.Clone(guard.Origins), "https://"+r.Host)
		if err := guard.Check(r); err != nil {
			return nil, err
		}
		principal, err := h.auth.Authenticate(r.Context(), r.Header)
		if err != nil {
			return nil, err
		}
		c := &call{Request: r, principal: principal, trail: h.trail, operator: principal.Has(auth.ScopeOperate)}
		if !c.operator && !principal.Has(auth.ScopeSubscribe) {
			return nil, principal.Require(auth.ScopeOperate)
		}
		if methods == nil {
			return nil, fault.New(fault.NotFound, "there is no such path in the admin API")
		}
		e, ok := methods[r.Method]
		if !ok {
			return nil, httpjson.NotAllowed(strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		}
		if !e.Owners && !c.operator {
			return nil, principal.Require(auth.ScopeOperate)
		}
		if c.request, err = readRequest(r, e.Query); err != nil {
			return nil, err
		}
		if r.Method != http.MethodGet && !c.operator {
			if err := h.rate.Take(r.Context(), principal, 1, time.Now()); err != nil {
				return nil, err
			}
		}
		return e.serve(c)
	})
}

func describe(*call) (any, error) { return operations.Document(), nil }

// show returns a handler for a request that asks for one object. The handler gets the object from the function find. It responds with the
// result of the function view, which converts the object to the form in which the API shows it.
func show[T, V any](find func(*call) (*T, error), view func(T) V) func(*call) (any, error) {
	return func(c *call) (any, error) {
		v, err := find(c)
		if err != nil {
			return nil, err
		}
		return view(*v), nil
	}
}

type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// newList returns a page with the items. The function view converts each item to the form in which the API shows it. The parameter
// next is the key of the last item if there are more items, and otherwise empty.
func newList[T, V any](c *call, items []T, next string, view func(T) V) list[V] {
	views := make([]V, len(items))
	for i, item := range items {
		views[i] = view(item)
	}
	return list[V]{Items: views, Next: c.cursorAfter(next)}
}

// cutPage returns a page of an in-memory list. The page begins after the item whose key equals the parameter after. If no item has
// this key any more, cutPage returns the first page. next is the key of the page's last item, or empty if no items follow.
func cutPage[T any](all []T, key func(T) string, after string, limit int) (page []T, next string) {
	all = all[slices.IndexFunc(all, func(x T) bool { return key(x) == after })+1:]
	if len(all) <= limit {
		return all, ""
	}
	return all[:limit], key(all[limit-1])
}

// asIs returns its argument. Lists use it as the view of items that are shown unchanged.
func asIs[T any](v T) T { return v }

// change makes a change by calling the function do. Before that, it writes an entry to the audit trail. The parameters before and after
// are the object's states before and after the change. A state is nil if the object does not exist at that time.
func (c *call) change(action, target string, before, after any, do func() error) error {
	via := "api"
	if c.Header.Get("Sec-Fetch-Site") == "same-origin" { // only browsers can set this header
		via = "console"
	}
	was, err := json.Marshal(before)
	is, err2 := json.Marshal(after)
	if err := errors.Join(err, err2); err != nil {
		return fault.Wrap(fault.Internal, err, "encode an audit entry")
	}
	e := audit.Entry{By: c.principal.ID, Via: via, Action: action, Target: target, Before: was, After: is}
	return c.trail.Do(c.Context(), c.principal.Workspace, e, do)
}

func listAudit(c *call) (any, error) {
	entries, next, err := c.trail.List(c.Context(), c.principal.Workspace, c.Since, c.Until, c.After, c.Limit)
	if err != nil {
		return nil, err
	}
	return newList(c, entries, next, asIs), nil
}

// erasure is the response to a request that erases a principal's data, or that only counts the data (a dry run).
type erasure struct {
	Principal string         `json:"principal"`
	DryRun    bool           `json:"dryRun"`
	Counts    map[string]int `json:"counts"`
	// Complete says that there are no more items to erase. Otherwise the caller must repeat the request.
	Complete bool `json:"complete"`
}

type principalHandler struct{ eraser *erase.Eraser }

func (h *principalHandler) erase(c *call) (any, error) {
	out := erasure{Principal: c.PathValue("id"), DryRun: c.DryRun}
	if out.Principal == "" || len(out.Principal) > 500 {
		return nil, fault.New(fault.Invalid, "the principal is %.100q (allowed: 1 to 500 bytes)", out.Principal)
	}
	run := func() error {
		done, err := h.eraser.Erase(c.Context(), c.principal.Workspace, out.Principal, out.DryRun)
		out.Counts, out.Complete = done.Counts, done.Complete
		return err
	}
	if out.DryRun {
		err := run()
		return out, err
	}
	// Without authentication, all callers are the same anonymous principal. This principal may be erased.
	if out.Principal == c.principal.ID && !c.principal.Anonymous {
		return nil, fault.New(fault.Conflict, "operators cannot erase themselves; another operator has to do it")
	}
	err := c.change("principal.erase", erase.Pseudonym(c.principal.Workspace, out.Principal), nil, nil, run)
	return out, err
}
