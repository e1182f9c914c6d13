//go:build unix

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/relays"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// fleetOptions choose how the instances run.
type fleetOptions struct {
	instances   int
	backends    []api.Backend
	principals  []principal
	callTimeout time.Duration
	dynamo      bool // use DynamoDB Local instead of SQLite in memory
	lease       time.Duration
	noRelay     bool // do not follow the backends
	// onFirst is called after the first instance has started and before the others start. It may be nil.
	onFirst func()
}

// principal is a caller with an API key.
type principal struct{ name, workspace string }

// fleet is a group of instances that share one store.
type fleet struct {
	harness.Target // the address in front of the instances
	ledger         *ledger
	instances      []*instance
	log            *logTail
	proxy          *httptest.Server
	toInstances    *http.Transport
	toDynamo       *http.Transport // unused with SQLite
	goroutines     int             // when the proxy was opened
}

// instance is the part of a fleet that would be one process in production.
type instance struct {
	*httptest.Server
	store     *access
	gateway   *gateway.Gateway
	endpoint  *mcp.Endpoint
	tails     *stream.Tails
	upstream  *http.Client
	endRelay  context.CancelFunc
	relayDone chan struct{}
}

const fleetCatalog = "events:\n  - {name: a.b, uri: \"event://a/b\", title: T, description: D, payloadSchema: {type: object}}\n"

// newFleet starts the instances. [fleet.open] opens their common address.
func newFleet(t testing.TB, o fleetOptions) *fleet {
	t.Helper()
	f := &fleet{log: &logTail{}, toDynamo: &http.Transport{MaxIdleConnsPerHost: 64}}
	f.ledger = newLedger(f.openStore(t, o.dynamo))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the instances' log:\n%s", f.lastLog(maxLogTail))
		}
	})
	f.Name, f.Keys = "fleet", map[string]string{}
	var keys []auth.Key
	for _, p := range o.principals {
		f.Keys[p.name] = "key-of-" + p.name
		keys = append(keys, auth.Key{
			Principal: p.name, Workspace: p.workspace, SHA256: harness.SHA256(f.Keys[p.name]),
			Scopes: []string{auth.ScopeRead, auth.ScopeSubscribe},
		})
	}
	allowed := expect.Value(auth.NewStaticKeys(keys, nil))(t)
	for n := range o.instances {
		if f.instances = append(f.instances, f.startInstance(t, o, allowed)); n == 0 && o.onFirst != nil {
			o.onFirst()
		}
	}
	return f
}

