//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestTenThousandListens opens ten thousand listens at one process, and publishes to all of them. It does not check
// the time (goal 500 ms), which the benchmarks measure, because the clients share the server's cores.
func TestTenThousandListens(t *testing.T) {
	const listens, most = 10_000, 40 << 10
	s := harness.StartServer(t, harness.ServerOptions{Auth: "none", Fast: true, Args: []string{"--streams", "20000", "--log-level", "warn"}}) // the race detector can handle 8,000 goroutines
	u := expect.Value(url.Parse(s.MCP))(t)
	before := s.RSS()
	body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},` +
		`"notifications":{"resourceSubscriptions":["event://ci/build-finished"]}}}`
	request := fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\nContent-Length: %d\r\n\r\n%s", u.Host, len(body), body)
	var acknowledged, events atomic.Int64
	var reading sync.WaitGroup
	dialing := make(chan struct{}, 100)
	for range listens {
		dialing <- struct{}{}
		c := expect.Value(net.Dial("tcp", u.Host))(t)
		t.Cleanup(func() { _ = c.Close() })
		reading.Go(func() {
			if _, err := c.Write(request); err != nil {
				t.Error(err)
			}
			first := true
			lines := bufio.NewReaderSize(c, 2<<10)
			for {
				line, err := lines.ReadSlice('\n')
				if err != nil && err != bufio.ErrBufferFull {
					return
				}
				switch {
				case !bytes.HasPrefix(line, []byte("data: ")):
				case first:
					first = false
					acknowledged.Add(1)
					<-dialing
				default:
					events.Add(1)
				}
			}
		})
	}
	wait := func(what string, n *atomic.Int64) time.Duration {
		began, last, at := time.Now(), int64(0), time.Now()
		for last < listens && time.Since(at) < harness.Patience { // while more of them arrive
			time.Sleep(time.Millisecond)
			if now := n.Load(); now > last {
				last, at = now, time.Now()
			}
		}
		if got := n.Load(); got != listens {
			t.Fatalf("SUB-12 %d of %d %s", got, listens, what)
		}
		return time.Since(began)
	}
	t.Run("SUB-12 ten thousand listens in one process", func(t *testing.T) {
		wait("listens are open", &acknowledged)
		s.Publish(t, harness.Event{URI: "event://ci/build-finished", Data: map[string]any{"build": 1, "status": "passed"}})
		took := wait("got the event", &events)
		each := (s.RSS() - before) / listens
		t.Logf("%d bytes each; the event reached all after %v", each, took)
		expect.AtMost(t, "the bytes of each listen", each, most)
	})
}

// TestDrain: SIGTERM ends a listen with its result. Lambda gives its instances only half a second, in which a busy machine may not get to
// it; TestManagedInstance shows that clients then continue at another instance.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	listen := s.Stateless("alice").Listen(t, "drained", object{"resourcesListChanged": true}, nil)
	s.Stop()
	t.Run("SUB-06", func(t *testing.T) {
		expect.Receive(t, "the end of the stream", listen.Ended())
		expect.Equal(t, "the end of the stream", listen.Err(), io.EOF)
		all := listen.Messages()
		if m := all[len(all)-1]; string(m.ID) != `"drained"` || string(harness.Meta(m.Result, harness.SubscriptionID)) != `"drained"` {
			t.Errorf("got the last message %s, want the result of drained", m.Raw)
		}
	})
}

// TestManagedInstance tests an instance of the endpoint that holds many streams concurrently, as Lambda allows with
// AWS_LAMBDA_MAX_CONCURRENCY.
func TestManagedInstance(t *testing.T) {
	t.Parallel()
	const atOnce, room = 16, 12 // 80 % of the maximum of one instance
	aws := harness.StartAWS(t, harness.AWSOptions{
		Managed: runner.Managed{Instances: 1, AtOnce: atOnce},
		Env:     map[string]string{"MCPEVENTS_STREAM_CONCURRENCY": "1"},
	})
	uri := "event://chat/managed/general/message"
	notifications := object{"resourceSubscriptions": []string{uri}}
	listen := func(id any, cursor string) *harness.Stream {
		t.Helper()
		if cursor == "" {
			return aws.Stateless("alice").Listen(t, id, notifications, object{})
		}
		var s *harness.Stream
		harness.Eventually(t, harness.Patience, "a resumed stream opens", func() (opened bool) { // a stream that broke off holds its slot a little longer
			var err error
			s, err = aws.Stateless("alice").TryListen(t.Context(), id, notifications, object{harness.Prefix + "cursor": cursor})
			return err == nil
		})
		t.Cleanup(s.Close)
		return s
	}
	var streams []*harness.Stream
	for n := range room {
		streams = append(streams, listen(n, ""))
	}
	expect.Equal(t, "the instances that were started for the streams", aws.Starts("StreamFunction"), 1)
	t.Run("AUT-07 the fleet accepts as many streams as its instances can hold together", func(t *testing.T) {
		req := expect.Value(aws.Stateless("bob").Request(t.Context(), "subscriptions/listen", object{"notifications": notifications}, 1))(t)
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("one more got %s: %s", resp.Status, b)
		}
		aws.Stateless("bob").Call(t, "server/discover", nil, nil) // calls are still accepted
	})
	t.Run("SUB-01 SUB-08 every stream gets every event in order", func(t *testing.T) {
		for n := range 3 {
			aws.Publish(t, messageIn("managed", fmt.Sprint("managed-", n), "general"))
		}
		for n, s := range streams {
			for i, u := range s.Wait(t, 3) {
				if want := fmt.Sprint("managed-", i); u.EventID != want || u.URI != uri {
					t.Errorf("stream %d: event %d is %s of %s", n, i, u.EventID, u.URI)
				}
			}
		}
	})
	t.Run("SUB-06 SUB-08 when the instance ends, all streams end and continue at another one", func(t *testing.T) {
		aws.Retire("StreamFunction")
		for n, s := range streams {
			expect.Receive(t, fmt.Sprintf("the end of stream %d", n), s.Ended())
			all := s.Messages()
			// An instance has half a second to end. On a busy machine some streams may break off instead.
			if last := all[len(all)-1]; s.Err() == io.EOF && last.Method == "" && (last.Result == nil || string(last.ID) != fmt.Sprint(n)) {
				t.Errorf("stream %d ended with %s", n, last.Raw)
			}
		}
		aws.Publish(t, messageIn("managed", "managed-3", "general"))
		for n, s := range streams {
			updates := s.Updates()
			expect.Equal(t, fmt.Sprintf("the event with which the stream %d continued", n), listen(n, updates[len(updates)-1].Cursor).Wait(t, 1)[0].EventID, "managed-3")
		}
	})
}
