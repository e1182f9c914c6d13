//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestManyDeliveriesWhileTheServerIsKilled (WHK-18) makes 20,000 deliveries while it kills the server with SIGKILL. It counts how many are
// repeated.
func TestManyDeliveriesWhileTheServerIsKilled(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Fast: true, Args: []string{"--log-level", "warn"}, Env: []string{"MCPEVENTS_RETRY_SCHEDULE=" + retries()}})
	deliverMany(t, &s.Target, func() error {
		s.Kill()
		return s.TryStart(t.Context())
	})
}

// TestManyDeliveriesWhileFunctionsAreKilledOnAWS (WHK-18) does the same with the functions on the way of an event.
func TestManyDeliveriesWhileFunctionsAreKilledOnAWS(t *testing.T) {
	t.Parallel()
	a := harness.StartAWS(t, harness.AWSOptions{Visibility: 20 * time.Second, Env: chaotic})
	deliverMany(t, &a.Target, func() error {
		a.Kill()
		return nil
	})
}

// deliverMany publishes events for subscriptions to one URI. It calls kill about once per second until almost all events have arrived, but
// not more than mostKills times, so that even a slow machine makes the deliveries in time.
func deliverMany(t *testing.T, target *harness.Target, kill func() error) {
	const subscriptions, events, batch = 20, 1_000, 50
	const leastKills, mostKills = 3, 20
	const uri = "event://chat/kills/general/message"
	var mu sync.Mutex
	repeated, arrived := 0, map[string]string{} // the webhook-id by subscription and event
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct{ Data struct{ ID string } }
		if json.NewDecoder(r.Body).Decode(&m) != nil {
			return // the sender was killed
		}
		delivery, id := r.URL.Path+" "+m.Data.ID, r.Header.Get("webhook-id")
		mu.Lock()
		defer mu.Unlock()
		if first, ok := arrived[delivery]; ok {
			if repeated++; first != id {
				t.Errorf("%s was repeated as %s, and was %s before", delivery, id, first)
			}
		}
		arrived[delivery] = id
	}))
	t.Cleanup(endpoint.Close)
	for n := range subscriptions {
		params := map[string]any{"uris": []string{uri}, "targetUri": fmt.Sprint(endpoint.URL, "/", n)}
		target.Stateless("alice").Call(t, "resources/subscriptions/register", params, nil)
	}
	missing := func() int {
		mu.Lock()
		defer mu.Unlock()
		return subscriptions*events - len(arrived)
	}

	began, kills := time.Now(), 0
	var killing sync.WaitGroup
	killing.Go(func() {
		r := rand.New(rand.NewPCG(rand.Uint64(), 0))
		for kills < mostKills && harness.Sleep(t.Context(), harness.About(r, time.Second)) && missing() > subscriptions*events/20 {
			if err := kill(); err != nil {
				t.Errorf("the server does not start again: %v", err)
				return
			}
			kills++
		}
	})
	for first := 0; first < events; first += batch {
		var list []harness.Event
		for n := first; n < first+batch; n++ {
			id := "e" + strconv.Itoa(n)
			list = append(list, harness.Event{ID: id, URI: uri, Data: map[string]any{"id": id, "user": "a", "text": strings.Repeat("x", 100)}})
		}
		retry(t, func(ctx context.Context) error {
			_, err := target.TryPublish(ctx, "publisher", list...)
			return err
		})
	}
	all := harness.Within(t, harness.Patience, func() bool { return missing() == 0 })
	killing.Wait()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d deliveries in %v, %d kills, %d repetitions", len(arrived), time.Since(began), kills, repeated)
	if !all {
		t.Errorf("%d of %d deliveries arrived", len(arrived), subscriptions*events)
	}
	expect.AtLeast(t, "the kills", kills, leastKills)
}