// openStore opens the store that the instances share.
func (f *fleet) openStore(t testing.TB, inDynamo bool) store.DB {
	if !inDynamo {
		db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	emulator := expect.Value(awslocal.StartAll(t.Context(), os.Stderr, awslocal.DynamoDB))(t)
	t.Cleanup(emulator.Close)
	client := dynamodb.NewFromConfig(awslocal.Config(emulator.DynamoDB), func(o *dynamodb.Options) {
		o.HTTPClient = &http.Client{Transport: f.toDynamo}
	})
	name := func(table store.Table) string { return fmt.Sprintf("fleet-%d-%s", os.Getpid(), table) }
	expect.OK(t, awslocal.CreateTables(t.Context(), client, name))
	return dynamo.New(client, name)
}

// startInstance starts an instance. It is wired like the programs, without the parts that the gateway does not use.
func (f *fleet) startInstance(t testing.TB, o fleetOptions, allowed auth.Authenticator) *instance {
	t.Helper()
	i := &instance{store: f.ledger.open(), upstream: upstream.NewHTTP(), relayDone: make(chan struct{})}
	cat := expect.Value(catalog.Parse([]byte(fleetCatalog)))(t)
	logger := slog.New(slog.NewTextHandler(f.log, nil))
	key := []byte("0123456789abcdef0123456789abcdef")
	sealer := expect.Value(eventlog.NewSealer(key))(t)
	events := &eventlog.Log{DB: i.store}
	i.tails = stream.New(events, i.store, sealer)
	i.gateway = expect.Value(gateway.New(gateway.Options{
		Backends: o.backends, DB: i.store, HTTP: i.upstream, Key: key, CallTimeout: o.callTimeout,
		Server: json.RawMessage(`{"name":"fleet","version":"1"}`), Log: logger,
	}))(t)
	i.endpoint = expect.Value(mcp.New(mcp.Options{
		Server: mcp.Implementation{Name: "fleet", Version: "1"}, Auth: allowed, Catalogs: catalog.NewStatic(cat),
		Feeds: i.tails, Sessions: i.store, Gateway: i.gateway,
		MaxAge: 5 * time.Minute, Heartbeat: 15 * time.Second, AnswerStreamAfter: time.Second,
		Leases: &lease.Shared{DB: i.store, Max: func(context.Context, auth.Principal) int { return 1000 }, Life: 5 * time.Minute}, Logger: logger,
	}))(t)
	relay := relays.New(&app.Core{DB: i.store, EventLog: events, Log: logger}, i.gateway, nil, nil)
	relay.Lease = o.lease
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	i.endRelay = end
	go func() {
		defer close(i.relayDone)
		if !o.noRelay {
			relay.Run(ctx)
		}
	}()
	i.Server = httptest.NewUnstartedServer(i.endpoint)
	i.Config.ErrorLog = log.New(f.log, "", 0)
	i.Start()
	t.Cleanup(i.close)
	return i
}

func (i *instance) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	i.endRelay()
	<-i.relayDone
	_ = i.endpoint.Close(ctx)
	i.CloseClientConnections()
	i.Server.Close()
	i.tails.Close()
	i.upstream.CloseIdleConnections()
}

// kill stops an instance as if its process were killed. Its connections are cut, and its entries in the store stay.
func (i *instance) kill() {
	i.store.cut.Store(true)
	i.endRelay()
	i.CloseClientConnections()
}

// open opens the common address, which forwards each request to a random instance that is still running.
func (f *fleet) open(t testing.TB) *harness.Target {
	f.goroutines = settledGoroutines()
	f.toInstances = &http.Transport{MaxIdleConnsPerHost: 64}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			to, _ := url.Parse(f.randomInstance().URL)
			r.SetURL(to)
		},
		Transport: f.toInstances, FlushInterval: -1, ErrorLog: log.New(f.log, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	f.proxy = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Read the whole request first, because a ReverseProxy that still reads it when the answer begins may lose both.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	f.proxy.Config.ErrorLog = log.New(f.log, "", 0)
	f.proxy.Start()
	f.MCP = f.proxy.URL + "/mcp"
	t.Cleanup(f.shut)
	return &f.Target
}

func (f *fleet) lastLog(limit int) string { return f.log.last(limit) }

func (f *fleet) sessionKeys(ctx context.Context, prefix string) ([]store.Key, error) {
	return f.ledger.sessionKeys(ctx, prefix)
}

func (f *fleet) storeRequests() string {
	reads, writes := int64(0), int64(0)
	for _, i := range f.instances {
		reads, writes = reads+i.store.reads.Load(), writes+i.store.writes.Load()
	}
	return fmt.Sprintf("%d store reads and %d store writes", reads, writes)
}

// idle compares the number of goroutines with the number before the load. It allows for a few more, because some
// end only after a while.
func (f *fleet) idle() (status string, ok bool) {
	now := settledGoroutines()
	return fmt.Sprintf("%d goroutines (%d before the load)", now, f.goroutines), now <= f.goroutines+8
}

// randomInstance returns one of the instances that have not been killed.
func (f *fleet) randomInstance() *instance {
	for {
		if i := f.instances[rand.IntN(len(f.instances))]; !i.store.cut.Load() {
			return i
		}
	}
}

// shut closes the common address and all idle connections behind it.
func (f *fleet) shut() {
	f.proxy.CloseClientConnections()
	f.proxy.Close()
	f.toInstances.CloseIdleConnections()
	f.toDynamo.CloseIdleConnections()
	for _, i := range f.instances {
		i.upstream.CloseIdleConnections()
	}
}

