package standalone

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/relays"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/events/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/gateway/stdio"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

func (s *Server) open(ctx context.Context, o Options) (keys secrets, err error) {
	if o.Auth == auth.ModeJWT {
		if s.tokens, err = app.NewTokenAuthenticator(o.Limits, o.Log); err != nil {
			return keys, err
		}
	}
	exported, counters, err := newMetrics(o.Metrics)
	if err != nil {
		return keys, fault.Wrap(fault.Internal, err, "make the metrics")
	}
	s.metrics = exported
	var tracer *trace.Tracer
	if o.Traces != nil {
		tracer = trace.New(o.Traces)
	}
	if o.SpansNotSent != nil {
		o.SpansNotSent.Set = counters
	}
	if keys, err = s.openStore(ctx, o, counters); err != nil {
		return keys, err
	}
	configs := config.NewStored(s.db, time.Now, o.Log, s.ownBackends()...)
	s.catalogs = catalog.NewStored(s.db, time.Now, o.Log, configs.EventTypes)
	authenticator, metadata := s.newAuthenticator(o.Auth, configs)
	s.core = &app.Core{
		DB: s.db, Queues: s.queues, Catalogs: s.catalogs, Config: configs,
		EventLog: &eventlog.Log{DB: s.db, Retention: o.Limits.LogRetention, Logger: o.Log}, Demand: demand.New(s.db),
		Limits: o.Limits, Log: o.Log, Metrics: counters, Tracer: tracer,
		Auth: authenticator, Guard: auth.NewGuard(o.Limits.AllowedOrigins, o.Limits.AllowedHosts, o.Log), ResourceMetadata: metadata,
	}
	return keys, nil
}

// newAuthenticator returns the authenticator for a mode of --auth. In the mode jwt, it also returns the URL at which callers learn how to
// get a token.
func (s *Server) newAuthenticator(mode auth.Mode, configs *config.Stored) (_ auth.Authenticator, metadataURL string) {
	switch mode {
	case auth.ModeKeys:
		return configs.Authenticator(), ""
	case auth.ModeJWT:
		return s.tokens, s.tokens.MetadataURL()
	}
	return auth.AcceptAll(), ""
}

// openStore opens the store and the queues, and reads or creates the keys.
func (s *Server) openStore(ctx context.Context, o Options, counters *metric.Set) (keys secrets, err error) {
	path := o.Data
	if path != ":memory:" {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return keys, fault.Wrap(fault.Invalid, err, "make the data directory")
		}
		path = filepath.Join(path, databaseName)
		if err := checkDatabase(o.Data, path); err != nil {
			return keys, err
		}
	}
	if s.db, err = sqlite.Open(path, sqlite.Options{Engine: engine.Options{Log: o.Log}}); err != nil {
		return keys, err
	}
	s.undo = append(s.undo, func() { _ = s.db.Close() })
	if keys, err = loadSecrets(ctx, o.Data, s.db); err != nil {
		return keys, err
	}
	s.queues, err = queuesqlite.Open(s.db.Engine(), queuesqlite.Options{
		Log: o.Log, MaxBytes: queueBytes, DeadLettered: func(q queue.Name, n int) { counters.DeadLettered(string(q), n) },
	})
	if err != nil {
		return keys, err
	}
	s.undo = append(s.undo, func() { _ = s.queues.Close() })
	return keys, nil
}

// roles holds the parts that are needed only to start the server. The method run starts their workers. The methods newRoutes and
// serveAdmin serve them over HTTP.
type roles struct {
	publishing    app.Publishing
	fanout        *fanout.Fanout
	subscriptions *subscription.Service
	operations    *deadletter.Operations
	switches      *switches.Set
	replays       *deadletter.Replays
	jobs          []periodic.Job
	relay         *relay.Relay
	mux           *http.ServeMux
}

