package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// world is the embedded pipeline with its real queues, in a bubble: time passes when all
// wait, so that hours of a bad endpoint take seconds.
type world struct {
	*rig
	queued *queuesqlite.Queues
	retry  *Retry
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

// inWorld runs the pipeline as the embedded server does.
func inWorld(t *testing.T, options Options, do func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w := &world{rig: newRig(t), attempts: map[string][]time.Time{}, arrived: map[string]map[string]time.Time{}, under: map[string]int{}, most: map[string]int{}}
		w.services.Options.Quota = 10_000
		queues, err := queuesqlite.Open(w.db.Engine(), queuesqlite.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		w.queued = queues
		services := &subscription.Service{DB: w.db, Catalog: w.catalogs, Log: w.log, Sealer: w.sealer, Targets: plain{}}
		w.services.Now = time.Now
		terminator := &Terminator{
			Queue: queues, Subscriptions: services, Log: slog.New(slog.DiscardHandler),
			Review:      &subscription.Review{DB: w.db, Catalog: w.catalogs},
			ErrorObject: func(error) json.RawMessage { return []byte(`"x"`) },
		}
		w.d = NewDispatcher(&Dispatcher{
			DB: w.db, Queue: queues, Subscriptions: services, Catalog: WebhookTypes{w.catalogs}, Poster: w, Opener: plain{},
			Terminator: terminator, Gate: &Gate{}, Options: options, Log: slog.New(slog.DiscardHandler),
		})
		fanout := &Fanout{DB: w.db, Log: &eventlog.Log{DB: w.db}, Catalog: w.catalogs, Queue: queues}
		w.retry = &Retry{DB: w.db, Queue: queues}
		var workers sync.WaitGroup
		for _, c := range []struct {
			name queue.Name
			h    queue.Handler
			o    queue.ConsumeOptions
		}{
			{queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4}},
			{queue.Deliveries, w.d.Pages, queue.ConsumeOptions{Batch: 10, Concurrency: 128, Visibility: 2 * time.Minute}},
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

// to registers subscriptions to one URI for each target.
func (w *world) to(targets ...string) {
	w.t.Helper()
	for _, target := range targets {
		_, err := w.services.Register(w.t.Context(), w.principal(), subscription.RegisterRequest{
			URIs: []string{"event://ci/build-finished"}, Target: target,
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// send publishes n events, evenly over a time.
func (w *world) send(prefix string, n int, over time.Duration) (at map[string]time.Time) {
	w.t.Helper()
	at = map[string]time.Time{}
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		at[id] = time.Now()
		e := event.Event{
			Workspace: "default", ID: id, URI: "event://ci/build-finished", Name: "ci.build_finished",
			Time: time.Now(), Published: time.Now(), Data: []byte(cmp.Or(w.payload, `{"ok":true}`)),
		}
		body, err := e.MarshalJSON()
		if err == nil {
			err = w.queued.Send(w.t.Context(), queue.Events, queue.Outgoing{Body: body, Group: "g", Dedup: id})
		}
		if err != nil {
			w.t.Fatal(err)
		}
		time.Sleep(over / time.Duration(n))
	}
	return at
}

// lags are how long after publishing the events arrived at an endpoint; missing ones are counted.
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

func embedded() Options { return Options{Concurrency: 256, Patience: 2 * time.Second, Detached: 1024} }

// oneOrigin are endpoints of one origin, as all callbacks of ChatGPT are.
func oneOrigin(n int) (urls []string) {
	for i := range n {
		urls = append(urls, fmt.Sprintf("https://hooks.example.com/callbacks/%d", i))
	}
	return urls
}

func TestABadEndpointHarmsNoOther(t *testing.T) {
	const well = 50 * time.Millisecond // an ordinary answer over the Internet
	t.Run("WHK-16 one of twenty endpoints of an origin hangs: the others are served as without it", func(t *testing.T) {
		p99 := func(hangs bool) (worst time.Duration) {
			inWorld(t, embedded(), func(w *world) {
				urls := oneOrigin(20)
				w.to(urls...)
				w.answer = func(r webhook.Request) webhook.Outcome {
					if hangs && r.URL == urls[0] {
						return webhook.Outcome{Status: 200, Took: time.Hour}
					}
					return webhook.Outcome{Status: 200, Took: well}
				}
				at := w.send("e", 400, 10*time.Second)
				time.Sleep(5 * time.Second)
				for _, url := range urls[1:] {
					lags, missing := w.lags(url, at)
					if missing > 0 {
						t.Fatalf("hangs %v: %d events have not arrived at %s", hangs, missing, url)
					}
					worst = max(worst, lags[len(lags)*99/100])
				}
			})
			return worst
		}
		without, with := p99(false), p99(true)
		if with > without*11/10 {
			t.Errorf("p99 of the others: %v with an endpoint that hangs, %v without", with, without)
		}
	})

	t.Run("WHK-16 a hundred origins hang: the retries and first attempts of a healthy endpoint are on time", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			const healthy = "https://well.example.com/hook"
			urls := []string{healthy}
			for i := range 100 {
				urls = append(urls, fmt.Sprintf("https://hang%d.example.com/hook", i))
			}
			w.to(urls...)
			var mu sync.Mutex
			tries := map[string]int{}
			w.answer = func(r webhook.Request) webhook.Outcome {
				if r.URL != healthy {
					return webhook.Outcome{Status: 200, Took: time.Hour}
				}
				mu.Lock()
				defer mu.Unlock()
				if tries[r.ID]++; tries[r.ID] == 1 && strings.HasPrefix(r.ID, "retried") {
					return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: well}
				}
				return webhook.Outcome{Status: 200, Took: well}
			}
			w.send("before", 10, 10*time.Second)
			at := w.send("retried", 20, 20*time.Second)
			first := w.send("first", 20, 20*time.Second)
			time.Sleep(30 * time.Second)
			lags, missing := w.lags(healthy, at)
			if missing > 0 || lags[len(lags)-1] > 13*time.Second {
				t.Errorf("%d of %d retries are missing, the others took %v; they are due after 5 s", missing, len(at), lags)
			}
			// After three failures in a row the endpoint is in the slow lane itself.
			if lags, missing = w.lags(healthy, first); missing > 0 || lags[len(lags)-1] > 3*time.Second {
				t.Errorf("%d of %d first attempts are missing, the others took %v", missing, len(first), lags)
			}
		})
	})

	t.Run("an endpoint that hangs has few attempts under way, and is served when it recovers", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			urls := oneOrigin(2)
			w.to(urls...)
			var mu sync.Mutex
			hangs := true
			w.answer = func(r webhook.Request) webhook.Outcome {
				if r.URL != urls[0] {
					return webhook.Outcome{Status: 200, Took: well}
				}
				mu.Lock()
				defer mu.Unlock()
				if hangs {
					return webhook.Outcome{Status: 200, Took: time.Hour}
				}
				return webhook.Outcome{Status: 200, Took: well}
			}
			at := w.send("e", 20, 5*time.Second)
			w.mu.Lock()
			clear(w.most) // it is known now
			w.mu.Unlock()
			maps.Copy(at, w.send("f", 400, 100*time.Second))
			if n := w.mostTo(urls[0]); n > 2*maxHanging {
				t.Errorf("%d attempts were under way to the endpoint that hangs", n)
			}
			mu.Lock()
			hangs = false
			mu.Unlock()
			time.Sleep(20 * time.Minute)
			if _, missing := w.lags(urls[0], at); missing > 0 {
				t.Errorf("%d of %d events have not arrived 20 minutes after the endpoint recovered", missing, len(at))
			}
		})
	})

	t.Run("WHK-09 429, 502, 503 and 504 slow the whole endpoint down, Retry-After for as long as it says", func(t *testing.T) {
		for _, c := range []struct {
			status int
			after  time.Duration
		}{{429, 10 * time.Minute}, {503, 3 * time.Hour}, {502, 0}, {503, 0}, {504, 0}, {429, 0}} {
			inWorld(t, embedded(), func(w *world) {
				urls := oneOrigin(2)
				w.to(urls...)
				var refused time.Time
				var mu sync.Mutex
				early, asked := 0, 0
				w.answer = func(r webhook.Request) webhook.Outcome {
					if r.URL != urls[0] {
						return webhook.Outcome{Status: 200, Took: well}
					}
					mu.Lock()
					defer mu.Unlock()
					asked++
					if asked == 1 {
						refused = time.Now()
						return webhook.Outcome{Status: c.status, Category: ofStatus(c.status), RetryAfter: c.after, Took: well}
					}
					if time.Since(refused) < max(c.after, busyPause) {
						early++
					}
					return webhook.Outcome{Status: 200, Took: well}
				}
				at := w.send("e", 20, 20*time.Second)
				time.Sleep(c.after + c.after/4 + 40*time.Minute)
				if early > 0 {
					t.Errorf("%d, Retry-After %v: %d attempts came before its time", c.status, c.after, early)
				}
				for i, url := range urls {
					if lags, missing := w.lags(url, at); missing > 0 || i == 1 && lags[len(lags)-1] > time.Second {
						t.Errorf("%d, Retry-After %v: endpoint %d misses %d events, the last took %v", c.status, c.after, i, missing, lags[len(lags)-1])
					}
				}
			})
		}
	})
}

