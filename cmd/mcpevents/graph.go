package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/descriptors"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/periodic"
	"github.com/mcp-events/mcpevents/shared/publish"
	"github.com/mcp-events/mcpevents/shared/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/stream/lease"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
	"github.com/mcp-events/mcpevents/shared/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/wiring"
	"github.com/mcp-events/mcpevents/shared/wiring/sending"
	"github.com/mcp-events/mcpevents/shared/wiring/tokens"
)

// Settings are what an embedded server is started with; the serve command fills
// them from its flags.
type Settings struct {
	Addr    string
	Data    string // a directory, or ":memory:"
	Catalog []byte
	// CatalogName names the file in error messages.
	CatalogName string
	// Workspaces have these catalogs; all others have the one above.
	Workspaces map[string]*catalog.Catalog
	Config     *config.Config
	Auth       auth.Mode
	// AllowBreaking lets changed catalogs end live subscriptions.
	AllowBreaking bool

	Limits config.Limits

	Log *slog.Logger
}

const (
	// attempts is how many first attempts are made at once.
	attempts = 256
	// attemptPatience is how long one may keep its place among them without an answer.
	attemptPatience = 2 * time.Second
	// slowAttempts is how many attempts the slow lane makes at once, each for itself.
	slowAttempts = 512
	// slowPerEndpoint is how many of them are for one endpoint.
	slowPerEndpoint = 8
	// pageWorkers is how many batches of pages are in hand at once: enough that those with
	// an endpoint that hangs leave room for the others.
	pageWorkers = 128
	// queueBytes bounds the bodies that a queue keeps in memory, and attemptBytes those of the
	// attempts under way; what is more waits in the file. With large payloads each is held
	// several times on its way.
	queueBytes   = 16 << 20
	attemptBytes = 32 << 20
	// savePositions is how often the jobs of every minute write where they are, so that a
	// server at rest syncs nothing.
	savePositions = time.Hour
	// maxReceives is how often a message may fail before it is a dead letter: days.
	maxReceives = 1000
)

// Embedded is a server in this process: the functions' packages over one SQLite
// file, with goroutines for workers.
type Embedded struct {
	URL string

	db       *sqlite.DB
	queues   *queuesqlite.Queues
	tails    *stream.Tails
	endpoint *mcp.Endpoint

	dispatcher *delivery.Dispatcher

	// What [Embedded.Reload] replaces: the backends, the keys, the catalog, those of
	// workspaces that have their own, and the configuration for who follows it.
	backends  *gateway.Gateway
	keys      *auth.Replaceable
	rest      *catalog.Static
	own       map[string]*catalog.Static
	announcer *announcer
	ender     *delivery.Ender
	config    *config.Replaceable

	conversation *conversation.Service

	server  *http.Server
	stop    context.CancelFunc
	workers sync.WaitGroup
	served  chan error
	log     *slog.Logger
}

