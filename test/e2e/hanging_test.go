//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// timeout is the default timeout of an attempt.
const timeout = 20 * time.Second

// TestHangingEndpointsOnAWS: the functions send to endpoints of one origin, some of which hang.
func TestHangingEndpointsOnAWS(t *testing.T) {
	aws := harness.StartAWS(t, harness.AWSOptions{Env: map[string]string{"MCPEVENTS_QUOTA": "100000"}})
	t.Run("WHK-16 one of twenty endpoints of an origin hangs, and the others receive all events", func(t *testing.T) {
		oneHangs(t, aws)
	})
	t.Run("AWS-04 one in a hundred endpoints of a wide fan-out hangs, and the others are served once each", func(t *testing.T) {
		oneInAHundredHangs(t, aws)
	})
}

// oneHangs publishes the same load before an endpoint hangs and while it hangs.
func oneHangs(t *testing.T, aws *harness.AWS) {
	const uri = "event://storage/twenty/object-created" // not used by another test
	const n = 20
	receiver := harness.NewReceiver(t)
	var hooks []*harness.Endpoint
	var targets []string
	for i := range n {
		hooks = append(hooks, receiver.Endpoint(fmt.Sprint("hook-", i)))
		targets = append(targets, hooks[i].URL())
	}
	webhooks(t, &aws.Target, uri, targets)
	healthy, hanging := hooks[1:], hooks[0]

	events := harness.Size(30, 400)
	load := func(name string) (lags []time.Duration) {
		sent := map[string]time.Time{}
		pace := time.NewTicker(50 * time.Millisecond)
		defer pace.Stop()
		for i := range events {
			id := fmt.Sprint(name, "-", i)
			sent[id] = time.Now()
			aws.Publish(t, harness.Event{ID: id, URI: uri, Data: object{"key": "k", "size": i}})
			<-pace.C
		}
		missing := func() (lost []string) {
			for _, hook := range healthy {
				ids := hook.IDs()
				for id := range sent {
					if ids[id] == 0 {
						lost = append(lost, hook.Name+" "+id)
					}
				}
			}
			return lost
		}
		if !harness.Within(t, harness.Patience, func() bool { return len(missing()) == 0 }) {
			lost := missing()
			t.Fatalf("%s: %d of %d webhooks to healthy endpoints are missing: %q …", name, len(lost), events*len(healthy), lost[:min(3, len(lost))])
		}
		for _, hook := range healthy {
			for _, d := range hook.Deliveries() {
				if at, ok := sent[d.ID()]; ok {
					lags = append(lags, d.At.Sub(at))
				}
			}
		}
		expect.AtMost(t, name+": the repeated webhooks", len(lags)-events*len(healthy), 0)
		slices.Sort(lags)
		return lags
	}
	load("warm")
	without := load("without")
	hanging.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Hang: true} })
	with := load("with")
	p99 := func(lags []time.Duration) time.Duration { return lags[len(lags)*99/100] }
	t.Logf("%d events to %d endpoints: p99 %v without, %v while another one of their origin hangs, ratio %.2f; lost 0",
		events, len(healthy), p99(without), p99(with), p99(with).Seconds()/p99(without).Seconds())
	if slowest, usual := with[len(with)-1], without[len(without)-1]; slowest-usual >= timeout {
		t.Errorf("a healthy endpoint waited %v, longer by the %v that the hanging one may take than the %v without it", slowest, timeout, usual)
	}
	if all, _ := hanging.Count(); all < 2*events+1 {
		t.Errorf("the hanging endpoint received %d requests, want some", all)
	}
}

