package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
)

// ofTheClient marks the context of the steps that the client makes.
type ofTheClient struct{}

// A client that was killed unsubscribes when it starts again, and subscribes from the cursor that it has saved. Both happen
// at any step of the way of an event that was published after the cursor.
func TestGivenASavedCursorWhenAClientSubscribesAgainWhileAnEventIsOnItsWayThenItGetsTheEvent(t *testing.T) {
	for _, unordered := range []bool{false, true} {
		for name, arguments := range map[string]string{"a URI": `{"owner":"a","repo":"b"}`, "a pattern": `{"owner":"a"}`} {
			t.Run(fmt.Sprintf("EVX-11 EVX-26 %s, ordered store %v", name, !unordered), func(t *testing.T) {
				for leaves, beyond := 0, false; !beyond; leaves++ {
					for returns := leaves; ; returns++ {
						steps, delivered := returnAt(t, unordered, arguments, leaves, returns)
						if beyond = steps <= leaves; steps <= returns {
							break
						}
						if !delivered {
							t.Errorf("the client left before step %d and returned before step %d of %d, and did not get the event", leaves, returns, steps)
						}
					}
				}
			})
		}
	}
}

// returnAt has the client leave and return before the steps given, and reports how many steps the event took and whether
// the client got it.
func returnAt(t *testing.T, unordered bool, arguments string, leaves, returns int) (steps int, delivered bool) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		before := func() {}
		turn := make(chan struct{}, 1) // fanout appends and sends concurrently
		r.unordered = unordered
		r.before = func(ctx context.Context) {
			if ctx.Value(ofTheClient{}) == nil {
				turn <- struct{}{}
				defer func() { <-turn }()
				before()
			}
		}
		m := mortal{r.db, r}
		client := context.WithValue(t.Context(), ofTheClient{}, true)
		var plainStore store.DB = r.db
		if unordered {
			plainStore = unorderedStore{r.db}
		}
		r.log = &eventlog.Log{DB: plainStore}
		services := r.service(plainStore, r.log)
		services.Replay = &deadletter.Replayer{Log: r.log, Queue: m}
		request := subscription.SubscribeRequest{
			Name: "github.push", Arguments: []byte(arguments), URL: "https://hooks.example.com/a", Secret: "whsec_a",
		}
		subscribe := func() {
			if _, err := services.Subscribe(client, r.principal(), request); err != nil {
				t.Error(err)
			}
		}
		fanoutLog := r.log
		if unordered { // another process
			fanoutLog = &eventlog.Log{DB: m}
		} else {
			r.log.DB = m
		}
		d := NewDispatcher(Config{
			DB: m, Queue: m, Subscriptions: r.service(m, r.log).Service, Catalog: r.catalogs, Poster: endpoint{r}, Opener: plain{},
			Terminator: r.terminator(m, services), Now: func() time.Time { return r.now }, Log: slog.New(slog.DiscardHandler),
		})
		fanout := &fanout.Fanout{DB: m, Log: fanoutLog, Catalog: r.catalogs, Queue: m}
		handle := func() {
			for synctest.Wait(); len(r.queues[queue.Events])+len(r.queues[queue.Deliveries]) > 0; synctest.Wait() {
				for name, h := range map[queue.Name]queue.Handler{queue.Events: fanout.Handle, queue.Deliveries: d.Pages} {
					batch := r.queues[name]
					r.queues[name] = nil
					if failed, err := h(t.Context(), batch); err != nil || len(failed) > 0 {
						t.Fatal(failed, err)
					}
					synctest.Wait()
				}
			}
		}
		publish := func(id string) {
			time.Sleep(time.Second)
			r.now = time.Now()
			r.publishTo("event://github/a/b/push", "github.push", id, `{"branch":"main"}`)
		}

		subscribe()
		publish("evt_before")
		handle()
		time.Sleep(10 * time.Second) // so that the replay does not look back that far
		request.Cursor = r.sealer.Seal("default", eventlog.Cursor{At: r.log.Position()})
		publish("evt_1")
		before = func() {
			if steps == leaves {
				if err := services.Unsubscribe(client, r.principal(), request.Name, request.Arguments, request.URL); err != nil {
					t.Error(err)
				}
			}
			if steps == returns {
				go subscribe()
				synctest.Wait() // until it has subscribed, or waits for the fanout
			}
			steps++
		}
		handle()
		synctest.Wait()
		before = func() {}
		handle() // the replay
		for _, post := range r.posts {
			delivered = delivered || post.ID == "evt_1"
		}
	})
	return steps, delivered
}