// startEmbedded builds the graph and starts it. It returns when the server
// accepts requests.
func startEmbedded(ctx context.Context, s Settings) (_ *Embedded, err error) {
	if s.Log == nil {
		s.Log = slog.Default()
	}
	if err := auth.CheckListen(s.Addr, s.Auth); err != nil {
		return nil, err
	}
	cat, err := catalog.ParseFile(s.CatalogName, s.Catalog)
	if err != nil {
		return nil, err
	}
	callers, err := authenticate(s)
	if err != nil {
		return nil, err
	}
	path := s.Data
	if path != ":memory:" {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "make the data directory")
		}
		path = filepath.Join(path, "mcpevents.db")
		if err := checkDatabase(s.Data, path); err != nil {
			return nil, err
		}
	}
	var opened []func() // what is closed again, the last one first, if something after it fails
	defer func() {
		if err != nil {
			for _, undo := range slices.Backward(opened) {
				undo()
			}
		}
	}()
	db, err := sqlite.Open(path, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	opened = append(opened, func() { _ = db.Close() })
	secrets, err := loadSecrets(ctx, s.Data, db)
	if err != nil {
		return nil, err
	}
	queues, err := queuesqlite.Open(db.Engine(), queuesqlite.Options{Log: s.Log, MaxBytes: queueBytes})
	if err != nil {
		return nil, err
	}
	opened = append(opened, func() { _ = queues.Close() })

	e := &Embedded{db: db, queues: queues, log: s.Log, served: make(chan error, 1)}
	e.keys, e.rest, e.own = callers.keys, catalog.NewStatic(cat), map[string]*catalog.Static{}
	catalogs := catalog.Workspaces{Own: map[string]catalog.Source{}, Rest: e.rest}
	for workspace, own := range s.Workspaces {
		e.own[workspace] = catalog.NewStatic(own)
		catalogs.Own[workspace] = e.own[workspace]
	}
	log := &eventlog.Log{DB: db, Retention: s.Limits.LogRetention}
	cursors, err := eventlog.NewSealer(secrets.Cursor)
	if err != nil {
		return nil, err
	}
	e.tails = stream.New(log, db, cursors, stream.Options{})
	opened = append(opened, e.tails.Close)
	e.config = config.NewReplaceable(s.Config)
	if e.announcer, err = newAnnouncer(ctx, db, log, catalogs, e.config, e.tails); err != nil {
		return nil, err
	}

	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "listen")
	}
	listener = netutil.LimitListener(listener, descriptors.Accepted())
	opened = append(opened, func() { _ = listener.Close() })
	e.URL = "http://" + listener.Addr().String()

	guard := sending.Guard(s.Limits)
	guard.BlockedHosts = append(guard.BlockedHosts, listener.Addr().String())
	identity, err := secrets.identity(s.Limits.ServerIdentity)
	if err != nil {
		return nil, err
	}
	sender := webhook.NewSender(webhook.Options{Guard: guard, Identity: identity, ConnsPerHost: attempts, UserAgent: "mcp-events/" + version})
	opened = append(opened, sender.Close)
	sealer, err := webhook.NewSealer(secrets.Public)
	if err != nil {
		return nil, err
	}
	opener, err := webhook.NewOpener(secrets.Private)
	if err != nil {
		return nil, err
	}
	gate := &delivery.Gate{}
	subscriptions := &subscription.Service{
		SaveEvery: savePositions,
		DB:        db, Catalog: catalogs, Log: log, Sealer: cursors,
		Targets: targets.Targets{Sender: sender, Sealer: sealer},
		Replay:  &delivery.Replayer{Log: log, Queue: queues}, Watermark: &delivery.Watermark{DB: db},
		Options: wiring.Subscriptions(s.Limits), Ended: gate.Ended, Started: gate.Started,
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
	deliveries := sending.Deliveries(s.Limits, attempts, true)
	deliveries.Patience, deliveries.Aside, deliveries.Bytes = attemptPatience, 4*attempts, attemptBytes
	e.ender = sending.Ender(s.Limits, callers.Authenticator, db, queues, catalogs, subscriptions)
	e.ender.Log = s.Log
	if err := s.checkBreaking(ctx, e.ender, catalogs); err != nil {
		return nil, err
	}
	dispatcher := delivery.NewDispatcher(&delivery.Dispatcher{
		DB: db, Queue: queues, Subscriptions: subscriptions, Catalog: delivery.WebhookTypes{Source: catalogs},
		Poster: sender, Opener: opener, Ender: e.ender, Gate: gate, Options: deliveries, Log: s.Log,
	})
	e.dispatcher = dispatcher
	fanout := &delivery.Fanout{DB: db, Log: log, Catalog: catalogs, Queue: queues}
	subscriptions.SetAside = delivery.SetAside(db, queues, time.Now, s.Log)
	retry := &delivery.Retry{DB: db, Queue: queues, SaveEvery: savePositions, Log: s.Log}
	publisher := &publish.Service{Catalog: catalogs, Queue: queues, Rate: publish.NewRate(s.Limits.PublishRate)}
	inbox := &publish.Inbox{Service: publisher, Log: s.Log}
	origins := auth.NewGuard(s.Limits.AllowedOrigins, s.Limits.AllowedHosts, s.Log)

	e.backends, err = wiring.Gateway(gateway.Options{Backends: s.backends(), DB: db, Key: secrets.Cursor, Log: s.Log}, version)
	if err != nil {
		return nil, err
	}
	e.conversation, err = wiring.Conversation(s.Limits, conversation.Options{
		Source: e.config, DB: db, Key: secrets.Cursor, Backends: e.backends, Prepares: true,
		Catalogs: catalogs, Publisher: publish.OnBehalf{Service: publisher}, Log: s.Log,
	})
	if err != nil {
		return nil, err
	}
	opened = append(opened, func() { _ = e.conversation.Close(context.WithoutCancel(ctx)) })
	if err := s.checkConversation(ctx, e.conversation, catalogs.Catalog); err != nil {
		return nil, err
	}
	e.endpoint, err = mcp.New(mcp.Options{
		Server: mcp.Implementation{Name: "mcp-events", Version: version},
		Auth:   callers, Catalogs: catalogs, Lists: true, Log: log, Feeds: e.announcer, Sessions: db,
		Leases: lease.NewLocal(int(s.Limits.Streams)),
		Interest: func(ctx context.Context, workspace string, p subscription.Pattern) (eventlog.Interest, error) {
			return subscription.Interested(ctx, db, log, workspace, p)
		},
		Subscriptions: subscriptions, Registrar: subscriptions, Deregistrar: subscriptions,
		AnonymousWebhooks: s.Limits.AllowInsecureTargets, EventCodes: wiring.EventCodes(s.Limits),
		ResourceMetadata: callers.metadata, Gateway: e.backends, Conversation: e.conversation,
		AllowedOrigins: s.Limits.AllowedOrigins, AllowedHosts: s.Limits.AllowedHosts, MaxAge: s.Limits.StreamMaxAge, Heartbeat: s.Limits.Heartbeat,
		AnswerStreamAfter: wiring.AnswerStreamAfter(s.Limits), PollMin: s.Limits.PollMin, PollMax: s.Limits.PollMax, Logger: s.Log,
	})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("/mcp", e.endpoint)
	mux.Handle("/mcp/{"+mcp.PathWorkspace+"}", e.endpoint)
	mux.Handle("/events", &publish.Handler{
		Service: publisher, Auth: callers, Guard: origins, MetadataURL: callers.metadata, Log: s.Log,
	})
	consent := &conversation.Handler{
		Service: e.conversation, Auth: callers, Guard: origins, MetadataURL: callers.metadata, Log: s.Log,
	}
	mux.Handle("/consent", consent)
	mux.Handle("/consent/{"+conversation.PathProvider+"}", consent)
	if callers.mount != nil {
		callers.mount(mux)
	}
	mux.HandleFunc("GET /healthz", e.healthz)
	mux.HandleFunc("GET /.well-known/mcp-webhook-jwks.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		w.Header().Set("Cache-Control", "public, max-age=300")
		_, _ = w.Write(identity.JWKS())
	})
	e.server = &http.Server{
		Handler:           boundBodies(mux, bodyTime),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	e.work(ctx, queues, queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4, MaxReceives: maxReceives})
	e.work(ctx, queues, queue.Deliveries, dispatcher.Pages, queue.ConsumeOptions{
		Batch: 10, Concurrency: pageWorkers, Visibility: 2 * time.Minute, MaxReceives: maxReceives,
	})
	e.work(ctx, queues, queue.Slow, dispatcher.Singles, queue.ConsumeOptions{
		Batch: 1, Concurrency: slowAttempts, PerGroup: slowPerEndpoint, Visibility: 2 * time.Minute,
	})
	e.work(ctx, queues, queue.Inbox, inbox.Handle, queue.ConsumeOptions{Batch: 10, Concurrency: 2, MaxReceives: 5})
	e.workers.Go(func() {
		periodic.Every(ctx, time.Minute, s.Log, periodic.Job{Name: "due retries", Run: retry.Run},
			periodic.Job{Name: "expiry", Run: subscriptions.Sweep}, periodic.Job{Name: "audit", Run: e.ender.Audit})
	})
	relay := wiring.Relay(e.backends, log)
	e.workers.Go(func() { relay.Run(ctx) })
	go func() { e.served <- e.server.Serve(listener) }()
	return e, nil
}

