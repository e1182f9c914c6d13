package delivery

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

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
				t.Errorf("%s: %d attempts", id, len(made))
				break
			}
			if !when.Before(from) {
				latest = max(latest, when.Sub(lane.Later(until, from)))
			}
			if when.Before(due) || when.Sub(lane.Later(until, from)) > late {
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
	if wrong > 0 {
		t.Errorf("%d attempts came at a wrong time", wrong)
	}
	return latest
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
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range subs {
		page, err := w.db.Query(w.t.Context(), store.Query{Table: store.Deliveries, Partition: state.LettersOf("default", s.ID).Partition, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range page.Items {
			del, err := state.Decode(&it)
			if err != nil {
				t.Fatal(err)
			}
			dead = append(dead, del)
		}
	}
	return dead
}