// build creates all roles, each after the roles that it needs. Publishing needs the gateway, because the gateway counts the dropped
// events of backends. Conversations need publishing. The MCP endpoint needs all of them.
func (s *Server) build(ctx context.Context, keys secrets, listener net.Listener) (r roles, err error) {
	cursors, err := eventlog.NewSealer(keys.Cursor)
	if err != nil {
		return r, err
	}
	identity, err := keys.loadIdentity(s.core.Limits.ServerIdentity)
	if err != nil {
		return r, err
	}
	sending := webhooks.SenderOptions{Identity: identity, ConnsPerHost: 2 * s.attempts.first}
	if listener != nil {
		sending.OwnHost = listener.Addr().String()
	}
	sender := webhooks.NewSender(s.core, sending)
	s.undo = append(s.undo, sender.Close)
	key := func(context.Context) ([]byte, error) { return keys.Cursor, nil }
	s.core.Demand.Key = key
	if err := s.buildGateway(ctx, keys); err != nil {
		return r, err
	}
	r.publishing = app.NewPublishing(s.core, app.PublishingOptions{
		Secrets: secret.FromEnvironment, Key: key, Dropped: func(ctx context.Context, workspace, backend, reason string) {
			s.backends.CountDrop(ctx, api.Backend{Workspace: workspace, Name: backend}, reason)
		},
	})
	r.fanout = webhooks.NewFanout(s.core)
	s.publisher = r.publishing.Service
	if err := s.buildDelivery(&r, keys, cursors, sender); err != nil {
		return r, err
	}
	if err := s.buildEndpoint(ctx, r, keys, cursors, sender); err != nil {
		return r, err
	}
	r.relay = relays.New(s.core, s.backends, key, func(ctx context.Context) error {
		s.catalogs.Invalidate()
		return settings.Announce(ctx, s.db, 0, stream.AnnounceStored(s.core.EventLog))
	})
	r.mux = s.newRoutes(r.publishing, identity)
	return r, nil
}

func (s *Server) buildGateway(ctx context.Context, keys secrets) error {
	identity, err := app.Identity()
	if err != nil {
		return err
	}
	s.commands = &stdio.Transport{Source: s.core.Config.Backends, Secrets: secret.FromEnvironment, Server: identity, Log: s.core.Log}
	s.undo = append(s.undo, func() { s.commands.Close(context.WithoutCancel(ctx)) })
	s.backends, err = app.NewGateway(s.core, app.GatewayOptions{
		Key: keys.Cursor, HTTP: s.backendClient(), Commands: s.commands, LogDelay: callLogDelay, StreamLinger: streamLinger,
	})
	if err != nil {
		return err
	}
	s.commands.Dropped = s.backends.CountDrop
	return nil
}

// buildDelivery creates the dispatcher and the other parts that read or end subscriptions.
func (s *Server) buildDelivery(r *roles, keys secrets, cursors *eventlog.Sealer, sender *webhook.Sender) error {
	opener, err := webhook.NewOpener(keys.Private)
	if err != nil {
		return err
	}
	gate := &delivery.Gate{}
	r.subscriptions = app.NewSubscriptions(s.core, app.SubscriptionOptions{Started: gate.Open, Ended: gate.Close})
	s.terminator = webhooks.NewTerminator(s.core, r.subscriptions)
	r.switches, r.operations = webhooks.NewSwitches(s.core, true), webhooks.NewOperations(s.core)
	s.dispatcher = webhooks.NewDispatcher(s.core, webhooks.DispatcherOptions{
		Subscriptions: r.subscriptions, Terminator: s.terminator, Switches: r.switches, Sender: sender, Opener: opener,
		Cursors: func(context.Context) (*eventlog.Sealer, error) { return cursors, nil }, Gate: gate,
		Options: delivery.Options{
			Concurrency: s.attempts.first, Patience: attemptPatience, Detached: s.attempts.detached, Bytes: attemptBytes, LogDeliveries: true,
		},
	})
	r.replays = &deadletter.Replays{Subscriptions: r.subscriptions, Operations: r.operations, EventLog: s.core.EventLog, Ahead: replayEvery}
	r.jobs = webhooks.NewJobs(s.core, webhooks.JobOptions{
		Subscriptions: r.subscriptions, Terminator: s.terminator, Switches: r.switches, Operations: r.operations, SaveEvery: savePositions,
	})
	return nil
}

func (s *Server) buildEndpoint(ctx context.Context, r roles, keys secrets, cursors *eventlog.Sealer, sender *webhook.Sender) (err error) {
	sealer, err := webhook.NewSealer(keys.Public)
	if err != nil {
		return err
	}
	s.tails = stream.New(s.core.EventLog, s.db, cursors)
	s.tails.Shares, s.tails.Demand = s.catalogs.UsesShared, s.core.Demand
	s.undo = append(s.undo, s.tails.Close)
	s.conversation, err = app.NewConversation(s.core, conversation.Options{
		Key: keys.Cursor, Backends: s.backends, Publisher: publish.ServerPublisher{Service: s.publisher}, Prepares: true,
	})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, func() { _ = s.conversation.Close(context.WithoutCancel(ctx)) })
	s.endpoint, err = app.NewStreamEndpoint(s.core, app.StreamOptions{
		Feeds: s.tails, Leases: app.NewLocalLeases(s.core), Backends: s.backends, Conversation: s.conversation, Left: clientLeft,
		Registrar: webhooks.NewRegistrar(s.core, webhooks.RegistrarOptions{
			Subscriptions: r.subscriptions, Targets: targets.Targets{Sender: sender, Sealer: sealer}, Cursors: cursors,
		}),
		Deregistrar: r.subscriptions,
	})
	return err
}
