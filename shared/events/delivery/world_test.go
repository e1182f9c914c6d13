package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
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
	answer := w.answer
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.under[r.URL]--; w.bytes -= len(r.Body); w.mu.Unlock() }()
	out := answer(r)
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

// newWorld returns a world without workers, and the parts of its dispatchers.
func newWorld(t *testing.T) (*world, Config) {
	log := slog.New(slog.DiscardHandler)
	w := &world{rig: newRig(t), attempts: map[string][]time.Time{}, arrived: map[string]map[string]time.Time{}, under: map[string]int{}, most: map[string]int{}}
	queues := expect.Value(queuesqlite.Open(w.db.Engine(), queuesqlite.Options{Log: log}))(t)
	w.queued = queues
	w.services.Store.Now, w.services.Lists.Now = time.Now, time.Now
	services := &subscription.Service{Store: subscription.Store{DB: w.db}, Catalog: w.catalogs, Log: w.log}
	return w, Config{
		DB: w.db, Queue: queues, Subscriptions: services, Catalog: w.catalogs, Poster: w, Opener: plain{}, Log: log,
		Terminator: &lifecycle.Terminator{
			Queue: queues, Subscriptions: services, Lists: w.services.Lists, Log: log,
			Review:      &review.Review{DB: w.db, Catalog: w.catalogs},
			ErrorObject: func(spec.Profile, error) json.RawMessage { return []byte(`"x"`) },
		},
	}
}

// inBubble runs a test with a world without workers, and with the parts of dispatchers that have the options of the dispatch function.
func inBubble(t *testing.T, test func(t *testing.T, w *world, config Config)) {
	synctest.Test(t, func(t *testing.T) {
		w, config := newWorld(t)
		config.Options = functionOptions()
		test(t, w, config)
		_ = w.queued.Close()
	})
}

// timePage has a dispatcher handle a page with one event, and returns how long that took.
func (w *world) timePage(d *Dispatcher, sub *subscription.Subscription, e event.Event) time.Duration {
	w.t.Helper()
	began := time.Now()
	w.done(d.HandlePages(w.t.Context(), []queue.Message{pageMessage(e.ID, pageOf(sub.Patterns[0].Key, e))}))
	return time.Since(began)
}

// slowMessage moves an event to the slow lane and returns its message.
func (w *world) slowMessage(d *Dispatcher, sub *subscription.Subscription, e event.Event, received int) queue.Message {
	w.t.Helper()
	s := sub.Subscriber()
	expect.OK(w.t, d.moveToSlowLane(w.t.Context(), &s, &e, false))
	m := message(sub.ID+e.ID, string(task.Encode(w.storedDelivery(sub.ID, e.ID).NextTask().Task)))
	m.Received = received
	return m
}

// consume starts the workers of a queue.
func (w *world) consume(ctx context.Context, workers *sync.WaitGroup, name queue.Name, h queue.Handler, o queue.ConsumeOptions) {
	workers.Go(func() { _ = w.queued.Consume(ctx, name, h, o) })
}

// inWorld runs the pipeline like a stand-alone server.
func inWorld(t *testing.T, options Options, do func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w, config := newWorld(t)
		config.Gate, config.Options = &Gate{}, options
		w.d = NewDispatcher(config)
		fanout := &fanout.Fanout{DB: w.db, Log: &eventlog.Log{DB: w.db}, Catalog: w.catalogs, Queue: w.queued}
		w.retry = &retry.Job{DB: w.db, Queue: w.queued}
		var workers sync.WaitGroup
		w.consume(ctx, &workers, queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4})
		w.consume(ctx, &workers, queue.Deliveries, w.d.HandlePages, queue.ConsumeOptions{Batch: 10, Concurrency: 512, PerGroup: 128, Visibility: 2 * time.Minute})
		w.consume(ctx, &workers, queue.Slow, func(ctx context.Context, batch []queue.Message) ([]string, error) {
			w.mu.Lock()
			w.received += len(batch)
			w.mu.Unlock()
			return w.d.HandleSingles(ctx, batch)
		}, queue.ConsumeOptions{Batch: 1, Concurrency: 512, PerGroup: 8, Visibility: 2 * time.Minute})
		workers.Go(func() {
			for periodic.Sleep(ctx, time.Minute) == nil {
				if _, err := w.retry.Run(context.WithoutCancel(ctx)); err != nil && !w.full.Load() {
					t.Error(err)
				}
			}
		})
		do(w)
		stop()
		workers.Wait()
		w.d.Wait(context.Background())
		_ = w.queued.Close()
	})
}

