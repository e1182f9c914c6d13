package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"

	"github.com/mcp-events/mcpevents/shared/events/fanout"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// world is the embedded pipeline with its real queues, in a bubble: time passes when all
// wait, so that hours of a bad endpoint take seconds.
type world struct {
	*rig
	queued *queuesqlite.Queues
	retry  *retry.Job
	d      *Dispatcher

	mu       sync.Mutex
	attempts map[string][]time.Time          // by webhook-id and URL
	arrived  map[string]map[string]time.Time // successes, by URL and webhook-id
	payload  string                          // of events; {"ok":true} by default
	bytes    int                             // of bodies under way
	mostHeld int
	under    map[string]int // attempts under way, by URL
	most     map[string]int
	answer   func(r webhook.Request) webhook.Outcome // under no lock; Took is how long it takes
	received int                                     // messages that the slow lane was handed
	full     atomic.Bool                             // writes may fail
}

func (w *world) Send(ctx context.Context, r webhook.Request) webhook.Outcome {
	w.mu.Lock()
	w.attempts[r.ID+" "+r.URL] = append(w.attempts[r.ID+" "+r.URL], time.Now())
	w.under[r.URL]++
	w.most[r.URL] = max(w.most[r.URL], w.under[r.URL])
	w.bytes += len(r.Body)
	w.mostHeld = max(w.mostHeld, w.bytes)
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.under[r.URL]--; w.bytes -= len(r.Body); w.mu.Unlock() }()
	out := w.answer(r)
	if out.Took > r.Timeout {
		out = webhook.Outcome{Category: webhook.Timeout, Took: r.Timeout}
	}
	select {
	case <-time.After(out.Took):
	case <-ctx.Done():
		return webhook.Outcome{Category: webhook.Aborted, Err: ctx.Err()}
	}
	if out.Category == "" {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.arrived[r.URL] == nil {
			w.arrived[r.URL] = map[string]time.Time{}
		}
		if _, again := w.arrived[r.URL][r.ID]; !again {
			w.arrived[r.URL][r.ID] = time.Now()
		}
	}
	return out
}

// inWorld runs the pipeline like a stand-alone server.
func inWorld(t *testing.T, options Options, do func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w := &world{rig: newRig(t), attempts: map[string][]time.Time{}, arrived: map[string]map[string]time.Time{}, under: map[string]int{}, most: map[string]int{}}
		queues, err := queuesqlite.Open(w.db.Engine(), queuesqlite.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		w.queued = queues
		services := &subscription.Service{Records: subscription.Records{DB: w.db}, Catalog: w.catalogs, Log: w.log}
		w.services.Records.Now, w.services.Lists.Now = time.Now, time.Now
		terminator := &lifecycle.Terminator{
			Queue: queues, Subscriptions: services, Lists: w.services.Lists, Log: slog.New(slog.DiscardHandler),
			Review:      &review.Review{DB: w.db, Catalog: w.catalogs},
			ErrorObject: func(spec.Profile, error) json.RawMessage { return []byte(`"x"`) },
		}
		w.d = NewDispatcher(Config{
			DB: w.db, Queue: queues, Subscriptions: services, Catalog: w.catalogs, Poster: w, Opener: plain{},
			Terminator: terminator, Gate: &Gate{}, Options: options, Log: slog.New(slog.DiscardHandler),
		})
		fanout := &fanout.Fanout{DB: w.db, Log: &eventlog.Log{DB: w.db}, Catalog: w.catalogs, Queue: queues}
		w.retry = &retry.Job{DB: w.db, Queue: queues}
		var workers sync.WaitGroup
		for _, c := range []struct {
			name queue.Name
			h    queue.Handler
			o    queue.ConsumeOptions
		}{
			{queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4}},
			{queue.Deliveries, w.d.Pages, queue.ConsumeOptions{Batch: 10, Concurrency: 512, PerGroup: 128, Visibility: 2 * time.Minute}},
			{queue.Slow, func(ctx context.Context, batch []queue.Message) ([]string, error) {
				w.mu.Lock()
				w.received += len(batch)
				w.mu.Unlock()
				return w.d.Singles(ctx, batch)
			}, queue.ConsumeOptions{Batch: 1, Concurrency: 512, PerGroup: 8, Visibility: 2 * time.Minute}},
		} {
			workers.Go(func() { _ = queues.Consume(ctx, c.name, c.h, c.o) })
		}
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Minute):
					if _, err := w.retry.Run(context.WithoutCancel(ctx)); err != nil && !w.full.Load() {
						t.Error(err)
					}
				}
			}
		})
		do(w)
		stop()
		workers.Wait()
		w.d.Wait(context.Background())
		_ = queues.Close()
	})
}

// send publishes n events, evenly over a time.
func (w *world) send(prefix string, n int, over time.Duration) (at map[string]time.Time) {
	w.t.Helper()
	at = map[string]time.Time{}
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		at[id] = time.Now()
		if err := w.enqueue(id, cmp.Or(w.payload, `{"ok":true}`)); err != nil {
			w.t.Fatal(err)
		}
		time.Sleep(over / time.Duration(n))
	}
	return at
}

func (w *world) enqueue(id, data string) error {
	m := w.message("event://ci/build-finished", "ci.build_finished", id, data, time.Now())
	m.Group, m.Dedup = "g", id
	return w.queued.Send(w.t.Context(), queue.Events, m)
}

// lags returns the sorted times from publishing to arrival at an endpoint, and the number of events that did not arrive.
func (w *world) lags(url string, at map[string]time.Time) (lags []time.Duration, missing int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, published := range at {
		if arrived, ok := w.arrived[url][id]; ok {
			lags = append(lags, arrived.Sub(published))
		} else {
			missing++
		}
	}
	slices.Sort(lags)
	return lags, missing
}

func (w *world) mostTo(url string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most[url]
}

// mostHanging is how many attempts to an endpoint that hangs may be under way: the detached ones, and as many in the slow lane.
const mostHanging = 32

func embedded() Options { return Options{Concurrency: 256, Patience: 2 * time.Second, Detached: 1024} }

// functionOptions returns the options of the dispatch function.
func functionOptions() Options {
	return Options{Concurrency: 128, Patience: 3 * time.Second, SlowAnswer: time.Second}
}

// oneOrigin returns endpoints of one origin, because all callbacks of ChatGPT have the same origin.
func oneOrigin(n int) (urls []string) {
	for i := range n {
		urls = append(urls, fmt.Sprintf("https://hooks.example.com/callbacks/%d", i))
	}
	return urls
}