// oneInAHundredHangs sends an event to all subscriptions, and another one while some endpoints hang.
func oneInAHundredHangs(t *testing.T, aws *harness.AWS) {
	const uri = "event://storage/hundred/object-created" // not used by another test
	n := harness.Size(200, 10_000)
	receiver := harness.NewReceiver(t)
	healthy, hanging := receiver.Endpoint("healthy"), receiver.Endpoint("hanging")
	healthy.Light()
	var targets []string
	for i := range n {
		hook := healthy
		if i%100 == 50 {
			hook = hanging
		}
		targets = append(targets, fmt.Sprint(hook.URL(), "/", i))
	}
	webhooks(t, &aws.Target, uri, targets)

	well := n - n/100
	sent, want := 0, 0
	send := func(name string) time.Duration {
		began := time.Now()
		sent, want = sent+1, want+well
		aws.Publish(t, harness.Event{ID: name, URI: uri, Data: object{"key": "k", "size": 1}})
		harness.Eventually(t, harness.Patience, name+": all healthy endpoints have the event", func() bool { got, _ := healthy.Count(); return got >= want })
		took := time.Since(began)
		t.Logf("%s: %d of %d in %v, %.0f per second", name, well, n, took, float64(well)/took.Seconds())
		return took
	}
	send("warm")
	without := send("without")
	hanging.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Hang: true} })
	with := send("with")
	t.Logf("throughput while 1 %% hang ÷ without: %.2f", without.Seconds()/with.Seconds())
	if with-without >= timeout {
		t.Errorf("the healthy ones were done after %v, longer by the %v that a hanging one may take than the %v without it", with, timeout, without)
	}
	if harness.Full() && with > without*3/2 {
		t.Errorf("the healthy ones were done after %v, want at most 1.5 times the %v without hanging ones", with, without)
	}
	tried := 3 * (n / 100)
	harness.Eventually(t, harness.Patience, "each hanging endpoint was tried", func() bool { got, _ := hanging.Count(); return got >= tried })
	for id, got := range healthy.IDs() {
		expect.Equal(t, "the webhooks of "+id, got, sent)
	}
	if _, got := healthy.Count(); got != well {
		t.Errorf("%d subscriptions were served, want %d", got, well)
	}
}

// webhooks registers a webhook for each target.
func webhooks(t *testing.T, target *harness.Target, uri string, targets []string) {
	t.Helper()
	const workers = 16
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			c := target.Stateless("alice")
			for i := w; i < len(targets); i += workers {
				a, err := c.Try(t.Context(), "resources/subscriptions/register", object{"uris": []string{uri}, "targetUri": targets[i]})
				if err == nil && a.Error != nil {
					err = a.Error
				}
				if err != nil {
					t.Errorf("subscription %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// TestRateOfOneSubscriberOnAWS publishes a burst of events to one subscriber. The functions run with the template's
// default parameters, so two concurrent invocations of dispatch send the webhooks. On a busy machine a rate says little.
// By Little's law, 30 requests per second of 200 ms each are six at a time, so the endpoint does not answer before six
// requests are open.
func TestRateOfOneSubscriberOnAWS(t *testing.T) {
	aws := harness.StartAWS(t, harness.AWSOptions{Defaults: true})
	const atOnce, events, array = 6, 300, 100
	var mu sync.Mutex
	open, arrived, enough := 0, map[string]bool{}, make(chan struct{})
	reached := sync.OnceFunc(func() { close(enough) })
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		if open++; open == atOnce {
			reached()
		}
		mu.Unlock()
		select {
		case <-enough:
			mu.Lock()
			arrived[r.Header.Get("webhook-id")] = true
			mu.Unlock()
		case <-r.Context().Done():
		}
		mu.Lock()
		open--
		mu.Unlock()
	}))
	defer endpoint.Close()
	aws.Stateless("alice").Call(t, "resources/subscriptions/register", object{"uris": []string{"event://chat/acme/busy"}, "targetUri": endpoint.URL}, nil)
	for first := 0; first < events; first += array {
		var burst []harness.Event
		for i := range array {
			burst = append(burst, message(fmt.Sprint("busy-", first+i), "busy"))
		}
		aws.Publish(t, burst...)
	}
	t.Run("WHK-24 an endpoint that responds in 200 ms gets six requests at a time, which are 30 per second", func(t *testing.T) {
		expect.Receive(t, fmt.Sprintf("%d requests that are open at a time", atOnce), enough)
	})
	t.Run("WHK-24 all events of a burst arrive", func(t *testing.T) {
		count := func() int { mu.Lock(); defer mu.Unlock(); return len(arrived) }
		if !harness.Within(t, harness.Patience, func() bool { return count() == events }) {
			t.Errorf("%d of %d events arrived", count(), events)
		}
	})
}