// target returns instance n as a target.
func (f *fleet) target(n int) *harness.Target {
	return &harness.Target{Name: fmt.Sprint("instance ", n), MCP: f.instances[n].URL + "/mcp", Keys: f.Keys}
}

// logTail is a writer that keeps the last bytes of a log.
type logTail struct {
	mu   sync.Mutex
	text []byte
}

const maxLogTail = 16 << 10

func (l *logTail) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text = append(l.text, line...); len(l.text) > 2*maxLogTail {
		l.text = append([]byte(nil), l.text[len(l.text)-maxLogTail:]...)
	}
	return len(line), nil
}

// last returns at most limit bytes from the end.
func (l *logTail) last(limit int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text[max(0, len(l.text)-limit):])
}

// settledGoroutines returns the lowest number of goroutines within a second.
func settledGoroutines() int {
	least := runtime.NumGoroutine()
	for range 20 {
		time.Sleep(50 * time.Millisecond)
		least = min(least, runtime.NumGoroutine())
	}
	return least
}

// functions is a stage on which the real Lambda functions serve the clients, on local AWS.
type functions struct {
	*harness.AWS
	t testing.TB
}

const functionsCatalog = fleetCatalog + "  - {name: a.c, uriTemplate: \"event://a/c/{d}\", title: T, description: D, payloadSchema: {type: object}}\n"

// endTime is the part of an invocation that is reserved for ending it. The call gets the rest.
const endTime = 9 * time.Second

// startFunctions starts the functions in front of the backends. A call takes at most bound. With managed, a process
// serves many requests concurrently, otherwise one at a time.
func startFunctions(t testing.TB, backends []api.Backend, bound time.Duration, managed bool) *functions {
	t.Helper()
	text := "backends:\n"
	for _, b := range backends {
		text += fmt.Sprintf("  - {name: %s, url: %q, prefix: %s, protocolVersion: %q}\n", b.Name, b.URL, b.Prefix, b.ProtocolVersion)
	}
	var callers []harness.Caller
	for _, p := range slices.Backward(soakers()) { // StartAWS checks with the first caller that the catalog is in use, so it must not be the stranger
		callers = append(callers, harness.Caller{
			Principal: p.name, Workspace: p.workspace, Scopes: []string{auth.ScopeRead, auth.ScopeSubscribe},
		})
	}
	o := harness.AWSOptions{Callers: callers, Config: text, Catalog: functionsCatalog, StreamTime: bound + endTime}
	if managed {
		o.Managed = runner.Managed{Instances: 2, AtOnce: 200}
	}
	f := &functions{AWS: harness.StartAWS(t, o), t: t}
	f.ApplyCatalog(t, "elsewhere", functionsCatalog)
	harness.Eventually(t, harness.Patience, "the stranger has a catalog", func() bool {
		list, err := f.Stateless("stranger").Try(t.Context(), "resources/list", nil)
		return err == nil && list.Error == nil
	})
	return f
}

func (f *functions) open(testing.TB) *harness.Target { return &f.Target }

func (f *functions) shut() {}

func (f *functions) lastLog(limit int) string { return f.Last(limit) }

func (f *functions) sessionKeys(ctx context.Context, prefix string) ([]store.Key, error) {
	return f.Sessions(ctx, f.t, prefix)
}

func (f *functions) storeRequests() string {
	var counts []string
	for operation, n := range f.Requests()["StreamFunction"]["DynamoDB"] {
		counts = append(counts, fmt.Sprintf("%d %s", n.Requests, operation))
	}
	invocations, failures, throttles, starts := f.Stats()
	if failures+throttles > 0 {
		f.t.Errorf("%d invocations failed and %d were throttled, want 0 of both", failures, throttles)
	}
	return fmt.Sprintf("%d invocations in %d processes; requests: %s", invocations, starts, strings.Join(counts, ", "))
}

// idle reports whether all processes are idle, so that no invocation waits for a client or a backend.
func (f *functions) idle() (status string, ok bool) {
	n := f.AtWork()
	return fmt.Sprintf("%d busy processes", n), n == 0
}