// backends are those of the configuration file, if there is one.
func (s Settings) backends() []config.Backend {
	if s.Config == nil {
		return nil
	}
	return s.Config.Backends
}

// checkConversation reports what speaks against the configuration's section "conversation".
func (s Settings) checkConversation(ctx context.Context, c *conversation.Service, catalogs func(context.Context, string) (*catalog.Catalog, error)) error {
	if s.Config == nil {
		return nil
	}
	if err := c.Check(ctx, s.Config); err != nil {
		return err
	}
	events := s.Config.Conversation.Events
	if !events.Any() {
		return nil
	}
	cat, err := catalogs(ctx, events.Workspace)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "conversation: events: the catalog of workspace %s", events.Workspace)
	}
	return conversation.CheckCatalog(cat, events)
}

// callers authenticates, and with tokens tells clients where to get them.
type callers struct {
	auth.Authenticator
	metadata string
	mount    func(*http.ServeMux)
	keys     *auth.Replaceable // nil unless they are static keys
}

func authenticate(s Settings) (callers, error) {
	switch s.Auth {
	case auth.ModeNone:
		return callers{Authenticator: auth.None()}, nil
	case auth.ModeJWT:
		access, err := tokens.Authenticator(s.Limits, s.Log)
		if err != nil {
			return callers{}, err
		}
		return callers{Authenticator: access, metadata: access.MetadataURL(), mount: access.Mount}, nil
	}
	keys, err := staticKeys(s)
	if err != nil {
		return callers{}, err
	}
	replaceable := auth.NewReplaceable(keys)
	return callers{Authenticator: replaceable, keys: replaceable}, nil
}

