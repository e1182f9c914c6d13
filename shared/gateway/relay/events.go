package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/demand/intake"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Events connects the relay to the event log, so that clients can subscribe to the events of backends.
type Events struct {
	// Intake publishes the events of backends. Its Demand knows the event URIs to which clients are subscribed, and has the clients'
	// tokens.
	intake.Intake
	// Hooks has the webhook subscriptions to event types that a backend delivers in no other way. Their events arrive at the publish
	// role, which is the part of the server that accepts events over HTTP, and not at the relay.
	Hooks demand.Hooks
	// Configured returns all backends of the configuration.
	Configured func(ctx context.Context) ([]api.Backend, error)
	// Changed is called after the relay has stored a changed list of event types.
	Changed func(ctx context.Context) error
	Agent   string // the name and version that backends see, e.g. "mcp-events/1.2"
}

// reconcile adapts the stored event types of the backends to the configuration. It
//
//   - removes the event types of backends that are no longer configured,
//   - updates the name prefix and the scopes of the other backends' event types, and
//   - adds an entry without event types for each backend whose event types depend on the caller.
func (e *Events) reconcile(ctx context.Context, db store.DB) error {
	if e == nil {
		return nil
	}
	configured, err := e.Configured(ctx)
	if err != nil {
		return err
	}
	had, err := catalog.BackendWorkspaces(ctx, db)
	if err != nil {
		return err
	}
	known := map[api.Place]catalog.BackendTypes{}
	for _, c := range configured {
		types := c.EventTypes()
		known[api.Place{Workspace: c.Workspace, Backend: c.Name}] = types
		if types.PerCaller && !slices.Contains(had, c.Workspace) {
			had = append(had, c.Workspace)
		}
	}
	for _, workspace := range had {
		err := e.replace(ctx, db, workspace, func(all map[string]catalog.BackendTypes) {
			for name, had := range all {
				next, ok := known[api.Place{Workspace: workspace, Backend: name}]
				if next.Types, next.Refused = had.Types, had.Refused; ok && next.PerCaller == had.PerCaller {
					all[name] = next
				} else {
					delete(all, name)
				}
			}
			for place, types := range known {
				if types.PerCaller && place.Workspace == workspace {
					all[place.Backend] = types
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Events) replace(ctx context.Context, db store.DB, workspace string, edit func(map[string]catalog.BackendTypes)) error {
	changed, err := catalog.ReplaceBackends(ctx, db, workspace, edit)
	if err != nil || !changed {
		return err
	}
	return e.Changed(ctx)
}

// receiver receives the events of one backend. It runs only while this relay holds the backend's lease in the store, so that no other
// process receives the same events.
type receiver struct {
	*Events
	relay   *Relay
	backend *follower
	client  *client.Client
	version spec.Version
	modes   map[string]string // the delivery mode of each event type, by the type's name at the backend
	limit   *rate.Limiter     // limits the events, see [eventRate]
	lines   *rate.Limiter     // limits the lines of streams, see [limitedStream]

	// perCaller is true if the backend acts for its callers. Then each caller's subscription has its own receiver. In that receiver,
	// types has the event types that the backend shows to this caller, by their names at the backend, and listed is when the relay read
	// them.
	perCaller bool
	types     map[string]*catalog.Entry
	listed    time.Time

	running map[string]*reception // by URI
	// The map refused has the wanted URIs that got no subscription, because the backend already has maxReceptions subscriptions. Each
	// value is the time at which the relay last stored this reason for the URI's clients.
	refused map[string]time.Time
	warned  bool // whether the log says that there is no URL for webhooks

	restarted map[string]time.Time // when webhook subscriptions were last restarted, by URI
}

const (
	maxReceptions = 500 // subscriptions at one backend, each of which may hold a connection
	// maxTypePages limits the pages of a backend's list of event types. maxTypes limits the total size of the types that the relay can
	// use, in bytes. maxListed limits the size of all listed types, because checking an unusable type takes time, too.
	maxTypePages = 20
	maxTypes     = 256 << 10
	maxListed    = 1 << 20
	// eventRate is how many events per second the relay accepts from a backend, and eventBurst is how many it accepts in one
	// instant. An event counts as one, plus one for each full KiB of its payload. At the limit, the relay stops reading the
	// backend's streams for a moment, so the backend has to wait.
	eventRate, eventBurst = 1000, 2000
)

// Reasons why the relay does not use an event type of a backend; see [upstream.Client.Dropped].
const (
	dropType  = "an event type that cannot be used"
	dropTypes = "too many event types"
)

// startEvents receives a backend's events in a goroutine while the relay has the backend's lease. The function stop ends the goroutine
// and waits for its end.
func (r *Relay) startEvents(l *lease, b *follower) (stop func()) {
	if r.Events == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(l.ctx)
	var running sync.WaitGroup
	running.Go(func() {
		select {
		case <-l.acquired:
			r.receiveEvents(ctx, b)
		case <-ctx.Done():
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

func (r *Relay) receiveEvents(ctx context.Context, b *follower) {
	least, most := r.pauses()
	for wait := least; ctx.Err() == nil; wait = min(2*wait, most) {
		began := time.Now()
		err := r.receiveOnce(ctx, b)
		if time.Since(began) > most {
			wait = least
		}
		if ctx.Err() == nil {
			r.log(b).WarnContext(ctx, "backend events interrupted", "error", err)
			_ = periodic.Sleep(ctx, spread(wait, most)) // fails only if ctx has ended, which the loop checks
		}
	}
}

// receiveOnce receives a backend's events until a failure that concerns all subscriptions at the backend.
func (r *Relay) receiveOnce(ctx context.Context, b *follower) error {
	of := b.EventTypes()
	e := &receiver{
		Events: r.Events, relay: r, backend: b, limit: rate.NewLimiter(eventRate, eventBurst), lines: rate.NewLimiter(lineRate, lineBurst),
		perCaller: of.PerCaller, running: map[string]*reception{}, refused: map[string]time.Time{}, restarted: map[string]time.Time{},
	}
	if of.PerCaller {
		defer e.end()
		return e.run(ctx, of)
	}
	info, err := b.Info(ctx)
	if err == nil && !info.Events {
		err = r.Events.replace(ctx, r.DB, b.Place().Workspace, func(all map[string]catalog.BackendTypes) { delete(all, b.Place().Backend) })
	}
	for err == nil && !info.Events {
		if err = periodic.Sleep(ctx, r.relist()); err == nil {
			info, err = b.Info(ctx)
		}
	}
	if err != nil {
		return err
	}
	e.version = info.Version
	e.client, err = client.Connect(ctx, placeholderURL, client.Options{
		HTTP: transport{b.Client(), e.lines, nil}.client(), Agent: r.Events.Agent, Revision: string(info.Version), Log: limitLog(r.log(b)),
	})
	if err != nil {
		return err
	}
	defer func() { _ = e.client.Close() }()
	defer e.end()
	return e.run(ctx, of)
}

// transport sends requests to a backend, with the backend's credentials, for package client, which receives the backend's events. Package
// client knows only placeholderURL, because it writes URLs to the log, and the backend's URL may contain a secret.
type transport struct {
	upstream *upstream.Client
	lines    *rate.Limiter // limits the lines of streams, see [limitedStream]
	refused  func(error)   // is called with the reason if the credentials are not accepted; may be nil
}

const placeholderURL = "http://backend/mcp"

func (t transport) client() *http.Client {
	c := *t.upstream.HTTP
	c.Transport = t
	return &c
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	to, err := url.Parse(t.upstream.URL)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the URL of the backend is not valid")
	}
	r = r.Clone(r.Context())
	r.URL, r.Host = to, ""
	if t.upstream.Credentials != nil {
		if err := t.upstream.Credentials(r.Context(), r.Header); err != nil {
			if t.refused != nil && (fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.Forbidden)) {
				t.refused(fault.New(fault.Unauthenticated, "%s", fault.Public(err)))
			}
			return nil, err
		}
	}
	through := t.upstream.HTTP.Transport
	if through == nil {
		through = http.DefaultTransport
	}
	resp, err := through.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		if t.upstream.Refused != nil {
			t.upstream.Refused(r.Header)
		}
		if t.refused != nil {
			t.refused(errRefused)
		}
	}
	if err == nil && strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		resp.Body = limitedStream{resp.Body, r.Context(), t.lines}
	}
	return resp, err
}

// run keeps the backend's event types up to date, and keeps a subscription open for each event URI that clients want.
func (e *receiver) run(ctx context.Context, of catalog.BackendTypes) error {
	tick, relist := time.NewTicker(wantedEvery), time.NewTicker(e.relay.relist())
	defer tick.Stop()
	defer relist.Stop()
	if e.perCaller {
		relist.Stop() // each subscription reads the list itself, with its caller's token
	} else if err := e.list(ctx, of); err != nil {
		return err
	}
	changes, outdated := rate.NewLimiter(changeRate, changeBurst), false
	for {
		changed := e.Demand.Changed()
		if err := e.adjust(ctx); err != nil {
			return err
		}
		notified := e.backend.typesChanged
		if outdated { // the relay already knows of a change, and reads the list again at a later tick
			notified = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
		case <-notified:
			outdated = true
		case <-relist.C:
			info, err := e.backend.Info(ctx)
			if err == nil && info.Version != e.version {
				return fault.New(fault.Unavailable, "the backend now speaks revision %s", info.Version)
			}
			outdated = true
		}
		if !outdated || !changes.Allow() {
			continue
		}
		outdated = false
		if err := e.list(ctx, of); err != nil && ctx.Err() == nil {
			e.relay.log(e.backend).WarnContext(ctx, "event types of backend not read", "error", err)
		}
	}
}

type listedType struct {
	catalog.BackendType
	Delivery []string `json:"delivery"`
}

// list reads the backend's list of event types. It stores a changed list or, if the types depend on the caller, keeps the list in memory.
func (e *receiver) list(ctx context.Context, of catalog.BackendTypes) error {
	others, err := e.otherPrefixes(ctx)
	if err != nil {
		return err
	}
	modes, types := map[string]string{}, map[string]*catalog.Entry{}
	params, size, listed := map[string]any{}, 0, 0
pages:
	for range maxTypePages {
		var page struct {
			Events []listedType `json:"events"`
			Next   string       `json:"nextCursor"`
		}
		if err := e.client.Call(ctx, spec.MethodEvents, params, &page); err != nil {
			return err
		}
		for _, t := range page.Events {
			text, _ := json.Marshal(t.BackendType) // cannot fail, because t was decoded from JSON
			if listed += len(text); listed > maxListed {
				e.backend.Client().Dropped(ctx, dropTypes)
				break pages
			}
			entry, err := e.check(of, t, others)
			if err != nil {
				e.backend.Client().Dropped(ctx, dropType)
				level := slog.LevelDebug
				if errors.Is(err, errNoURL) && !e.warned { // a warning, because the operator can set the URL, but only one
					level, e.warned = slog.LevelWarn, true
				}
				e.relay.log(e.backend).Log(ctx, level, "event type of backend not used", "name", t.Name, "reason", fault.Public(err))
				continue
			}
			if size += len(text); size > maxTypes || len(of.Types) == catalog.MaxBackendTypes {
				e.backend.Client().Dropped(ctx, dropTypes)
				break pages
			}
			modes[t.Name], types[t.Name] = e.chooseMode(t.Delivery), entry
			of.Types = append(of.Types, t.BackendType)
		}
		if page.Next == "" {
			break
		}
		params = map[string]any{"cursor": page.Next}
	}
	e.modes, e.listed = modes, time.Now()
	if e.perCaller {
		e.types = types
		return nil
	}
	place := e.backend.Place()
	return e.replace(ctx, e.relay.DB, place.Workspace, func(all map[string]catalog.BackendTypes) { all[place.Backend] = of })
}

func (e *receiver) otherPrefixes(ctx context.Context) (prefixes []string, err error) {
	place := e.backend.Place()
	configured, err := e.Configured(ctx)
	for _, c := range configured {
		if c.Workspace == place.Workspace && c.Name != place.Backend {
			prefixes = append(prefixes, c.Prefix)
		}
	}
	return prefixes, err
}

// check returns the form of an event type in the event catalog, or an error if the relay cannot use the type. As for tools, a name that
// begins with another backend's longer prefix belongs to that backend, so this backend must not use it.
func (e *receiver) check(of catalog.BackendTypes, t listedType, others []string) (*catalog.Entry, error) {
	for _, prefix := range others {
		if len(prefix) > len(of.Prefix) && strings.HasPrefix(of.Prefix+t.Name, prefix) {
			return nil, fault.New(fault.Conflict, "its name begins with %s, the prefix of another backend", prefix)
		}
	}
	entry, err := catalog.NewBackendEntry(e.backend.Place().Backend, of, t.BackendType)
	if err != nil {
		return nil, err
	}
	switch mode := e.chooseMode(t.Delivery); {
	case mode == client.ModeWebhook && e.Hooks.Base == "":
		return nil, errNoURL
	case mode == "":
		return nil, fault.New(fault.Unsupported, "it is delivered only in modes that the relay cannot use here: %.100q", t.Delivery)
	}
	return entry, entry.Check()
}

// chooseMode returns the best of the modes in which the backend delivers an event type, or "" if the relay cannot use any of them. For a
// backend that acts for its callers, it never chooses webhooks. These arrive at the publish role, which does not know the schemas that
// the backend shows to each caller.
func (e *receiver) chooseMode(delivery []string) string {
	switch {
	case slices.Contains(delivery, client.ModePush) && e.version.Stateless():
		return client.ModePush
	case slices.Contains(delivery, client.ModePoll):
		return client.ModePoll
	case slices.Contains(delivery, client.ModeWebhook) && !e.overStdio() && !e.perCaller:
		return client.ModeWebhook
	}
	return ""
}

// overStdio reports whether the backend is a command. Over stdio there is no authenticated caller to whom a webhook subscription could
// belong (SEP-3415, Webhook-Based Delivery).
func (e *receiver) overStdio() bool {
	return strings.HasPrefix(e.backend.Client().URL, api.CommandScheme+":")
}

// adjust starts and ends subscriptions at the backend, so that they match the events that clients want. It keeps at most maxReceptions
// subscriptions.
func (e *receiver) adjust(ctx context.Context) error {
	place := e.backend.Place()
	wanted, err := e.Demand.ListWanted(ctx, place.Workspace, place.Backend)
	if err != nil {
		return err
	}
	if err := e.restartHooks(ctx); err != nil {
		return err
	}
	for _, times := range []map[string]time.Time{e.refused, e.restarted} {
		maps.DeleteFunc(times, func(uri string, _ time.Time) bool { return wanted[uri] == nil })
	}
	possible := map[string][]string{}
	for uri, principals := range wanted {
		if (catalog.CallerOf(uri) != "") != e.perCaller {
			continue // since the client subscribed, the operator has changed whether the backend acts for its callers
		}
		if _, own, _, _ := catalog.ParseBackendURI(uri); e.perCaller || e.modes[own] != "" || e.running[uri] != nil {
			possible[uri] = principals
		}
	}
	if e.perCaller {
		e.backend.idle.Store(len(possible) == 0)
	}
	chosen := chooseSubscriptions(possible, func(uri string) bool { return e.running[uri] != nil }, maxReceptions)
	for uri, r := range e.running {
		if chosen[uri] {
			continue
		}
		r.stop()
		delete(e.running, uri)
		if err := e.endHook(ctx, uri); err != nil {
			return err
		}
		if wanted[uri] == nil {
			if err := e.Demand.Forget(ctx, place.Workspace, uri); err != nil {
				return err
			}
		}
	}
	for _, uri := range slices.Sorted(maps.Keys(possible)) {
		switch {
		case e.running[uri] != nil:
		case chosen[uri]:
			_, own, _, _ := catalog.ParseBackendURI(uri)
			e.running[uri] = e.start(ctx, uri, e.modes[own], false)
			delete(e.refused, uri)
		case time.Since(e.refused[uri]) > retryAfter:
			e.refused[uri] = time.Now()
			err := e.Demand.SetState(ctx, place.Workspace, uri, demand.State{Error: fmt.Sprintf("there are %d subscriptions at the backend already", maxReceptions)})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// end ends all subscriptions, and keeps their cursors, so that the next relay continues from them.
func (e *receiver) end() {
	for _, r := range e.running {
		r.cancel()
	}
	for _, r := range e.running {
		<-r.done
	}
}
