//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestManyPrincipalsOfOneHost: many principals subscribe callbacks at one host, as ChatGPT's users do, while one
// principal floods the same host with callbacks that fail. At full size there are 5,000 subscriptions of 500
// principals.
func TestManyPrincipalsOfOneHost(t *testing.T) {
	t.Parallel()
	principals, each := harness.Size(20, 500), harness.Size(5, 10)
	callers := harness.Callers()
	for i := range principals {
		callers = append(callers, harness.Caller{Principal: fmt.Sprintf("user%d", i), Scopes: harness.All})
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{Callers: callers, Fast: true, Args: []string{"--registration-rate", "0"}})
		crowd(t, &s.Target, principals, each)
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		aws := harness.StartAWS(t, harness.AWSOptions{Callers: callers, Fast: true, Env: map[string]string{"MCPEVENTS_REGISTRATION_RATE": "0"}})
		crowd(t, &aws.Target, principals, each)
	})
}

func crowd(t *testing.T, s *harness.Target, principals, each int) {
	var honest, failed atomic.Int64 // numbers of challenges
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct{ Challenge string }
		_ = json.NewDecoder(r.Body).Decode(&m)
		switch {
		case strings.HasPrefix(r.URL.Path, "/callbacks/"):
			honest.Add(1)
			_ = json.NewEncoder(w).Encode(object{"challenge": m.Challenge})
		case strings.HasPrefix(r.URL.Path, "/failing/"):
			failed.Add(1)
			w.WriteHeader(http.StatusNoContent)
		default: // the origin's declaration
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(host.Close)
	try := func(who, path string) (*harness.Answer, error) {
		return s.Stateless(who).Try(t.Context(), "events/subscribe", subscription("ci.build_finished", nil, host.URL+path, harness.NewSecret()))
	}
	// On a busy machine a dependency or the endpoint may not answer in time. Then the answer asks for another try.
	busy := func(a *harness.Answer) bool {
		return a.Status == http.StatusServiceUnavailable || a.Error != nil && (a.Error.Code == http.StatusServiceUnavailable ||
			a.Error.Code == -32015 && bytes.Contains(a.Error.Data, []byte(`"timeout"`)))
	}
	begin := time.Now()
	var all, flood sync.WaitGroup
	done := make(chan struct{})
	var refused atomic.Int64
	flood.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			a, err := try("bob", fmt.Sprintf("/failing/%d", n))
			switch {
			case err != nil:
				t.Errorf("the principal that floods: %v", err)
				return
			case busy(a):
			case a.Error == nil:
				t.Errorf("an endpoint that fails was subscribed")
			case a.Error.Code == -32013 && bytes.HasPrefix(a.Error.Data, []byte(`{"limit":"failedVerifications","max":20,"retryAfterSeconds":`)):
				refused.Add(1)
			case a.Error.Code != -32015:
				t.Errorf("the principal that floods: %v", a.Error)
			}
		}
	})
	var next, again atomic.Int64
	subscribeOnce := func(i int) error {
		for late := time.Now().Add(harness.Patience); ; again.Add(1) {
			a, err := try(fmt.Sprintf("user%d", i/each), fmt.Sprintf("/callbacks/%d", i))
			switch {
			case err != nil:
				return err
			case a.Error == nil && a.Status == http.StatusOK:
				return nil
			case !busy(a) || time.Now().After(late):
				return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
			}
		}
	}
	for range 8 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < principals*each && !t.Failed(); i = int(next.Add(1)) - 1 {
				if err := subscribeOnce(i); err != nil {
					t.Errorf("callback %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	took := time.Since(begin)
	harness.Within(t, harness.Patience, func() bool { return refused.Load() > 0 || t.Failed() })
	close(done)
	flood.Wait()
	flooded := time.Since(begin)
	t.Run("EVX-12 while a principal floods a host, the callbacks of others at the host are verified once each", func(t *testing.T) {
		// A repeated request may cause another challenge, if the first one's outcome was not stored.
		if n, want := honest.Load(), int64(principals*each); n < want || n > want+again.Load() {
			t.Errorf("%d challenges, want %d", n, want)
		}
		t.Logf("%d challenges of %d principals in %v, %d requests repeated", honest.Load(), principals, took, again.Load())
	})
	t.Run("SRF-07 the principal that floods is stopped after its failures", func(t *testing.T) {
		// Requests are sent one at a time, so none is in progress when the limit is reached. A new window begins
		// every five minutes.
		if n, most := failed.Load(), 20*(1+int64(flooded/(5*time.Minute))+1); n < 20 || n > most || refused.Load() == 0 {
			t.Errorf("%d challenges that failed, want 20 to %d; %d requests refused", n, most, refused.Load())
		}
		t.Logf("%d challenges that failed, %d requests refused", failed.Load(), refused.Load())
	})
}
