package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestSubscriptionsShareTheEndOfASession runs two polls. The server ends the session while both are open: the first one begins a new
// session, and the second one learns of the end before that session exists.
func TestSubscriptionsShareTheEndOfASession(t *testing.T) {
	t.Parallel()
	var sessions atomic.Int32
	var polls sync.WaitGroup // open polls of the first session
	polls.Add(2)
	renewing, refused := make(chan struct{}), make(chan struct{})
	var late sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		switch id := r.Header.Get("Mcp-Session-Id"); {
		case m.Method == "initialize":
			n := sessions.Add(1)
			if n == 2 {
				close(renewing)
				<-refused
				time.Sleep(50 * time.Millisecond) // the client reads the refusal
			}
			w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", n))
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25"}}`, m.ID)
		case m.Method == "ping":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		case m.Method == "notifications/initialized":
			w.WriteHeader(http.StatusAccepted)
		case m.Method == "events/poll" && id == "s1":
			polls.Done()
			polls.Wait()
			if m.Params.Name == "late" {
				<-renewing
				defer late.Do(func() { close(refused) })
			}
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"Session not found"}}`, m.ID)
		case m.Method == "events/poll" && id == "s2":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"events":[],"cursor":"c1","hasMore":false,"nextPollMs":1000}}`, m.ID)
		default:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no session"}}`)
		}
	}))
	t.Cleanup(s.Close)
	c := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Revision: "2025-11-25"}))(t)
	expect.OK(t, c.Call(t.Context(), "ping", nil, nil))
	var running sync.WaitGroup
	for _, name := range []string{"early", "late"} {
		running.Go(func() {
			sub, err := c.Subscribe(t.Context(), client.SubscribeOptions{Name: name, Mode: client.ModePoll, Event: func(context.Context, client.Event) error { return nil }})
			if err != nil {
				t.Errorf("RCH-01 %s: %v", name, err)
				return
			}
			_ = sub.Close()
		})
	}
	running.Wait()
}
