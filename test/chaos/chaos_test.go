//go:build unix

// Package chaos kills processes while events flow, and counts.
package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// impatient settings let an endpoint that fails for seconds be served within the test.
var impatient = map[string]string{
	"MCPEVENTS_WEBHOOK_TIMEOUT": "4s",
	"MCPEVENTS_RETRY_SCHEDULE":  "0s,1s,1s,2s,2s,4s,4s,8s,8s,16s,16s,32s,32s" + strings.Repeat(",64s", 7),
}

// TestKillEmbedded kills the server five times while 5,000 events (by default 2,500) flow to
// four times as many deliveries, and to faulty endpoints, and starts it again on the same data.
func TestKillEmbedded(t *testing.T) {
	t.Parallel() // most of its time is the wait for what a crash has put off
	const kills = 5
	events := harness.Size(2_500, 5_000)
	var env []string
	for k, v := range impatient {
		env = append(env, k+"="+v)
	}
	s := harness.StartServer(t, harness.ServerOptions{Fast: true, Args: []string{"--log-level", "warn"}, Env: env})
	f := newFlow(t, &s.Target, events)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		for k := range kills {
			// Between 10 % and 90 % of the events.
			at := int64(events * (1 + 2*k) / (2 * kills))
			harness.Within(t, 2*time.Minute, func() bool { return f.accepted.Load() >= at })
			s.Kill()
			if err := s.TryStart(t.Context()); err != nil {
				t.Errorf("start number %d: %v", k+2, err)
				return
			}
		}
	}()
	f.publish(t)
	<-killed
	f.check(t, 4*time.Minute)
}

// TestKillFunctions has function processes killed at random while 5,000 events (by
// default 400) flow through the functions on local AWS, to faulty endpoints too.
func TestKillFunctions(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{Visibility: 10 * time.Second, Env: impatient})
	f := newFlow(t, &aws.Target, harness.Size(400, 5_000))
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		aws.KillUntil(done, 3)
	}()
	f.publish(t)
	harness.Within(t, 5*time.Minute, func() bool {
		return f.delivered() >= 9*f.count*len(f.endpoints)/10
	})
	close(done)
	<-stopped
	t.Logf("%d processes were killed", aws.Killed())
	f.check(t, 5*time.Minute)
}

// flow holds the published events and the consumers that wait for them.
type flow struct {
	target   *harness.Target
	count    int
	accepted atomic.Int64

	endpoints   []*harness.Endpoint
	faulty      *faulty
	listen, get *follower
}

const uris = 10

func uri(n int) string { return fmt.Sprintf("event://chat/acme/c%d/message", n%uris) }

func id(n int) string { return fmt.Sprintf("m-%05d", n) }

// newFlow registers two webhooks each way, so that each event is four deliveries,
// and opens a stream with a session and one without.
func newFlow(t *testing.T, target *harness.Target, count int) *flow {
	t.Helper()
	receiver := harness.NewReceiver(t)
	f := &flow{target: target, count: count}
	c := target.Stateless("alice")
	for n := range 2 {
		e := receiver.Endpoint(fmt.Sprintf("registered-%d", n+1))
		var r struct {
			Subscription struct{ WebhookSecret struct{ Key string } }
		}
		retry(t, func(ctx context.Context) error {
			return call(ctx, c, "resources/subscriptions/register", map[string]any{
				"uris": []string{"event://chat/acme"}, "targetUri": e.URL(),
			}, &r)
		})
		e.SetSecret(r.Subscription.WebhookSecret.Key)
		f.endpoints = append(f.endpoints, e)
	}
	for n := range 2 {
		e := receiver.Endpoint(fmt.Sprintf("subscribed-%d", n+1))
		e.SetSecret("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
		retry(t, func(ctx context.Context) error {
			return call(ctx, c, "events/subscribe", map[string]any{
				"name": "message.created", "arguments": map[string]any{"workspace": "acme"},
				"delivery": map[string]any{"mode": "webhook", "url": e.URL(), "secret": e.Secret()},
			}, nil)
		})
		f.endpoints = append(f.endpoints, e)
	}
	f.faulty = newFaulty(t, target)
	f.listen = follow(t, byURI(target, "bob", spec.V20260728, "event://chat/acme"))
	var all []string
	for n := range uris {
		all = append(all, uri(n))
	}
	f.get = follow(t, byURI(target, "bob", spec.V20251125, all...))
	return f
}

// publish sends all events, eight concurrently, and repeats an unacknowledged event with the same id. After half of the
// deliveries, the faulty endpoints recover.
func (f *flow) publish(t *testing.T) {
	t.Helper()
	began := time.Now()
	var next, repeated atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		harness.Within(t, 10*time.Minute, func() bool { return f.delivered() >= f.count*len(f.endpoints)/2 })
		f.faulty.recover(t)
	})
	for range 8 {
		wg.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= f.count {
					return
				}
				e := harness.Event{ID: id(n), URI: uri(n), Data: map[string]any{"id": id(n), "user": "u", "text": "Hello"}}
				retry(t, func(ctx context.Context) error {
					_, err := f.target.TryPublish(ctx, "publisher", e)
					if err != nil {
						repeated.Add(1)
					}
					return err
				})
				f.accepted.Add(1)
			}
		})
	}
	wg.Wait()
	t.Logf("%d events accepted in %v, %d publishes repeated", f.accepted.Load(), time.Since(began), repeated.Load())
}

