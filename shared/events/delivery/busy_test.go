package delivery

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
)

// victim is a quick endpoint that sometimes gets an event of another type, next to the load of a test.
const victim = "https://well.example.com/hook"

// subscribeVictim registers the victim.
func (w *world) subscribeVictim(url string) {
	w.registerAs(w.principal(), url, "event://github/acme/site/push")
}

// sendVictim publishes an event for the victim.
func (w *world) sendVictim(id string) {
	w.t.Helper()
	m := w.message("event://github/acme/site/push", "github.push", id, `{}`, time.Now())
	m.Group, m.Dedup = "v", id
	if err := w.queued.Send(w.t.Context(), queue.Events, m); err != nil {
		w.t.Fatal(err)
	}
}

// sendArray publishes n events in one request.
func (w *world) sendArray(prefix string, n int) (at map[string]time.Time) {
	w.t.Helper()
	at = map[string]time.Time{}
	var msgs []queue.Outgoing
	for i := range n {
		id := fmt.Sprintf("%s%d", prefix, i)
		at[id] = time.Now()
		m := w.message("event://ci/build-finished", "ci.build_finished", id, `{"ok":true}`, time.Now())
		m.Group, m.Dedup = "g", id
		msgs = append(msgs, m)
	}
	if err := w.queued.Send(w.t.Context(), queue.Events, msgs...); err != nil {
		w.t.Fatal(err)
	}
	return at
}

// quick answers the victim in 20 ms, and all other endpoints after the given time.
func quick(others time.Duration) func(webhook.Request) webhook.Outcome {
	return func(r webhook.Request) webhook.Outcome {
		if r.URL == victim {
			return webhook.Outcome{Status: 200, Took: 20 * time.Millisecond}
		}
		return webhook.Outcome{Status: 200, Took: others}
	}
}

func TestABusyEndpointStaysInTheFastLane(t *testing.T) {
	const url = "https://busy.example.com/hook"
	t.Run("WHK-24 an array of 100 events arrives within half a second at an endpoint that answers in 100 ms", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			w.to(url)
			w.answer = quick(100 * time.Millisecond)
			at := w.sendArray("e", 100)
			time.Sleep(time.Minute)
			lags, missing := w.lags(url, at)
			if missing > 0 || lags[len(lags)-1] > 500*time.Millisecond {
				t.Errorf("%d events are missing, the last of the others arrived after %v, want 500ms", missing, lags[len(lags)-1])
			}
		})
	})

	t.Run("WHK-25 a burst of 5,000 events is delivered as fast as the endpoint's concurrency allows", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			w.to(url)
			w.answer = quick(200 * time.Millisecond)
			began, at := time.Now(), map[string]time.Time{}
			for i := range 100 {
				maps.Copy(at, w.sendArray(fmt.Sprint("e", i, "_"), 50))
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(5 * time.Minute)
			lags, missing := w.lags(url, at)
			if missing > 0 {
				t.Fatalf("%d of %d events are missing", missing, len(at))
			}
			var last time.Time
			w.mu.Lock()
			for _, arrived := range w.arrived[url] {
				last = lane.Later(last, arrived)
			}
			w.mu.Unlock()
			best := time.Duration(len(at)) * 200 * time.Millisecond / 64
			if took := last.Sub(began); took > best*3/2 {
				t.Errorf("delivered after %v, want 1.5 times %v; the slowest took %v", took, best, lags[len(lags)-1])
			}
			if n := w.mostTo(url); n > 64 {
				t.Errorf("%d attempts were under way, want at most 64", n)
			}
		})
	})
}

func TestPausingASubscriptionStopsThePageThatIsBeingSent(t *testing.T) {
	for _, kind := range []string{"subscription", "origin"} {
		t.Run("WHK-22 its "+kind+" is paused, and no attempt starts five seconds later", func(t *testing.T) {
			inWorld(t, embedded(), func(w *world) {
				set := &switches.Set{DB: w.db, Queue: w.queued, Alone: true}
				w.d.Switches = set
				url := oneOrigin(1)[0]
				sub := w.to(url)[0]
				w.answer = quick(time.Second)
				w.sendArray("e", 1000)
				time.Sleep(3 * time.Second)
				sw := switches.Switch{Name: switches.Subscription(sub.ID), By: "op"}
				var err error
				if kind == "origin" {
					sw.Name = switches.Origin("https://hooks.example.com")
					err = set.Pause(w.t.Context(), "default", sw)
				} else {
					_, err = w.services.SetPaused(w.t.Context(), "default", sub.Principal, sub.ID, true, set.PauseOps("default", sw)...)
				}
				if err != nil {
					t.Fatal(err)
				}
				paused := time.Now()
				time.Sleep(10 * time.Minute)
				all := w.attemptsTo(url)
				if last := all[len(all)-1].Sub(paused); last > 5*time.Second || len(all) == 1000 {
					t.Errorf("%d of 1000 attempts were made, the last %v after the pause, want 5s", len(all), last)
				}
			})
		})
	}
}

// inFunctions runs the pipeline as the stack on AWS does: each of n instances of the dispatch function handles one batch at
// a time and is frozen in between.
