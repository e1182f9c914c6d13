package delivery

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

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
			if n := w.mostTo(urls[0]); n > mostHanging {
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

	t.Run("WHK-09 an answer that asks for less slows the whole endpoint down, Retry-After for as long as it says", func(t *testing.T) {
		for _, c := range []struct {
			status int
			after  time.Duration
		}{{503, 3 * time.Hour}, {429, 0}} { // [TestPausesGrowByAttemptsAndNotByBursts] has all statuses
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
					if time.Since(refused) < max(c.after, 5*time.Second) {
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

// TestTheBodiesUnderWayAreBounded: WHK-16. Large payloads for a slow endpoint and for one that
// hangs use a limited amount of memory, and all arrive.
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
		options.Schedule = retry.Schedule{0, time.Minute, time.Hour}
		inWorld(t, options, func(w *world) {
			urls := oneOrigin(6)
			w.to(urls...)
			w.d.sender.opener = refusing{urls[3]}
			w.answer = func(webhook.Request) webhook.Outcome { return webhook.Outcome{Status: 200, Took: well} }
			at := w.send("e", 3, time.Second)
			time.Sleep(2 * time.Hour)
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
			dead := w.dead(t)
			for _, del := range dead {
				if del.Target != urls[3] || del.Attempts[len(del.Attempts)-1].Category != string(webhook.Internal) {
					t.Errorf("a dead letter %+v", del)
				}
			}
			if len(dead) != 3 {
				t.Errorf("%d dead letters, want 3", len(dead))
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
