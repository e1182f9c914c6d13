package property

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/catalog/catalogtest"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
)

// caller is the principal of all clients.
var caller = auth.Principal{ID: "alice", Workspace: auth.DefaultWorkspace, Scopes: auth.Scopes()}

// setup describes a system.
type setup struct {
	// shared opens a store that does not order commits, for several instances; nil is a stand-alone server over a file.
	shared func(t *testing.T) store.DB
	// delay is how long writes to it take.
	delay     func() time.Duration
	instances int
	// skew is how far the clocks of instances are from the true time, either way.
	skew time.Duration
	// round is how often periodic jobs run.
	round  time.Duration
	limits func(*config.Limits)
	// attempts are the options of dispatch.
	attempts delivery.Options
}

// system is the product, with all of its processes.
type system struct {
	setup
	t         *testing.T
	endpoints *endpoints
	sealer    *eventlog.Sealer
	auth      auth.Authenticator
	base      store.DB // shared, if the store is
	queues    *queuesqlite.Queues
	dir       string
	lives     int

	mu        sync.RWMutex
	processes []*process
	catalog   *catalog.Catalog
}

// process is one stand-alone server, or one instance that plays all roles of a deployment.
type process struct {
	*line
	core       *app.Core
	db         *sqlite.DB // of a stand-alone server
	queues     *queuesqlite.Queues
	publisher  *publish.Service
	endpoint   *mcp.Endpoint
	tails      *stream.Tails
	dispatcher *delivery.Dispatcher
	operations *deadletter.Operations
	subs       *subscription.Service
	switches   *switches.Set
	catalogs   *catalog.Stored

	end     context.CancelFunc
	workers sync.WaitGroup
	// replaced is set before the database is copied for the next server. Requests that had begun may still write to the
	// old one, and a real crash would have ended them.
	replaced atomic.Bool
}

func newSystem(t *testing.T, s setup, cat *catalog.Catalog, at *endpoints) *system {
	t.Helper()
	sealer := expect.Value(eventlog.NewSealer(make([]byte, 32)))(t)
	hash := sha256.Sum256([]byte(key))
	keys, err := auth.NewStaticKeys([]auth.Key{{Principal: caller.ID, Scopes: caller.Scopes, SHA256: hex.EncodeToString(hash[:])}}, nil)
	expect.OK(t, err)
	sys := &system{setup: s, t: t, endpoints: at, sealer: sealer, auth: keys, catalog: cat, dir: memoryFolder(t)}
	if s.shared != nil {
		sys.base = s.shared(t)
		expect.OK(t, catalogtest.Store(t.Context(), sys.base, catalog.Shared, cat))
		e, err := engine.Open(engine.Memory, engine.Options{})
		expect.OK(t, err)
		sys.queues, err = queuesqlite.Open(e, queuesqlite.Options{Log: quiet})
		expect.OK(t, err)
		t.Cleanup(func() { _ = sys.queues.Close(); _ = e.Close() })
	}
	for i := range max(1, s.instances) {
		sys.processes = append(sys.processes, sys.start(i, ""))
	}
	return sys
}

var quiet = slog.New(slog.DiscardHandler)

