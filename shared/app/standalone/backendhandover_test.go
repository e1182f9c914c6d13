package standalone_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/relays"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func testKey(context.Context) ([]byte, error) {
	return []byte("a key of 32 bytes for the tests.."), nil
}

// newCore returns the shared parts of instances that have a backend.
func newCore(t *testing.T, backend string) *app.Core {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	queues := expect.Value(queuesqlite.Open(db.Engine(), queuesqlite.Options{Log: log}))(t)
	t.Cleanup(func() { _ = queues.Close() })
	shop := api.Backend{Name: "shop", URL: backend, Workspace: "default", ProtocolVersion: api.AutoVersion}
	core := &app.Core{
		DB: db, Queues: queues, Catalogs: catalog.NewStored(db, time.Now, log, nil), Config: config.NewStored(db, time.Now, log, shop),
		EventLog: &eventlog.Log{DB: db}, Demand: demand.New(db), Limits: standalone.DefaultLimits(), Log: log,
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		_ = queues.Consume(ctx, queue.Events, webhooks.NewFanout(core).Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4})
	})
	t.Cleanup(func() { cancel(); working.Wait() })
	return core
}

// TestNoEventOfABackendIsLostAtAHandover lets four invocations of the relay take each other over, while the backend publishes.
func TestNoEventOfABackendIsLostAtAHandover(t *testing.T) {
	const orders, each, life, start = 5, 1000, 2400 * time.Millisecond, 1600 * time.Millisecond
	backend := startBackend(t)
	core := newCore(t, backend.URL+"/mcp")
	gateway, err := app.NewGateway(core, app.GatewayOptions{})
	expect.OK(t, err)
	var patterns []match.Pattern
	var invocations sync.WaitGroup
	all, end := context.WithCancel(context.Background())
	defer invocations.Wait()
	defer end()
	for i := range 4 {
		invocations.Go(func() {
			time.Sleep(time.Duration(i) * start)
			ctx, cancel := context.WithTimeout(all, life)
			if i == 3 { // the last one receives the rest
				ctx, cancel = context.WithTimeout(all, servertest.Patience)
			}
			defer cancel()
			_ = relay.NewInvocations(func() *relay.Relay {
				return relays.New(core, gateway, testKey, func(context.Context) error {
					return settings.Announce(ctx, core.DB, 0, func(context.Context, settings.Change) error { return nil })
				})
			}).Serve(ctx)
		})
	}
	var entry *catalog.Entry
	for end := time.Now().Add(servertest.Patience); entry == nil; time.Sleep(10 * time.Millisecond) {
		cat, err := catalog.Latest(t.Context(), core.Catalogs, "default")
		if err == nil {
			entry = cat.ByName("order.shipped")
		}
		if time.Now().After(end) {
			t.Fatal("the event type is not stored")
		}
	}
	for order := range orders {
		s := expect.Value(match.Select(entry, json.RawMessage(fmt.Sprintf(`{"order":"%d"}`, order))))(t)
		patterns = append(patterns, s.Pattern)
		expect.OK(t, core.Demand.Want(t.Context(), "default", "alice", s.Pattern.Key))
	}
	for _, p := range patterns { // events from before the subscriptions would only be announced as gaps
		for end := time.Now().Add(servertest.Patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if s, err := core.Demand.State(t.Context(), "default", p.Key); err == nil && s.Active {
				break
			}
		}
	}
	for i := range each {
		var events []standalone.Event
		for order := range orders {
			events = append(events, standalone.Event{URI: fmt.Sprintf("event://orders/%d/shipped", order), ID: fmt.Sprint(i), Data: json.RawMessage(`{"carrier":"DHL"}`)})
		}
		_, err := backend.Publish(t.Context(), "default", events...)
		expect.OK(t, err)
		time.Sleep(4 * start / each * 3 / 4)
	}
	count := func() (total int, ids map[string]bool, gaps int) {
		ids = map[string]bool{}
		for _, p := range patterns {
			for _, part := range p.Partitions(core.EventLog, "default") {
				var after int64
				for more := true; more; {
					var entries []eventlog.Entry
					entries, more, after, err = core.EventLog.Read(t.Context(), part, after, 1000)
					expect.OK(t, err)
					for _, e := range entries {
						if e.Lost {
							gaps++
							continue
						}
						total++
						ids[e.Event.URI+e.Event.ID] = true
					}
				}
			}
		}
		return total, ids, gaps
	}
	total, ids, gaps := count()
	for end := time.Now().Add(servertest.Patience); total < orders*each && time.Now().Before(end); total, ids, gaps = count() {
		time.Sleep(50 * time.Millisecond) // until fanout has appended them
	}
	if total != orders*each || len(ids) != orders*each || gaps != orders {
		t.Errorf("GWN-22: got %d events, %d different ones, and %d gaps; want %d, and a gap at the beginning of each subscription", total, len(ids), gaps, orders*each)
	}
}

// TestASubscriptionEndsAtTheBackend: GWN-21. When the last demand is gone, the relay ends its subscription, and a later one begins again without a cursor.
func TestASubscriptionEndsAtTheBackend(t *testing.T) {
	backend := newFakeBackend(t, shippedType)
	core := newCore(t, backend.URL)
	gateway := expect.Value(app.NewGateway(core, app.GatewayOptions{}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var invocations sync.WaitGroup
	invocations.Go(func() { relays.New(core, gateway, testKey, func(context.Context) error { return nil }).Run(ctx) })
	defer invocations.Wait()
	defer cancel()
	const uri = "event://~shop/order.shipped/e30"
	for range 2 {
		expect.OK(t, core.Demand.Want(t.Context(), "default", "alice", uri))
		if params := <-backend.opened; params["cursor"] != nil {
			t.Errorf("the subscription begins at the cursor %v, want none", params["cursor"])
		}
		page := expect.Value(core.DB.Query(t.Context(), store.Query{Table: store.Sessions, Partition: "ev#default#shop"}))(t)
		expect.OK(t, core.DB.Write(t.Context(), store.Delete(page.Items[0].Key)))
		select {
		case <-backend.closed:
		case <-time.After(servertest.Patience):
			t.Fatal("the subscription does not end")
		}
		for end := time.Now().Add(servertest.Patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if s, err := core.Demand.State(t.Context(), "default", uri); err == nil && !s.Active {
				break // the relay has forgotten it
			}
		}
		core.Demand = demand.New(core.DB) // remembers no renewal
	}
}
