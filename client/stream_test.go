package client_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// first subscribes to event://a/b with a stream and returns the first event.
func first(ctx context.Context, c *client.Client) (got client.Event, err error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	events := make(chan client.Event, 100)
	sub, err := c.Subscribe(ctx, client.SubscribeOptions{
		URIs: []string{"event://a/b"}, Mode: client.ModePush,
		Event: func(_ context.Context, e client.Event) error { events <- e; return nil },
	})
	if err != nil {
		return got, err
	}
	defer func() { _ = sub.Close() }()
	select {
	case got = <-events:
		return got, nil
	case <-sub.Done():
		return got, sub.Err()
	case <-ctx.Done():
		return got, ctx.Err()
	}
}

// streaming returns a client of a server that answers the n-th request, from 1 on, as write does.
func streaming(t *testing.T, silence time.Duration, write func(n int, w *streamWriter)) (c *client.Client, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		write(int(requests.Add(1)), &streamWriter{w})
	}))
	t.Cleanup(s.Close)
	c = expect.Value(client.Connect(t.Context(), s.URL, client.Options{Agent: "test/1", Revision: string(spec.V20260728)}))(t)
	if silence > 0 {
		client.SetSilence(c, silence)
	}
	return c, requests
}

type streamWriter struct{ http.ResponseWriter }

const ofAB = `{"uri":"event://a/b","payload":1}`

func (w *streamWriter) acknowledge() {
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, `data: {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"resourceSubscriptions":["event://a/b"]}}}`+"\n\n")
	w.ResponseWriter.(http.Flusher).Flush()
}

func (w *streamWriter) update(params string) {
	io.WriteString(w, `data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":`+params+`}`+"\n\n")
}

// TestAStreamThatIsSilentIsOpenedAgain uses a proxy that keeps the connection open although its server is gone.
func TestAStreamThatIsSilentIsOpenedAgain(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	c, requests := streaming(t, 50*time.Millisecond, func(n int, w *streamWriter) {
		if w.acknowledge(); n == 1 {
			<-end
			return
		}
		w.update(ofAB)
	})
	defer close(end)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := first(ctx, c); err != nil {
		t.Errorf("the stream ended with %v after %d requests, want the event of the second", err, requests.Load())
	}
}

// TestAStreamWithHeartbeatsStaysOpen sends comments as heartbeats, which do not count as events.
func TestAStreamWithHeartbeatsStaysOpen(t *testing.T) {
	t.Parallel()
	c, requests := streaming(t, 500*time.Millisecond, func(_ int, w *streamWriter) {
		w.acknowledge()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 10 {
			<-tick.C
			io.WriteString(w, ":\n\n")
			w.ResponseWriter.(http.Flusher).Flush()
		}
		w.update(ofAB)
	})
	if _, err := first(t.Context(), c); err != nil || requests.Load() != 1 {
		t.Errorf("the stream ended with %v after %d requests, want the event of the first", err, requests.Load())
	}
}

// SUB-08: a server that cannot begin a listen at the moment says so in a response with status 200. The client tries again.
func TestAStreamThatCannotBeginNowIsTriedAgain(t *testing.T) {
	t.Parallel()
	c, requests := streaming(t, 0, func(n int, w *streamWriter) {
		if n == 1 {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"try again"}}`, jsonrpc.InternalError)
			return
		}
		w.acknowledge()
		w.update(ofAB)
	})
	if _, err := first(t.Context(), c); err != nil {
		t.Errorf("the stream ended with %v after %d requests, want the event of the second", err, requests.Load())
	}
}

// encoding/json ignores the case of names, so a member of another name could replace the one that we read.
func TestAStreamReadsMembersByTheirExactNames(t *testing.T) {
	t.Parallel()
	c, _ := streaming(t, 0, func(_ int, w *streamWriter) {
		w.acknowledge()
		w.update(`{"uri":"event://a/b","payload":1,"_meta":{"io.github.mcp-events/cursor":"c1"},"URI":"event://forged","Payload":2,"_META":{"io.github.mcp-events/cursor":"forged"}}`)
	})
	got := expect.Value(first(t.Context(), c))(t)
	if got.URI != "event://a/b" || string(got.Data) != "1" || got.Cursor != "c1" {
		t.Errorf("got the event of %s with data %s and cursor %s, want event://a/b, 1 and c1", got.URI, got.Data, got.Cursor)
	}
}
