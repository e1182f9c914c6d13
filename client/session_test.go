package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/test/expect"
)

// received is a message that a server got.
type received struct {
	ID     json.RawMessage
	Method string
	Params struct{ Name, URI string }
}

func readMessage(r *http.Request) (m received) {
	_ = json.NewDecoder(r.Body).Decode(&m)
	return m
}

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
		m := readMessage(r)
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

// TestEveryRequestAfterInitializeNamesItsRevision uses a server that has the revisions with sessions, but no sessions. Without the header, a
// server must assume 2025-03-26 (MCP 2025-11-25, "Protocol Version Header").
func TestEveryRequestAfterInitializeNamesItsRevision(t *testing.T) {
	t.Parallel()
	const revision = "2025-11-25"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := readMessage(r)
		if got := r.Header.Get("Mcp-Protocol-Version"); m.Method != "initialize" && got != revision {
			t.Errorf("RCH-01 %s %s has the revision %q, want %s", r.Method, m.Method, got, revision)
		}
		switch {
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
		default:
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q}}`, m.ID, revision)
		}
	}))
	t.Cleanup(s.Close)
	c := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Revision: revision}))(t)
	expect.OK(t, c.Call(t.Context(), "ping", nil, nil))
	_, err := c.Subscribe(t.Context(), client.SubscribeOptions{
		URIs: []string{"event://a/b"}, Mode: client.ModePush, Event: func(context.Context, client.Event) error { return nil },
	})
	expect.Error(t, "a subscription at a server without streams", err)
}

// TestASessionThatEndsBetweenTwoURIs loses its session after the first of two resources/subscribe. The stream of the next session must have
// the events of both URIs.
func TestASessionThatEndsBetweenTwoURIs(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sessions := 0
	subscribed := map[string][]string{} // by session
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		m := readMessage(r)
		id := r.Header.Get("Mcp-Session-Id")
		switch {
		case m.Method == "initialize":
			sessions++
			w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", sessions))
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25"}}`, m.ID)
		case id == "s1" && len(subscribed[id]) == 1:
			w.WriteHeader(http.StatusNotFound)
		case m.Method == "resources/subscribe":
			subscribed[id] = append(subscribed[id], m.Params.URI)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "text/event-stream")
			for _, uri := range subscribed[id] {
				fmt.Fprintf(w, `data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":%q}}`+"\n\n", uri)
			}
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	t.Cleanup(s.Close)
	c := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Revision: "2025-11-25"}))(t)
	got := make(chan string, 100)
	sub := expect.Value(c.Subscribe(t.Context(), client.SubscribeOptions{
		URIs: []string{"event://a", "event://b"}, Mode: client.ModePush,
		Event: func(_ context.Context, e client.Event) error { got <- e.URI; return nil },
	}))(t)
	defer func() { _ = sub.Close() }()
	seen := map[string]bool{}
	for late := time.After(5 * time.Second); len(seen) < 2; {
		select {
		case uri := <-got:
			seen[uri] = true
		case <-late:
			t.Fatalf("got events of %v, want those of both URIs", seen)
		}
	}
}

// interruptedServer is a server with sessions that sends one resource update on each stream and then ends the stream.
type interruptedServer struct {
	ids      bool // whether the updates have ids, from which a client can resume
	forget   bool // whether the server ends the session with its first stream
	sessions atomic.Int32
	streams  atomic.Int32
}

func (s *interruptedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := readMessage(r)
	switch {
	case m.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", s.sessions.Add(1)))
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18"}}`, m.ID)
	case s.forget && s.streams.Load() == 1 && r.Header.Get("Mcp-Session-Id") == "s1":
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		n := s.streams.Add(1)
		w.Header().Set("Content-Type", "text/event-stream")
		if s.ids {
			fmt.Fprintf(w, "id: %d\n", n)
		}
		fmt.Fprintf(w, `data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"event://a/b","payload":%d}}`+"\n\n", n)
	case m.Method == "notifications/initialized", r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusAccepted)
	default:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
	}
}

// happen follows event://a/b, and returns the first n things that happen: the payloads of events, and "gap".
func happen(t *testing.T, c *client.Client, n int, cursor string) (got []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	things := make(chan string, 100)
	sub := expect.Value(c.Subscribe(ctx, client.SubscribeOptions{
		URIs: []string{"event://a/b"}, Mode: client.ModePush, Cursor: cursor,
		Event: func(_ context.Context, e client.Event) error { things <- string(e.Data); return nil },
		Gap:   func(context.Context, client.Gap) error { things <- "gap"; return nil },
	}))(t)
	defer func() { _ = sub.Close() }()
	for len(got) < n {
		select {
		case thing := <-things:
			got = append(got, thing)
		case <-ctx.Done():
			return got
		}
	}
	return got
}

func TestAnInterruptedStreamOfURIsReportsAGap(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		server *interruptedServer
		cursor string
		want   []string
	}{
		{"RCH-01 without ids, events between two streams may be lost", &interruptedServer{}, "", []string{"1", "gap", "2"}},
		{"RCH-01 with ids, the server sends them", &interruptedServer{ids: true}, "", []string{"1", "2"}},
		{"RCH-01 another session does not have them", &interruptedServer{ids: true, forget: true}, "", []string{"1", "gap", "2"}},
		{"RCH-01 a session cannot begin at a cursor", &interruptedServer{ids: true}, "c1", []string{"gap", "1", "2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(test.server)
			t.Cleanup(s.Close)
			c := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Revision: "2025-06-18"}))(t)
			expect.List(t, "what happens", happen(t, c, len(test.want), test.cursor), test.want)
		})
	}
	t.Run("RCH-01 a server without sessions and without cursors may lose events", func(t *testing.T) {
		t.Parallel()
		c, _ := streaming(t, 0, func(n int, w *streamWriter) {
			w.acknowledge()
			w.update(fmt.Sprintf(`{"uri":"event://a/b","payload":%d}`, n))
		})
		want := []string{"1", "gap", "2"}
		expect.List(t, "what happens", happen(t, c, len(want), ""), want)
	})
}

func TestTheErrorOfAWrongURLIsNotRepeated(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	err := expect.ErrOf(client.Connect(t.Context(), s.URL, client.Options{}))
	expect.Error(t, "Connect", err, "is the server's URL right?")
	expect.Equal(t, "the number of failures of initialize", strings.Count(err.Error(), "initialize"), 1)
}