// answers returns the answers of endpoints by their URLs. All others succeed after the given time.
func answers(others time.Duration, by map[string]webhook.Outcome) func(webhook.Request) webhook.Outcome {
	return func(r webhook.Request) webhook.Outcome {
		if out, ok := by[r.URL]; ok {
			return out
		}
		return takes(others)
	}
}

// send publishes n events, evenly over a time.
func (w *world) send(prefix string, n int, over time.Duration) (at map[string]time.Time) {
	w.t.Helper()
	at = map[string]time.Time{}
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		at[id] = time.Now()
		expect.OK(w.t, w.enqueue(id, cmp.Or(w.payload, `{"ok":true}`)))
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

// arrive checks that all events arrived at an endpoint, each within the given time unless it is 0. It returns their sorted times.
func (w *world) arrive(url string, at map[string]time.Time, within time.Duration) []time.Duration {
	w.t.Helper()
	lags, missing := w.lags(url, at)
	if missing > 0 || within > 0 && lags[len(lags)-1] > within {
		w.t.Errorf("%s misses %d of %d events, the others took %v, want %v", url, missing, len(at), lags, within)
	}
	return lags
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
	return Options{Concurrency: 128, Patience: 3 * time.Second, SlowAnswer: time.Second, MinWait: 100 * time.Millisecond, Detached: 128, SlowLaneDelay: state.EarlyMessage}
}

// oneOrigin returns endpoints of one origin, because all callbacks of ChatGPT have the same origin.
func oneOrigin(n int) (urls []string) {
	for i := range n {
		urls = append(urls, fmt.Sprintf("https://hooks.example.com/callbacks/%d", i))
	}
	return urls
}

// schedule checks that no attempt to an endpoint came before its time, or later than it may after that time
// and from. It returns by how much the latest was late.
func (w *world) schedule(t *testing.T, url string, at map[string]time.Time, from time.Time, late time.Duration) (latest time.Duration) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	wrong := 0
	for id, published := range at {
		made := w.attempts[id+" "+url]
		due, until := published, published
		for i, when := range made {
			if i >= len(retry.StandardSchedule) {
				t.Errorf("%s: got %d attempts, want at most %d", id, len(made), len(retry.StandardSchedule))
				break
			}
			if !when.Before(from) {
				latest = max(latest, when.Sub(periodic.Later(until, from)))
			}
			if when.Before(due) || when.Sub(periodic.Later(until, from)) > late {
				if wrong++; wrong < 5 {
					t.Errorf("%s: attempt %d came at %v, due %v to %v", id, i+1, when, due, until)
				}
			}
			if i+1 < len(retry.StandardSchedule) {
				// An attempt takes up to 20 s before the wait.
				wait := float64(retry.StandardSchedule[i+1])
				due, until = when.Add(time.Duration(wait*(1-retry.Jitter))), when.Add(time.Duration(wait*(1+retry.Jitter))+20*time.Second)
			}
		}
	}
	expect.Equal(t, "attempts at a wrong time", wrong, 0)
	return latest
}

// count returns the number of attempts to send an event to an endpoint.
func (w *world) count(id, url string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.attempts[id+" "+url])
}

// attemptsTo returns the times of the attempts to an endpoint, in order.
func (w *world) attemptsTo(url string) (all []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, made := range w.attempts {
		if strings.HasSuffix(key, " "+url) {
			all = append(all, made...)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

// rate returns the largest number of attempts to an endpoint in any time of the given length after from.
func (w *world) rate(url string, from time.Time, span time.Duration) (most int) {
	all, first := w.attemptsTo(url), 0
	for i, at := range all {
		if at.Before(from) {
			first = i + 1
			continue
		}
		for at.Sub(all[first]) >= span {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// dead returns the dead letters of all subscriptions.
func (w *world) dead(t *testing.T) (dead []*state.Delivery) {
	t.Helper()
	subs, _, err := w.services.List(w.t.Context(), w.principal(), "", 1000)
	expect.OK(t, err)
	for _, s := range subs {
		for _, it := range w.items(state.LettersOf("default", s.ID).Partition) {
			dead = append(dead, expect.Value(state.Decode(&it))(t))
		}
	}
	return dead
}
