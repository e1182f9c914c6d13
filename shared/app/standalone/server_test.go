package standalone

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

// patience bounds every wait.
const patience = 30 * time.Second

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serve starts a server with the sample catalog, and ends it with the test.
func serve(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	src, err := os.ReadFile("../../../catalog.yaml")
	expect.OK(t, err)
	s := Options{
		Addr: "127.0.0.1:0", Data: t.TempDir(), Catalog: src, CatalogName: "catalog.yaml", Auth: auth.ModeNone,
		Limits: config.DefaultLimits(), Log: quiet(),
	}
	s.Limits.AllowInsecureTargets = true
	if change != nil {
		change(&s)
	}
	e, err := New(t.Context(), s)
	expect.OK(t, err)
	t.Cleanup(func() { end(t, e) })
	return e
}

// end shuts a server down. The server may have been shut down before.
func end(t *testing.T, e *Server) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections() // otherwise the server waits 5 s for a connection that was never used
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Shutdown(ctx); err != nil {
		t.Errorf("end the server: %v", err)
	}
}

// refuses checks that a server does not start with these options, and that the error contains a text.
func refuses(t *testing.T, o Options, says string) {
	t.Helper()
	s, err := New(t.Context(), o)
	if err == nil {
		end(t, s)
		t.Fatalf("the server started, want the error %q", says)
	}
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v of kind %v, want %s", err, fault.KindOf(err), says)
	}
}

// starts checks that a server starts with these options, and ends it.
func starts(t *testing.T, o Options) {
	t.Helper()
	s, err := New(t.Context(), o)
	expect.OK(t, err)
	end(t, s)
}

// hash returns the SHA-256 hash of an API key, as a configuration contains it.
func hash(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}

// request sends a request with the key who, or without a key if who is empty. At /mcp, rpc is its method.
func request(t *testing.T, s *Server, who, method, path, rpc, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	expect.OK(t, err)
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+who)
	}
	if rpc != "" {
		req.Header.Set(spec.HeaderVersion, string(spec.V20260728))
		req.Header.Set(spec.HeaderMethod, rpc)
	}
	resp, err := http.DefaultClient.Do(req)
	expect.OK(t, err)
	return resp
}

