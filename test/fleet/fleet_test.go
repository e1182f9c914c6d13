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
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/app"
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
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// fleetOptions choose how the instances run.
type fleetOptions struct {
	instances   int
	backends    []api.Backend
	principals  []principal
	callTimeout time.Duration
	dynamo      bool // the store is DynamoDB Local, else SQLite in memory
	lease       time.Duration
	alone       bool // nobody follows the backends
	// first is called when the first instance runs, before the others do; may be nil.
	first func()
}

// principal is somebody with a key.
type principal struct{ name, workspace string }

// fleet is instances over one store.
type fleet struct {
	harness.Target // the one address
	ledger         *ledger
	instances      []*instance
	said           *said
	front          *httptest.Server
	ways           *http.Transport // from the address to the instances
	before         int             // goroutines when it was opened
	storeWays      *http.Transport // to the store, if it is reached that way
}

// instance is one process's part of it.
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

// newFleet starts instances; their address is opened by [fleet.open].
func newFleet(t testing.TB, o fleetOptions) *fleet {
	t.Helper()
	f := &fleet{said: &said{}, storeWays: &http.Transport{MaxIdleConnsPerHost: 64}}
	f.ledger = newLedger(f.openStore(t, o.dynamo))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the instances said last:\n%s", f.last(saidMost))
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
	allowed, err := auth.Keys(keys, nil)
	must(t, err)
	for n := range o.instances {
		if f.instances = append(f.instances, f.instance(t, o, allowed)); n == 0 && o.first != nil {
			o.first()
		}
	}
	return f
}

// openStore is the one thing that the instances share.
func (f *fleet) openStore(t testing.TB, inDynamo bool) store.DB {
	if !inDynamo {
		db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
		must(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	emulator, err := awslocal.StartAll(t.Context(), os.Stderr, awslocal.DynamoDB)
	must(t, err)
	t.Cleanup(emulator.Close)
	client := dynamodb.NewFromConfig(awslocal.Config(emulator.DynamoDB), func(o *dynamodb.Options) {
		o.HTTPClient = &http.Client{Transport: f.storeWays}
	})
	name := func(table store.Table) string { return fmt.Sprintf("fleet-%d-%s", os.Getpid(), table) }
	must(t, awslocal.CreateTables(t.Context(), client, name))
	return dynamo.New(client, name)
}

// instance is wired as the programs are, but for what has nothing to do with the gateway.
func (f *fleet) instance(t testing.TB, o fleetOptions, allowed auth.Authenticator) *instance {
	t.Helper()
	i := &instance{store: f.ledger.open(), upstream: upstream.NewHTTP(), relayDone: make(chan struct{})}
	cat, err := catalog.Parse([]byte(fleetCatalog))
	must(t, err)
	says := slog.New(slog.NewTextHandler(f.said, nil))
	key := []byte("0123456789abcdef0123456789abcdef")
	sealer, err := eventlog.NewSealer(key)
	must(t, err)
	events := &eventlog.Log{DB: i.store}
	i.tails = stream.New(events, i.store, sealer)
	i.gateway, err = gateway.New(gateway.Options{
		Backends: o.backends, DB: i.store, HTTP: i.upstream, Key: key, CallTimeout: o.callTimeout,
		Server: json.RawMessage(`{"name":"fleet","version":"1"}`), Log: says,
	})
	must(t, err)
	i.endpoint, err = mcp.New(mcp.Options{
		Server: mcp.Implementation{Name: "fleet", Version: "1"}, Auth: allowed, Catalogs: catalog.NewStatic(cat),
		Feeds: i.tails, Sessions: i.store, Gateway: i.gateway,
		MaxAge: 5 * time.Minute, Heartbeat: 15 * time.Second, AnswerStreamAfter: time.Second,
		Leases: &lease.Shared{DB: i.store, Max: func(context.Context, auth.Principal) int { return 1000 }, Life: 5 * time.Minute}, Logger: says,
	})
	must(t, err)
	relay := (&app.Core{DB: i.store, EventLog: events, Log: says}).Relay(i.gateway)
	relay.Lease = o.lease
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	i.endRelay = end
	go func() {
		defer close(i.relayDone)
		if !o.alone {
			relay.Run(ctx)
		}
	}()
	i.Server = httptest.NewUnstartedServer(i.endpoint)
	i.Config.ErrorLog = log.New(f.said, "", 0)
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

// kill lets an instance do nothing any more, as if its process were killed: what it holds in the
// store stays, its connections are cut.
func (i *instance) kill() {
	i.store.cut.Store(true)
	i.endRelay()
	i.CloseClientConnections()
}

// open opens the one address, behind which each request goes to any instance that lives.
func (f *fleet) open(t testing.TB) *harness.Target {
	f.before = goroutines()
	f.ways = &http.Transport{MaxIdleConnsPerHost: 64}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			to, _ := url.Parse(f.any().URL)
			r.SetURL(to)
		},
		Transport: f.ways, FlushInterval: -1, ErrorLog: log.New(f.said, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	f.front = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A proxy that still reads the request when its answer begins may lose both.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	f.front.Config.ErrorLog = log.New(f.said, "", 0)
	f.front.Start()
	f.MCP = f.front.URL + "/mcp"
	t.Cleanup(f.shut)
	return &f.Target
}

func (f *fleet) last(most int) string { return f.said.last(most) }

func (f *fleet) held(ctx context.Context, prefix string) ([]store.Key, error) {
	return f.ledger.held(ctx, prefix)
}

func (f *fleet) costs() string {
	reads, writes := int64(0), int64(0)
	for _, i := range f.instances {
		reads, writes = reads+i.store.reads.Load(), writes+i.store.writes.Load()
	}
	return fmt.Sprintf("%d reads and %d writes of the store", reads, writes)
}

// rests counts goroutines: there are as many as before, or a few more that end by themselves.
func (f *fleet) rests() (what string, ok bool) {
	now := goroutines()
	return fmt.Sprintf("%d goroutines, before the load there were %d", now, f.before), now <= f.before+8
}

func (f *fleet) any() *instance {
	for {
		if i := f.instances[rand.IntN(len(f.instances))]; !i.store.cut.Load() {
			return i
		}
	}
}

// shut closes the address and all connections that clients left behind it.
func (f *fleet) shut() {
	f.front.CloseClientConnections()
	f.front.Close()
	f.ways.CloseIdleConnections()
	f.storeWays.CloseIdleConnections()
	for _, i := range f.instances {
		i.upstream.CloseIdleConnections()
	}
}

// at is the one instance as a target.
func (f *fleet) at(n int) *harness.Target {
	return &harness.Target{Name: fmt.Sprint("instance ", n), MCP: f.instances[n].URL + "/mcp", Keys: f.Keys}
}

// said keeps the end of a log.
type said struct {
	mu   sync.Mutex
	text []byte
}

const saidMost = 16 << 10

func (s *said) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text = append(s.text, line...); len(s.text) > 2*saidMost {
		s.text = append([]byte(nil), s.text[len(s.text)-saidMost:]...)
	}
	return len(line), nil
}

// last are the last bytes, at most that many.
func (s *said) last(most int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.text[max(0, len(s.text)-most):])
}

// goroutines are as many as there are when they have settled.
func goroutines() int {
	least := runtime.NumGoroutine()
	for range 20 {
		time.Sleep(50 * time.Millisecond)
		least = min(least, runtime.NumGoroutine())
	}
	return least
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
