package delivery

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// TestAnOutageOfTwoDays has an endpoint fail for 48 hours in which it gets an event every
// 20 minutes, as its healthy neighbours do: one of its origin, one of another.
func TestAnOutageOfTwoDays(t *testing.T) {
	const (
		outage = 48 * time.Hour
		well   = 50 * time.Millisecond
		events = int(outage / (20 * time.Minute))
	)
	for _, c := range []struct {
		name string
		out  webhook.Outcome
		// late is by how much an attempt may come after its time, as a delivery has one. The queue counts
		// in seconds; behind an endpoint that is paused, deliveries take turns, and then it is
		// after the endpoint has recovered.
		late   time.Duration
		paused bool
		// atMost is how many attempts there are while it is down.
		atMost int
		// perHour is how many messages of the slow queue an hour of one delivery's waiting takes.
		perHour float64
	}{
		{
			"WHK-09 it refuses connections: each delivery keeps its schedule",
			webhook.Outcome{Category: webhook.ConnectionRefused, Took: time.Millisecond},
			3 * time.Second, false, 10 * events, 1,
		},
		{
			"WHK-09 it answers 503: it is asked once in five minutes, and all arrive when it is back",
			webhook.Outcome{Status: 503, Category: webhook.HTTP5xx, Took: well},
			30 * time.Minute, true, int(outage / maxBusyPause * 13 / 10), 25,
		},
		{
			"WHK-16 it hangs: it is asked once in 80 s, and all arrive when it is back",
			webhook.Outcome{Status: 200, Took: time.Hour},
			30 * time.Minute, true, int(outage / (maxHangPause + 20*time.Second) * 13 / 10), 25,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, embedded(), func(w *world) {
				urls := append(oneOrigin(2), "https://other.example.com/hook")
				w.to(urls...)
				var down atomic.Bool
				down.Store(true)
				w.answer = func(r webhook.Request) webhook.Outcome {
					if r.URL == urls[0] && down.Load() {
						return c.out
					}
					return webhook.Outcome{Status: 200, Took: well}
				}
				at := w.send("e", events, outage)
				w.mu.Lock()
				mostDown := w.most[urls[0]]
				clear(w.most)
				w.mu.Unlock()
				recovered := time.Now()
				down.Store(false)
				maps.Copy(at, w.send("after", 12, time.Hour))
				time.Sleep(30 * time.Hour)

				for _, url := range urls[1:] {
					lags, missing := w.lags(url, at)
					if missing > 0 || lags[len(lags)-1] > time.Second {
						t.Errorf("%s misses %d events, the last took %v", url, missing, lags[len(lags)-1])
					}
				}
				lags, missing := w.lags(urls[0], at)
				if missing > 0 {
					t.Errorf("%d of %d events have not arrived 30 hours after the endpoint recovered", missing, len(at))
				}
				var waited time.Duration
				for _, lag := range lags {
					waited += lag
				}
				n := w.before(urls[0], recovered)
				if n > c.atMost {
					t.Errorf("%d attempts while it was down, want at most %d", n, c.atMost)
				}
				var from time.Time
				if c.paused {
					from = recovered
				}
				latest := w.schedule(t, urls[0], at, from, c.late)
				perSecond, perMinute := w.rate(urls[0], recovered, time.Second), w.rate(urls[0], recovered, time.Minute)
				if n := w.mostTo(urls[0]); n > 8 || mostDown > 2*maxHanging || perSecond > 16 || perMinute > 240 {
					t.Errorf("the recovered endpoint had %d attempts under way, %d a second, %d a minute; %d under way while it was down", n, perSecond, perMinute, mostDown)
				}
				receives := float64(w.received) / waited.Hours()
				if receives > c.perHour {
					t.Errorf("%.2f messages an hour of a delivery, %d in all", receives, w.received)
				}
				t.Logf("%d attempts while it was down; the latest by %v; recovered: %d under way, %d a second, %d a minute; %.2f slow receives an hour of a delivery",
					n, latest.Round(time.Millisecond), w.mostTo(urls[0]), perSecond, perMinute, receives)
			})
		})
	}

	t.Run("WHK-09 an endpoint that stays away: each delivery is a dead letter after its ten attempts", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			urls := oneOrigin(1)
			w.to(urls...)
			w.answer = func(webhook.Request) webhook.Outcome {
				return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: well}
			}
			at := w.send("e", 24, 24*time.Hour)
			time.Sleep(StandardSchedule.total() + time.Hour)
			w.schedule(t, urls[0], at, time.Time{}, 3*time.Second)
			if n := w.attemptsTo(urls[0]); n != len(at)*len(StandardSchedule) {
				t.Errorf("%d attempts, want %d for each of %d events", n, len(StandardSchedule), len(at))
			}
			if n := len(w.dead(t)); n != len(at) {
				t.Errorf("%d dead letters, want %d", n, len(at))
			}
		})
	})
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
			if i >= len(StandardSchedule) {
				t.Errorf("%s: %d attempts", id, len(made))
				break
			}
			if !when.Before(from) {
				latest = max(latest, when.Sub(later(until, from)))
			}
			if when.Before(due) || when.Sub(later(until, from)) > late {
				if wrong++; wrong < 5 {
					t.Errorf("%s: attempt %d came at %v, due %v to %v", id, i+1, when, due, until)
				}
			}
			if i+1 < len(StandardSchedule) {
				// An attempt takes up to 20 s before the wait.
				wait := float64(StandardSchedule[i+1])
				due, until = when.Add(time.Duration(wait*(1-Jitter))), when.Add(time.Duration(wait*(1+Jitter))+20*time.Second)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d attempts came at a wrong time", wrong)
	}
	return latest
}

// before counts the attempts to an endpoint until a time.
func (w *world) before(url string, until time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, made := range w.attempts {
		for _, at := range made {
			if strings.HasSuffix(key, " "+url) && at.Before(until) {
				n++
			}
		}
	}
	return n
}

// rate is the largest number of attempts to an endpoint in any such time after from.
func (w *world) rate(url string, from time.Time, span time.Duration) (most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []time.Time
	for key, made := range w.attempts {
		if strings.HasSuffix(key, " "+url) {
			all = append(all, made...)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	first := 0
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

func (w *world) attemptsTo(url string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, made := range w.attempts {
		if strings.HasSuffix(key, " "+url) {
			n += len(made)
		}
	}
	return n
}

// dead are the dead letters of all subscriptions.
func (w *world) dead(t *testing.T) (dead []*delivery) {
	t.Helper()
	subs, _, err := w.services.List(w.t.Context(), w.principal(), "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range subs {
		page, err := w.db.Query(w.t.Context(), store.Query{Table: store.Deliveries, Partition: deadKey("default", s.ID, "", time.Now()).Partition, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range page.Items {
			del, err := decodeDelivery(&it)
			if err != nil {
				t.Fatal(err)
			}
			dead = append(dead, del)
		}
	}
	return dead
}