// read reads a response to its end.
func read(t *testing.T, resp *http.Response) (status int, text string) {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	expect.OK(t, err)
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// ask sends a request and reads the response.
func ask(t *testing.T, s *Server, who, method, path, body string) (status int, text string) {
	t.Helper()
	return read(t, request(t, s, who, method, path, "", body))
}

// call calls a method of /mcp.
func call(t *testing.T, s *Server, who, method string, params map[string]any) *http.Response {
	t.Helper()
	params["_meta"] = map[string]any{
		spec.MetaVersion: spec.V20260728, spec.MetaClient: map[string]string{"name": "test", "version": "1"}, spec.MetaCapabilities: map[string]any{},
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	expect.OK(t, err)
	return request(t, s, who, "POST", "/mcp", method, string(body))
}

// subscribed registers an endpoint for events.
func subscribed(t *testing.T, s *Server, endpoint, uri string) {
	t.Helper()
	status, text := read(t, call(t, s, "", spec.MethodRegister, map[string]any{"uris": []string{uri}, "targetUri": endpoint}))
	if status != http.StatusOK || strings.Contains(text, `"error"`) {
		t.Fatalf("%d %s", status, text)
	}
}

const (
	buildFinished = "event://ci/build-finished"
	pullRequest   = "event://github/acme/website/pull_request"
)

func TestLiveStreamsEndWithTheirKey(t *testing.T) {
	t.Parallel() // the server checks keys every five seconds
	operators := func(names ...string) *config.Config {
		text := "keys:\n"
		for _, name := range names {
			text += fmt.Sprintf("  - {principal: %s, sha256: %s, scopes: [events:operate]}\n", name, hash(name))
		}
		return configured(t, text)
	}
	var o Options
	s := serve(t, func(with *Options) {
		with.Auth, with.Config = auth.ModeKeys, operators("removed", "kept")
		o = *with
	})
	open := func(who string) (ended chan bool) {
		resp := request(t, s, who, "GET", "/admin/v1/live", "", "")
		t.Cleanup(func() { _ = resp.Body.Close() })
		ended = make(chan bool)
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
		return ended
	}
	kept, removed := open("kept"), open("removed")
	o.Config = operators("kept")
	expect.OK(t, s.Reload(t.Context(), o))
	select {
	case <-removed:
	case <-kept:
		t.Error("AUT-04 the stream of a key that is still there ended")
	case <-time.After(30 * time.Second):
		t.Error("AUT-04 the stream of a removed key is open after 30 s")
	}
}

// Dead letters of queues are in the list, and a retry sends them back to their queue. The messages of this test are invalid,
// so they become dead letters again.
func TestDeadLettersOfQueues(t *testing.T) {
	s := serve(t, nil)
	type letter struct {
		ID, Queue, Reason string
		First, Dead       time.Time
	}
	call := func(method, path, body string, want int, out any) {
		t.Helper()
		status, text := ask(t, s, "", method, "/admin/v1/"+path, body)
		if status != want {
			t.Fatalf("%s %s: got status %d %s, want %d", method, path, status, text, want)
		}
		if out != nil {
			expect.OK(t, json.Unmarshal([]byte(text), out))
		}
	}
	listed := func(query string, n int) (items []letter) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			var l struct{ Items []letter }
			if call("GET", "dead-letters"+query, "", 200, &l); len(l.Items) == n {
				return l.Items
			}
			if time.Now().After(end) {
				t.Fatalf("%s: got %d dead letters, want %d", query, len(l.Items), n)
			}
		}
	}
	for name, body := range map[queue.Name]string{queue.Inbox: "no event", queue.Events: `{"v":1}`, queue.Slow: "no delivery"} {
		m := queue.Outgoing{Body: []byte(body)}
		if name.FIFO() {
			m.Group = "g"
		}
		expect.OK(t, s.queues.Send(t.Context(), name, m))
	}
	t.Run("OPS-04 AWS-07 they tell their queue, a reason and since when", func(t *testing.T) {
		for query, n := range map[string]int{"": 3, "?queue=inbox": 1, "?queue=events": 1, "?queue=slow": 1, "?queue=webhooks": 0, "?event=ci.build_finished": 0, "?queue=other": 0} {
			for _, l := range listed(query, n) {
				if l.Reason == "" || l.First.IsZero() || l.Dead.Before(l.First) || query != "" && query != "?queue="+l.Queue {
					t.Errorf("%s: got %+v", query, l)
				}
			}
		}
	})
	t.Run("OPS-04 one is sent back to its queue, once", func(t *testing.T) {
		for _, name := range []string{"inbox", "events", "slow"} {
			id := listed("?queue="+name, 1)[0].ID
			var sent struct{ Queue string }
			if call("POST", "dead-letters/"+id+"/retry", "", 202, &sent); sent.Queue != name {
				t.Errorf("got %+v", sent)
			}
			call("POST", "dead-letters/"+id+"/retry", "", 404, nil)
			if name == "events" { // events are sent back through the inbox, which rejects this one
				listed("?queue=inbox", 2)
				continue
			}
			if again := listed("?queue="+name, 1)[0]; again.ID == id {
				t.Errorf("%s: the dead letter %s is still there, want a new one", name, id)
			}
		}
	})
	t.Run("OPS-04 a replay is of webhooks, unless it names a queue that takes messages", func(t *testing.T) {
		for name, want := range map[string]int{"": 0, "webhooks": 0, "slow": 1} {
			var count struct{ Count int }
			if call("POST", "replays", `{"select":{"queue":"`+name+`"},"dryRun":true}`, 200, &count); count.Count != want {
				t.Errorf("%s: it counts %d", name, count.Count)
			}
		}
		for _, name := range []string{"dead", "table:log", "other"} {
			call("POST", "replays", `{"select":{"queue":"`+name+`"},"dryRun":true}`, 400, nil)
		}
	})
}