// memoryFolder returns a folder for database files. A sync of a file in memory takes no time.
func memoryFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "mcpevents-property-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// start starts the process with a number. A stand-alone server takes over the database at path.
func (s *system) start(number int, path string) *process {
	skew := time.Duration(0)
	if s.shared != nil && number%3 != 0 {
		skew = s.skew
		if number%3 == 1 {
			skew = -s.skew
		}
	}
	now := func() time.Time { return time.Now().Add(skew) }
	p := &process{line: newLine(s.delay)}
	limits := config.DefaultLimits()
	limits.PublishRate, limits.RegistrationRate, limits.DeliveryLog = 0, 0, string(records.All)
	if s.limits != nil {
		s.limits(&limits)
	}
	p.core = &app.Core{Limits: limits, Log: quiet, Auth: s.auth}
	var queues *queuesqlite.Queues
	var gate *delivery.Gate
	if s.shared == nil {
		if path == "" {
			path = filepath.Join(s.dir, "life-0.db")
		}
		db, err := sqlite.Open(path, sqlite.Options{})
		expect.OK(s.t, err)
		p.db = db
		queues, err = queuesqlite.Open(db.Engine(), queuesqlite.Options{Log: quiet})
		expect.OK(s.t, err)
		p.queues = queues
		p.core.DB = watchedStore{lineStore{db, p.line}, db}
		p.core.Queues = forwardingSender{lineSender{queues, p.line}}
		gate = &delivery.Gate{}
		expect.OK(s.t, catalogtest.Store(context.Background(), db, catalog.Shared, s.catalog))
	} else {
		queues = s.queues
		p.core.DB = lineStore{s.base, p.line}
		p.core.Queues = lineSender{queues, p.line}
	}
	p.core.EventLog = &eventlog.Log{DB: p.core.DB, Retention: limits.LogRetention, Now: now}
	p.catalogs = catalog.NewStored(p.core.DB, time.Now, quiet, nil)
	p.core.Catalogs = p.catalogs

	var gates app.SubscriptionOptions
	if gate != nil {
		gates = app.SubscriptionOptions{Started: gate.Open, Ended: gate.Close}
	}
	p.subs = app.NewSubscriptions(p.core, gates)
	p.subs.Store.Now = now
	terminator := webhooks.NewTerminator(p.core, p.subs)
	terminator.Now = now
	p.switches = webhooks.NewSwitches(p.core, s.shared == nil)
	p.switches.Now = now
	p.dispatcher = webhooks.NewDispatcher(p.core, webhooks.DispatcherOptions{
		Subscriptions: p.subs, Terminator: terminator, Switches: p.switches, Sender: &poster{s.endpoints, p.line}, Opener: openSecrets{},
		Cursors: func(context.Context) (*eventlog.Sealer, error) { return s.sealer, nil }, Gate: gate,
		Options: s.attempts,
	})
	p.dispatcher.Now = now
	fanout := webhooks.NewFanout(p.core)
	fanout.Now = now
	p.publisher = app.NewPublishing(p.core, app.PublishingOptions{}).Service
	p.publisher.Now = now
	p.operations = webhooks.NewOperations(p.core)
	retry := &retry.Job{DB: p.core.DB, Queue: p.core.Queues, EventLog: p.core.EventLog, Now: now, Log: quiet}
	expiry := &subscription.Sweeper{Service: p.subs, DeadLetter: func(ctx context.Context, it *store.Item, reason error) error {
		return queue.DeadLetterItem(ctx, p.core.Queues, p.core.DB, it, reason, time.Now(), quiet)
	}}

	p.tails = stream.New(p.core.EventLog, p.core.DB, s.sealer)
	p.tails.Shares = p.catalogs.UsesShared
	var err error
	p.endpoint, err = app.NewStreamEndpoint(p.core, app.StreamOptions{
		Feeds: p.tails, Leases: app.NewLocalLeases(p.core), Deregistrar: p.subs,
		Registrar: webhooks.NewRegistrar(p.core, webhooks.RegistrarOptions{Subscriptions: p.subs, Targets: openSecrets{}, Cursors: s.sealer}),
	})
	expect.OK(s.t, err)

	ctx, end := context.WithCancel(context.Background())
	p.end = end
	p.workers.Go(func() { // a killed process ends immediately
		select {
		case <-p.dead:
			end()
		case <-ctx.Done():
		}
	})
	consume := func(name queue.Name, h queue.Handler, o queue.ConsumeOptions) {
		p.workers.Go(func() { _ = queues.Consume(ctx, name, h, o) })
	}
	if s.shared == nil { // as package standalone
		consume(queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4, MaxReceives: 1000})
		consume(queue.Deliveries, p.dispatcher.HandlePages, queue.ConsumeOptions{Batch: 10, Concurrency: 16, Visibility: 2 * time.Minute, MaxReceives: 1000})
		consume(queue.Slow, p.dispatcher.HandleSingles, queue.ConsumeOptions{Batch: 1, Concurrency: 32, PerGroup: 8, Visibility: 2 * time.Minute})
	} else { // as the event source mappings
		consume(queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 10, Concurrency: 4, MaxReceives: 1000})
		consume(queue.Deliveries, p.dispatcher.HandlePages, queue.ConsumeOptions{Batch: 10, Concurrency: 8, Visibility: 2 * time.Minute, MaxReceives: 1000})
		consume(queue.Slow, p.dispatcher.HandleSingles, queue.ConsumeOptions{Batch: 1, Concurrency: 16, Visibility: 2 * time.Minute})
	}
	consume(queue.Dead, p.operations.FileMessages, queue.ConsumeOptions{})
	p.workers.Go(func() {
		periodic.Every(ctx, s.round, quiet, periodic.Job{Name: "retries", Run: retry.Run}, periodic.Job{Name: "requeue", Run: p.switches.Requeue},
			periodic.Job{Name: "expiry", Run: expiry.Sweep})
	})
	return p
}