// delivered counts deliveries without their repetitions.
func (f *flow) delivered() (n int) {
	for _, e := range f.endpoints {
		_, different := e.Count()
		n += different
	}
	return n
}

// check waits until everybody has every event, and counts repetitions.
func (f *flow) check(t *testing.T, patience time.Duration) {
	t.Helper()
	began := time.Now()
	harness.Within(t, patience, func() bool {
		return f.delivered() >= f.count*len(f.endpoints) && f.listen.distinct() >= f.count && f.get.distinct() >= f.count
	})
	t.Logf("all waited for after %v more", time.Since(began))
	for _, e := range f.endpoints {
		t.Run("WHK-18 webhooks "+e.Name, func(t *testing.T) {
			ids := e.IDs()
			missing, repetitions := 0, 0
			for n := range f.count {
				switch got := ids[id(n)]; {
				case got == 0:
					missing++
				case got > 1:
					repetitions += got - 1
				}
			}
			t.Logf("%d deliveries, %d lost, %d repetitions", f.count, missing, repetitions)
			if missing > 0 || len(ids) != f.count {
				t.Errorf("%d events are missing, %d ids are strange", missing, len(ids)-(f.count-missing))
			}
			for _, d := range e.Deliveries() {
				var body struct{ Data struct{ ID string } }
				if err := json.Unmarshal(d.Body, &body); err != nil || body.Data.ID != d.ID() {
					t.Errorf("the event %q came with the webhook-id %q: %v", body.Data.ID, d.ID(), err)
				}
				if err := d.Verify(e.Secret()); err != nil {
					t.Errorf("%s is not verified: %v", d.ID(), err)
				}
			}
		})
	}
	f.faulty.check(t, f.count, patience)
	for name, s := range map[string]*follower{"listen": f.listen, "GET": f.get} {
		t.Run("SUB-08 SES-03 the stream "+name+" that resumes", func(t *testing.T) {
			want := make([]string, f.count)
			for n := range want {
				want[n] = id(n)
			}
			s.check(t, want)
		})
	}
}

// retry repeats f until it succeeds, as a client does while the server is away.
func retry(t *testing.T, f func(context.Context) error) {
	t.Helper()
	var err error
	if !harness.Within(t, 2*time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err = f(ctx)
		return err == nil
	}) {
		t.Errorf("it does not succeed: %v", err)
	}
}

func call(ctx context.Context, c *harness.Client, method string, params map[string]any, result any) error {
	a, err := c.Try(ctx, method, params)
	switch {
	case err != nil:
		return err
	case a.Error != nil:
		return a.Error
	case a.Result == nil:
		return fmt.Errorf("%s: status %d: %.200s", method, a.Status, a.Body)
	case result == nil:
		return nil
	}
	return json.Unmarshal(a.Result, result)
}
