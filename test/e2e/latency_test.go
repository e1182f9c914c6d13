//go:build unix

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// expectOnce repeats a short measurement until a result is at most the limit. Other work on the machine can only delay messages, so one
// good result shows that the system is fast enough. It fails the test after a minute without a good result.
func expectOnce(t *testing.T, what string, limit time.Duration, measure func(round int) time.Duration) {
	t.Helper()
	var all []time.Duration
	for began := time.Now(); time.Since(began) < time.Minute; {
		took := measure(len(all))
		all = append(all, took)
		if took <= limit {
			t.Logf("%s: %v in round %d", what, took, len(all))
			return
		}
	}
	t.Errorf("%s: got %v, want at most %v in one of these rounds", what, all, limit)
}

// p99 returns the time that 99 % of the measurements do not exceed.
func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[(len(took)*99+99)/100-1]
}

// TestLatencyOfListens measures from before an event is published until an open listen has it, through a stand-alone server.
func TestLatencyOfListens(t *testing.T) {
	const uri = "event://ci/build-finished"
	s := harness.StartServer(t, harness.ServerOptions{Fast: true, Args: []string{"--log-level", "warn"}})
	listen := s.Stateless("alice").Listen(t, 1, object{"resourceSubscriptions": []string{uri}}, nil)
	t.Run("SUB-11 the p99 of the time to an open listen is at most 20 ms", func(t *testing.T) {
		expectOnce(t, "p99", 20*time.Millisecond, func(int) time.Duration {
			var took []time.Duration
			for range 100 {
				arrived := len(listen.Messages()) + 1
				began := time.Now()
				s.Publish(t, harness.Event{URI: uri, Data: object{"build": 1, "status": "passed"}})
				expect.MustEqual(t, "the event arrives", listen.Await(t.Context(), arrived), true)
				took = append(took, time.Since(began))
			}
			return p99(took)
		})
	})
}

// polledListens are open listens on AWS, where the endpoint polls the log. Each listen has a URI of its own, which no other test uses.
type polledListens struct {
	aws  *harness.AWS
	open []*harness.Stream
	last time.Time // of the last event
}

func openPolledListens(t *testing.T, aws *harness.AWS) *polledListens {
	t.Helper()
	l := &polledListens{aws: aws}
	for n := range 6 {
		l.open = append(l.open, aws.Stateless("alice").Listen(t, n, object{"resourceSubscriptions": []string{l.uri(n)}}, nil))
	}
	l.measure(t, 1, 0, len(l.open)) // the first events are slow, because the functions that handle them start
	return l
}

func (l *polledListens) uri(n int) string { return fmt.Sprintf("event://chat/latency/c%d/message", n) }

// measure publishes events for each of the listens from first up to end, at random times between the polls. It returns the time from
// before each event is published until its listen has it.
func (l *polledListens) measure(t *testing.T, events, first, end int) (took []time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var running sync.WaitGroup
	for n := first; n < end; n++ {
		running.Go(func() {
			for range events {
				time.Sleep(rand.N(250 * time.Millisecond))
				arrived := len(l.open[n].Messages()) + 1
				began := time.Now()
				e := harness.Event{URI: l.uri(n), Data: object{"id": "1", "user": "a", "text": "hi"}}
				if _, err := l.aws.TryPublish(t.Context(), "publisher", e); err != nil || !l.open[n].Await(t.Context(), arrived) {
					t.Errorf("publish to listen %d: %v, %v", n, err, l.open[n].Err())
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if l.last = time.Now(); t.Failed() {
		t.FailNow()
	}
	return took
}

// whileBusy measures the first number of SUB-11 for a polled log.
func (l *polledListens) whileBusy(t *testing.T) {
	expectOnce(t, "p99", 400*time.Millisecond, func(int) time.Duration { return p99(l.measure(t, 17, 0, len(l.open))) })
}

// afterAQuietMinute waits until the last event is more than a minute old, and measures the next event of each listen.
func (l *polledListens) afterAQuietMinute(t *testing.T) {
	if slices.ContainsFunc(l.open, func(s *harness.Stream) bool { return s.Err() != nil }) {
		*l = *openPolledListens(t, l.aws) // a stream on AWS ends after five minutes
	}
	time.Sleep(time.Until(l.last.Add(time.Minute + time.Second)))
	const rounds = 3
	each := len(l.open) / rounds
	var all []time.Duration
	for n := range rounds {
		all = append(all, slices.Max(l.measure(t, 1, n*each, (n+1)*each)))
	}
	t.Logf("the slowest event of each round: %v", all)
	expect.AtMost(t, "the slowest event of one of the rounds", slices.Min(all), 1200*time.Millisecond)
}

// TestLatencyOfProgress measures from before a backend sends a progress message until a client has it, through a stand-alone server.
func TestLatencyOfProgress(t *testing.T) {
	const messages = 20
	backend := mcp.NewServer(&mcp.Implementation{Name: "progress", Version: "1"}, nil)
	var mu sync.Mutex
	var sent []time.Time
	mcp.AddTool(backend, &mcp.Tool{Name: "work"}, func(ctx context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		for n := range messages {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			sent = append(sent, time.Now())
			mu.Unlock()
			progress := &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(n + 1)}
			if err := req.Session.NotifyProgress(ctx, progress); err != nil {
				return nil, nil, err
			}
		}
		return &mcp.CallToolResult{}, nil, nil
	})
	config := "backends:\n"
	for _, version := range []string{harness.V20251125, harness.V20260728} {
		o := &mcp.StreamableHTTPOptions{Stateless: version == harness.V20260728}
		srv := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return backend }, o))
		t.Cleanup(srv.Close)
		config += fmt.Sprintf("  - {name: b%s, prefix: b%[1]s_, url: %q, protocolVersion: %s}\n", version[:4], srv.URL, version)
	}
	s := harness.StartServer(t, harness.ServerOptions{Fast: true, Config: config})
	for name, client := range map[string]*harness.Client{"stateless": s.Stateless("alice"), "session": s.SessionBased(t, "alice", harness.V20251125)} {
		for _, tool := range []string{"b2025_work", "b2026_work"} {
			t.Run(fmt.Sprintf("GWN-09 %s client, %s, each message arrives within 50 ms", name, tool), func(t *testing.T) {
				expectOnce(t, "the slowest message", 50*time.Millisecond, func(round int) (slowest time.Duration) {
					sent = nil
					call := client.Stream(t, strconv.Itoa(round), "tools/call", object{"name": tool, "arguments": object{}, "_meta": object{"progressToken": "p"}})
					for n := range messages {
						m := call.Next(t)
						arrived := time.Now()
						expect.MustEqual(t, "the message", m.Method, "notifications/progress")
						mu.Lock()
						slowest = max(slowest, arrived.Sub(sent[n]))
						mu.Unlock()
					}
					expect.True(t, "the call has a result", call.Next(t).Result != nil)
					return slowest
				})
			})
		}
	}
}
