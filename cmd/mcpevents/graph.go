package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"mcpevents/shared/auth"
	"mcpevents/shared/catalog"
	"mcpevents/shared/config"
	"mcpevents/shared/conversation"
	"mcpevents/shared/delivery"
	"mcpevents/shared/eventlog"
	"mcpevents/shared/fault"
	"mcpevents/shared/gateway"
	"mcpevents/shared/mcp"
	"mcpevents/shared/publish"
	"mcpevents/shared/queue"
	queuesqlite "mcpevents/shared/queue/sqlite"
	"mcpevents/shared/store/sqlite"
	"mcpevents/shared/stream"
	"mcpevents/shared/stream/lease"
	"mcpevents/shared/subscription"
	"mcpevents/shared/webhook"
	"mcpevents/shared/webhook/targets"
	"mcpevents/shared/wiring"
	"mcpevents/shared/wiring/sending"
	"mcpevents/shared/wiring/tokens"
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

	Limits config.Limits

	Log *slog.Logger
}

// attempts is how many webhooks are sent at once.
const attempts = 256

// attemptPatience is how long an attempt may keep its place among them without an answer.
const attemptPatience = 2 * time.Second

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
	}
	db, err := sqlite.Open(path, sqlite.Options{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = db.Close()
		}
	}()
	secrets, err := loadSecrets(s.Data)
	if err != nil {
		return nil, err
	}
	queues, err := queuesqlite.Open(db.Engine(), queuesqlite.Options{Log: s.Log})
	if err != nil {
		return nil, err
	}

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
	e.config = config.NewReplaceable(s.Config)
	if e.announcer, err = newAnnouncer(ctx, db, log, catalogs, e.config, e.tails); err != nil {
		return nil, err
	}

	listener, err := net.Listen("tcp", s.Addr)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "listen")
	}
	e.URL = "http://" + listener.Addr().String()

	guard := sending.Guard(s.Limits)
	guard.BlockedHosts = append(guard.BlockedHosts, listener.Addr().String())
	identity, err := secrets.identity(s.Limits.ServerIdentity)
	if err != nil {
		return nil, err
	}
	sender := webhook.NewSender(webhook.Options{Guard: guard, Identity: identity, ConnsPerHost: attempts, UserAgent: "mcp-events/" + version})
	defer func() {
		if err != nil {
			sender.Close()
		}
	}()
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
		DB: db, Catalog: catalogs, Log: log, Sealer: cursors,
		Targets: targets.Targets{Sender: sender, Sealer: sealer},
		Replay:  &delivery.Replayer{Log: log, Queue: queues},
		Options: wiring.Subscriptions(s.Limits), Ended: gate.Ended, Started: gate.Started,
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
	deliveries := sending.Deliveries(s.Limits, attempts, true)
	deliveries.Patience = attemptPatience
	e.ender = sending.Ender(s.Limits, callers.Authenticator, db, queues, catalogs, subscriptions)
	dispatcher := delivery.NewDispatcher(&delivery.Dispatcher{
		DB: db, Queue: queues, Subscriptions: subscriptions, Catalog: delivery.WebhookTypes{Source: catalogs},
		Poster: sender, Opener: opener, Ender: e.ender, Gate: gate, Options: deliveries, Log: s.Log,
	})
	e.dispatcher = dispatcher
	fanout := &delivery.Fanout{DB: db, Log: log, Catalog: catalogs, Queue: queues}
	retry := &delivery.Retry{DB: db, Queue: queues, Sweep: subscriptions.Sweep, Audit: e.ender.Audit}
	publisher := &publish.Service{Catalog: catalogs, Queue: queues, Rate: publish.NewRate(s.Limits.PublishRate)}
	inbox := &publish.Inbox{Service: publisher, Log: s.Log}
	origins := auth.Guard{Origins: s.Limits.AllowedOrigins}

	e.backends, err = wiring.Gateway(gateway.Options{Backends: s.backends(), DB: db, Key: secrets.Cursor, Log: s.Log}, version)
	if err != nil {
		return nil, err
	}
	e.conversation, err = wiring.Conversation(s.Limits, conversation.Options{
		Source: e.config, DB: db, Key: secrets.Cursor, Backends: e.backends, Prepares: true,
		Catalogs: catalogs, Publisher: publish.OnBehalf{Service: publisher}, Log: s.Log,
	})
	if err == nil {
		err = s.checkConversation(ctx, e.conversation, catalogs.Catalog)
	}
	if err != nil {
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
		AllowedOrigins: s.Limits.AllowedOrigins, MaxAge: s.Limits.StreamMaxAge, Heartbeat: s.Limits.Heartbeat,
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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
	})
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
	e.work(ctx, queues, queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4})
	e.work(ctx, queues, queue.Deliveries, dispatcher.Pages, queue.ConsumeOptions{Batch: 10, Concurrency: 32, Visibility: 2 * time.Minute})
	e.work(ctx, queues, queue.Slow, dispatcher.Singles, queue.ConsumeOptions{Batch: 10, Concurrency: 8, Visibility: 2 * time.Minute})
	e.work(ctx, queues, queue.Inbox, inbox.Handle, queue.ConsumeOptions{Batch: 10, Concurrency: 2, MaxReceives: 5})
	e.workers.Go(func() { e.retryEveryMinute(ctx, retry) })
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

func (e *Embedded) retryEveryMinute(ctx context.Context, r *delivery.Retry) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		if _, err := r.Run(ctx); err != nil && ctx.Err() == nil {
			e.log.Error("due deliveries were not moved", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close drains: streams get their end, running deliveries finish, and nothing
// accepted is lost. It returns at the latest when ctx ends.
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
	return errors.Join(err, e.queues.Close(), e.db.Close())
}