// pick returns a live process, or nil.
func (s *system) pick(random func(int) int) *process {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.processes[random(len(s.processes))]
	if p.isDead() {
		return nil
	}
	return p
}

// replace kills a process and starts another one in its place. It returns when that serves.
func (s *system) replace(number int) {
	s.mu.RLock()
	old := s.processes[number]
	s.mu.RUnlock()
	old.kill()
	old.replaced.Store(true)
	path := ""
	if old.db != nil { // a killed server leaves the commits that it had made
		s.lives++
		path = filepath.Join(s.dir, fmt.Sprintf("life-%d.db", s.lives))
		expect.OK(s.t, engine.Copy(context.Background(), filepath.Join(s.dir, fmt.Sprintf("life-%d.db", s.lives-1)), path, func(int64) {}))
	}
	s.stop(old)
	fresh := s.start(number, path)
	s.mu.Lock()
	s.processes[number] = fresh
	s.mu.Unlock()
}

// replaceDead replaces the processes that died of a planned fault.
func (s *system) replaceDead() (n int) {
	s.mu.RLock()
	processes := append([]*process(nil), s.processes...)
	s.mu.RUnlock()
	for i, p := range processes {
		if p.isDead() {
			s.replace(i)
			n++
		}
	}
	return n
}

// stop ends the rest of a killed process.
func (s *system) stop(p *process) {
	p.end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = p.endpoint.Close(ctx)
	p.workers.Wait()
	p.dispatcher.Wait(ctx)
	p.tails.Close()
	if p.db != nil {
		_ = p.queues.Close()
		_ = p.db.Close()
	}
}

// close ends the system and waits until all of its goroutines have ended.
func (s *system) close() {
	for _, p := range s.processes {
		p.kill()
		s.stop(p)
	}
	if s.base != nil {
		_ = s.base.Close()
	}
}

// apply changes the catalog, and announces that as the product does.
func (s *system) apply(ctx context.Context, cat *catalog.Catalog) error {
	s.mu.Lock()
	s.catalog = cat
	p := s.processes[0]
	s.mu.Unlock()
	if err := catalogtest.Store(ctx, p.core.DB, catalog.Shared, cat); err != nil {
		return err
	}
	announce := stream.AnnounceStored(p.core.EventLog)
	if s.shared == nil {
		p.catalogs.Invalidate()
		return settings.Announce(ctx, p.core.DB, 0, announce)
	}
	return settings.Announce(ctx, p.core.DB, settings.MaxAge, announce)
}

// poster sends webhooks to the made-up endpoints.
type poster struct {
	endpoints *endpoints
	line      *line
}

func (p *poster) Send(ctx context.Context, r webhook.Request) webhook.Outcome {
	if p.line.isDead() {
		return webhook.Outcome{Category: webhook.Aborted, Err: errDead}
	}
	out := p.endpoints.answer(r)
	took := min(out.Took, r.Timeout)
	if out.Took > r.Timeout {
		out = webhook.Outcome{Category: webhook.Timeout, Took: r.Timeout}
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return webhook.Outcome{Category: webhook.Aborted, Err: ctx.Err()}
	case <-p.line.dead:
		return webhook.Outcome{Category: webhook.Aborted, Err: errDead}
	}
	return out
}

// openSecrets takes any URL and any secret, and seals nothing.
type openSecrets struct{}

func (openSecrets) Open(_ context.Context, sealed []byte, _ webhook.Binding) ([]byte, error) {
	return sealed, nil
}
func (openSecrets) Check(string) error                                   { return nil }
func (openSecrets) Verify(context.Context, string, string, []byte) error { return nil }
func (openSecrets) ParseSecret(s string) ([]byte, error)                 { return []byte(s), nil }

func (openSecrets) NewSecret(subscription.SecretType) (string, []byte) {
	return "secret", []byte("secret")
}

func (openSecrets) Seal(_ context.Context, key []byte, _ subscription.Binding) ([]byte, error) {
	return key, nil
}