func ofStatus(status int) webhook.Category {
	if status < 500 {
		return webhook.HTTP4xx
	}
	return webhook.HTTP5xx
}

// TestTheBodiesUnderWayAreBounded: WHK-16. Large payloads for an endpoint that takes its time
// and for one that hangs take a bounded memory, and all arrive.
func TestTheBodiesUnderWayAreBounded(t *testing.T) {
	options := embedded()
	options.Bytes = 1 << 20
	inWorld(t, options, func(w *world) {
		urls := oneOrigin(3)
		w.to(urls...)
		w.payload = `{"ok":"` + strings.Repeat("x", 12<<10) + `"}`
		w.answer = func(r webhook.Request) webhook.Outcome {
			switch r.URL {
			case urls[0]:
				return webhook.Outcome{Status: 200, Took: time.Second}
			case urls[1]:
				return webhook.Outcome{Status: 200, Took: time.Hour}
			}
			return webhook.Outcome{Status: 200, Took: 10 * time.Millisecond}
		}
		at := w.send("e", 140, 2*time.Second)
		time.Sleep(20 * time.Minute)
		for _, url := range []string{urls[0], urls[2]} {
			if _, missing := w.lags(url, at); missing > 0 {
				t.Errorf("%d events have not arrived at %s", missing, url)
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.mostHeld > int(options.Bytes) {
			t.Errorf("bodies of %d bytes were under way, the bound is %d", w.mostHeld, options.Bytes)
		}
		if w.mostHeld < 1<<16 {
			t.Errorf("bodies of only %d bytes were under way; the test shows nothing", w.mostHeld)
		}
	})
}

// TestInternalFailuresStayWhereTheyHappen: WHK-19, AWS-05.
func TestInternalFailuresStayWhereTheyHappen(t *testing.T) {
	const well = 10 * time.Millisecond
	t.Run("AWS-05 a broken item of one subscriber repeats no webhook of the others", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			urls := oneOrigin(6)
			w.to(urls...)
			w.answer = func(webhook.Request) webhook.Outcome { return webhook.Outcome{Status: 200, Took: well} }
			page, err := w.db.Query(w.t.Context(), store.Query{
				Table: store.Subscriptions, Partition: subscription.HeaderKey("default", "event://ci/build-finished").Partition, After: "#",
			})
			if err != nil || len(page.Items) != 6 {
				t.Fatal(len(page.Items), err)
			}
			broken := page.Items[2]
			var sub subscription.Subscriber
			_ = json.Unmarshal(broken.Value, &sub)
			broken.Value = []byte(`{"v":`)
			if err := w.db.Write(w.t.Context(), store.Put(broken)); err != nil {
				t.Fatal(err)
			}
			at := w.send("e", 1, time.Second)
			time.Sleep(time.Hour)
			for _, url := range urls {
				_, missing := w.lags(url, at)
				n := len(w.attempts["e0 "+url])
				if url == sub.Target.URL {
					if n != 0 {
						t.Errorf("%d attempts for an item that cannot be decoded", n)
					}
				} else if missing > 0 || n != 1 {
					t.Errorf("%s was sent the event %d times, %d missing", url, n, missing)
				}
			}
			if depth, err := w.queued.Depth(w.t.Context(), queue.Dead); err != nil || depth.Visible != 1 {
				t.Errorf("%d dead letters, want one: %v", depth.Visible, err)
			}
		})
	})
	t.Run("AWS-05 a secret that cannot be opened is a dead letter of its subscription, the others are served once", func(t *testing.T) {
		options := embedded()
		options.Schedule = Schedule{0, time.Minute, time.Hour}
		inWorld(t, options, func(w *world) {
			urls := oneOrigin(6)
			w.to(urls...)
			w.d.Opener = refusing{urls[3]}
			w.answer = func(webhook.Request) webhook.Outcome { return webhook.Outcome{Status: 200, Took: well} }
			at := w.send("e", 3, time.Second)
			time.Sleep(2 * time.Hour)
			dead := 0
			for _, url := range urls {
				_, missing := w.lags(url, at)
				for id := range at {
					if n := len(w.attempts[id+" "+url]); (url == urls[3]) != (n == 0) || n > 1 {
						t.Errorf("%s was sent %s %d times", url, id, n)
					}
				}
				if url != urls[3] && missing > 0 {
					t.Errorf("%s misses %d events", url, missing)
				}
			}
			subs, _, err := w.services.List(w.t.Context(), w.principal(), "", 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range subs {
				page, err := w.db.Query(w.t.Context(), store.Query{Table: store.Deliveries, Partition: deadKey("default", s.ID, "", time.Now()).Partition})
				if err != nil {
					t.Fatal(err)
				}
				for _, it := range page.Items {
					del, err := decodeDelivery(&it)
					if err != nil || del.Target != urls[3] || del.Attempts[len(del.Attempts)-1].Category != string(webhook.Internal) {
						t.Errorf("a dead letter %+v, %v", del, err)
					}
					dead++
				}
			}
			if dead != 3 {
				t.Errorf("%d dead letters, want 3", dead)
			}
		})
	})
}

// refusing cannot open the secrets of one target.
type refusing struct{ target string }

func (o refusing) Open(_ context.Context, sealed []byte, b webhook.Binding) ([]byte, error) {
	if b.Target == o.target {
		return nil, errDied
	}
	return sealed, nil
}