func staticKeys(s Settings) (auth.Authenticator, error) {
	if s.Config == nil || len(s.Config.Keys) == 0 {
		return nil, fault.New(fault.Invalid, "--auth keys needs a --config file with keys")
	}
	return auth.Keys(s.Config.Keys, time.Now)
}

func (e *Embedded) work(ctx context.Context, c queue.Consumer, name queue.Name, h queue.Handler, o queue.ConsumeOptions) {
	e.workers.Go(func() {
		if err := c.Consume(ctx, name, h, o); err != nil && ctx.Err() == nil {
			e.log.Error("a worker stopped", "queue", name, "error", err)
		}
	})
}

// healthz answers whether the server can write what it accepts.
func (e *Embedded) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := e.db.Engine().Health(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"status": "unavailable", "reason": fault.Public(err)})
		return
	}
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
}

// Close drains: streams get their end, running deliveries finish, and nothing
// accepted is lost. When ctx ends first, running deliveries are cut off, which come again after the next start, and
// Close returns some seconds later at the latest.
func (e *Embedded) Close(ctx context.Context) error {
	err := errors.Join(e.endpoint.Close(ctx), e.server.Shutdown(ctx))
	if err != nil {
		_ = e.server.Close()
	}
	e.stop()
	done := make(chan struct{})
	go func() {
		e.workers.Wait()
		e.dispatcher.Wait(ctx)
		_ = e.conversation.Close(ctx) // that ctx ended is told below
		e.tails.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	// The queues end the contexts of what still runs and wait for it before the file is closed. Who is later still
	// gets an error from the closed file.
	err = errors.Join(err, e.queues.Close())
	select {
	case <-done:
	case <-time.After(time.Second):
	}
	return errors.Join(err, e.db.Close())
}
