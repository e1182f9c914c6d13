//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestSessions tests the sessions of the revisions up to 2025-11-25.
func TestSessions(t *testing.T) {
	t.Parallel()
	sessions(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
}

func sessions(t *testing.T, s *harness.Target) {
	negotiations := map[string]string{
		harness.V20250326: harness.V20250326, harness.V20250618: harness.V20250618, harness.V20251125: harness.V20251125,
		"2024-11-05": harness.V20251125, "2099-01-01": harness.V20251125,
	}
	for asked, want := range negotiations {
		t.Run("SES-01 initialize with "+asked, func(t *testing.T) {
			c := &harness.Client{URL: s.MCP, Key: s.Keys["alice"], Version: asked}
			a := c.Raw(t, http.MethodPost, string(marshal(t, object{
				"jsonrpc": "2.0", "id": 1, "method": "initialize",
				"params": object{"protocolVersion": asked, "capabilities": object{}, "clientInfo": object{"name": "x", "version": "1"}},
			})), "Mcp-Protocol-Version", "")
			var r struct{ ProtocolVersion string }
			if err := json.Unmarshal(a.Result, &r); err != nil || r.ProtocolVersion != want {
				t.Errorf("status %d, version %q, want %q: %s", a.Status, r.ProtocolVersion, want, a.Body)
			}
			if id := a.Header.Get("Mcp-Session-Id"); len(id) < 22 || strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
				t.Errorf("session id %q", id)
			}
		})
	}

	t.Run("SES-01 session ids differ, DELETE ends one", func(t *testing.T) {
		a, b := s.SessionBased(t, "alice", harness.V20251125), s.SessionBased(t, "alice", harness.V20251125)
		if a.Session == b.Session {
			t.Fatal("two sessions have the same id")
		}
		stream := a.Open(t, "")
		if got := a.Raw(t, http.MethodDelete, "").Status; got != http.StatusOK && got != http.StatusNoContent {
			t.Errorf("DELETE: status %d", got)
		}
		for what, status := range map[string]int{
			"a request":    a.Do(t, "ping", nil).Status,
			"a GET":        a.Raw(t, http.MethodGet, "").Status,
			"a DELETE":     a.Raw(t, http.MethodDelete, "").Status,
			"one never":    session(a, "nosuchsession0000000000").Do(t, "ping", nil).Status,
			"of a shape":   session(a, "!").Do(t, "ping", nil).Status,
			"another's id": other(s, b).Do(t, "ping", nil).Status,
		} {
			if status != http.StatusNotFound {
				t.Errorf("%s with an unknown session: status %d, want 404", what, status)
			}
		}
		<-stream.Ended()
		b.Call(t, "ping", nil, nil)
	})
	t.Run("SES-01 a request without session id", func(t *testing.T) {
		for _, version := range []string{harness.V20251125, harness.V20250618, harness.V20250326} {
			c := &harness.Client{URL: s.MCP, Key: s.Keys["alice"], Version: version}
			for _, method := range []string{"ping", "resources/list"} {
				if a := c.Do(t, method, nil); a.Status != http.StatusBadRequest {
					t.Errorf("%s at %s: status %d, want 400", method, version, a.Status)
				}
			}
		}
	})
	t.Run("SES-02 a GET stream has all of its session's subscriptions", func(t *testing.T) {
		a, b := s.SessionBased(t, "alice", harness.V20251125), s.SessionBased(t, "alice", harness.V20250618)
		a.Call(t, "resources/subscribe", object{"uri": "event://github/before/website/pull_request"}, nil) // before the stream is opened
		as, bs := a.Open(t, ""), b.Open(t, "")
		a.Call(t, "resources/subscribe", object{"uri": "event://github/wherever"}, nil) // after the stream was opened
		b.Call(t, "resources/subscribe", object{"uri": "event://github/wherever/api/pull_request"}, nil)
		s.Publish(t, pullRequest("s1", "before", "website", 1))
		s.Publish(t, pullRequest("s2", "wherever", "website", 2))
		s.Publish(t, pullRequest("s3", "wherever", "api", 3))
		got := idsOf(as.Wait(t, 3))
		slices.Sort(got)
		if !slices.Equal(got, []string{"s1", "s2", "s3"}) {
			t.Errorf("the first session got %v", got)
		}
		if got := idsOf(bs.Wait(t, 1)); !slices.Equal(got, []string{"s3"}) {
			t.Errorf("the second session got %v", got)
		}
		var r registered
		a.Call(t, "resources/subscriptions/register", object{"uris": []string{"event://calendar/none/changed"}, "targetUri": "http://127.0.0.1:9/"}, &r)
		for name, st := range map[string]*harness.Stream{"first": as, "second": bs} {
			harness.Eventually(t, harness.Patience, "list_changed on the "+name, func() bool {
				return slices.ContainsFunc(st.Messages(), func(m *harness.Message) bool { return m.Method == "notifications/resources/list_changed" })
			})
		}
	})

	t.Run("SES-03 a stream resumes without losing events and without events of other streams", func(t *testing.T) {
		a, b := s.SessionBased(t, "alice", harness.V20251125), s.SessionBased(t, "alice", harness.V20251125)
		stream, others := a.Open(t, ""), b.Open(t, "")
		a.Call(t, "resources/subscribe", object{"uri": "event://chat/resumes/general/message"}, nil)
		b.Call(t, "resources/subscribe", object{"uri": "event://chat/resumes/random/message"}, nil)
		publish := func(from, to int) {
			for i := from; i < to; i++ {
				s.Publish(t, messageIn("resumes", fmt.Sprintf("g%d", i), "general"), messageIn("resumes", fmt.Sprintf("r%d", i), "random"))
			}
		}
		publish(0, 10)
		first := stream.Wait(t, 10)
		others.Wait(t, 10)
		stream.Close()
		publish(10, 20)
		again := a.Open(t, first[6].SSE)
		got := idsOf(again.Wait(t, 13))
		var want []string
		for i := 7; i < 20; i++ {
			want = append(want, fmt.Sprintf("g%d", i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("resumed with %v, want %v", got, want)
		}
		seen := map[string]bool{}
		for _, u := range slices.Concat(first[:7], again.Updates(), others.Updates()) {
			if u.SSE == "" || seen[u.SSE] {
				t.Errorf("the event id %q is empty or not unique", u.SSE)
			}
			seen[u.SSE] = true
		}
	})
	t.Run("SES-03 a stream resumes from the priming event", func(t *testing.T) {
		c := s.SessionBased(t, "alice", harness.V20251125)
		c.Call(t, "resources/subscribe", object{"uri": "event://chat/primes/general/message"}, nil)
		stream := c.Open(t, "")
		harness.Eventually(t, harness.Patience, "a priming event", func() bool { return len(stream.Primes()) > 0 })
		if stream.Primes()[0] == "" {
			t.Errorf("priming events %q", stream.Primes())
		}
		stream.Close()
		s.Publish(t, messageIn("primes", "primed", "general"))
		if got := idsOf(c.Open(t, stream.Primes()[0]).Wait(t, 1)); !slices.Equal(got, []string{"primed"}) {
			t.Errorf("resumed with %v", got)
		}
		// Earlier revisions than 2025-11-25 have no priming events, and their clients would fail on them.
		old := s.SessionBased(t, "alice", harness.V20250618)
		os := old.Open(t, "")
		old.Call(t, "resources/subscribe", object{"uri": "event://chat/primes/general/message"}, nil)
		s.Publish(t, messageIn("primes", "old", "general"))
		os.Wait(t, 1)
		if len(os.Primes()) != 0 {
			t.Errorf("priming events %q at %s", os.Primes(), harness.V20250618)
		}
	})
	t.Run("SES-04 the newest GET takes over", func(t *testing.T) {
		c := s.SessionBased(t, "alice", harness.V20251125)
		c.Call(t, "resources/subscribe", object{"uri": "event://chat/acme/newest/message"}, nil)
		older := c.Open(t, "")
		newer := c.Open(t, "")
		<-older.Ended()
		s.Publish(t, message("newest", "newest"))
		if got := newer.Wait(t, 1)[0].EventID; got != "newest" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("SES-04 errors have the right statuses", func(t *testing.T) {
		c := s.SessionBased(t, "alice", harness.V20251125)
		ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
		cases := []struct {
			what, method, body string
			header             []string
			want               int
		}{
			{"GET without text/event-stream", http.MethodGet, "", []string{"Accept", "application/json"}, http.StatusNotAcceptable},
			{"POST of another type", http.MethodPost, ping, []string{"Content-Type", "text/plain"}, http.StatusUnsupportedMediaType},
			{"PUT", http.MethodPut, ping, nil, http.StatusMethodNotAllowed},
			{"an unknown version", http.MethodPost, ping, []string{"Mcp-Protocol-Version", "1999-01-01"}, http.StatusBadRequest},
			{"a batch after 2025-03-26", http.MethodPost, "[" + ping + "]", nil, http.StatusBadRequest},
			{"malformed JSON", http.MethodPost, "{", nil, http.StatusBadRequest},
		}
		for _, cs := range cases {
			if a := c.Raw(t, cs.method, cs.body, cs.header...); a.Status != cs.want {
				t.Errorf("%s: status %d, want %d: %.200s", cs.what, a.Status, cs.want, a.Body)
			}
		}
		batch := s.SessionBased(t, "alice", harness.V20250326)
		if a := batch.Raw(t, http.MethodPost, "["+ping+"]"); a.Status != http.StatusOK || a.Body[0] != '[' {
			t.Errorf("a batch at 2025-03-26: status %d: %.200s", a.Status, a.Body)
		}
	})
	t.Run("SES-05 ping, log level and completion at each revision", func(t *testing.T) {
		s.Publish(t, incident("completes", "checkout", "critical"))
		var stateless struct{ Completion struct{ Values []string } }
		ask := object{
			"ref":      object{"type": "ref/resource", "uri": "event://incidents/{service}/created"},
			"argument": object{"name": "service", "value": "check"},
		}
		harness.Eventually(t, harness.Patience, "a completion by what happened", func() bool {
			s.Stateless("alice").Call(t, "completion/complete", ask, &stateless)
			return slices.Contains(stateless.Completion.Values, "checkout")
		})
		for _, version := range []string{harness.V20251125, harness.V20250618, harness.V20250326} {
			c := s.SessionBased(t, "alice", version)
			c.Call(t, "ping", nil, nil)
			c.Call(t, "logging/setLevel", object{"level": "warning"}, nil)
			c.Refused(t, -32602, "logging/setLevel", object{"level": "loud"})
			var got struct{ Completion struct{ Values []string } }
			c.Call(t, "completion/complete", ask, &got)
			if !slices.Contains(got.Completion.Values, "checkout") {
				t.Errorf("%s: completed with %q", version, got.Completion.Values)
			}
			if status := c.Notify(t, "notifications/cancelled", object{"requestId": 1, "reason": "test"}); status != http.StatusAccepted {
				t.Errorf("%s: cancelled: status %d", version, status)
			}
		}
		s.Stateless("alice").Refused(t, -32601, "logging/setLevel", object{"level": "info"})
	})
}

// TestSessionsGoOn checks that sessions and streams outlive the process that serves them.
func TestSessionsGoOn(t *testing.T) {
	t.Parallel()
	t.Run("SES-01 a session survives a restart", func(t *testing.T) {
		one := harness.StartServer(t, harness.ServerOptions{})
		c := one.SessionBased(t, "alice", harness.V20251125)
		c.Call(t, "resources/subscribe", object{"uri": "event://ci/build-finished"}, nil)
		one.Stop()
		one.Start()
		c.Call(t, "ping", nil, nil)
		stream := c.Open(t, "")
		one.Publish(t, build("after", 1))
		if got := stream.NextUpdate(t).EventID; got != "after" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("SES-03 the server may close and let the client poll", func(t *testing.T) {
		one := harness.StartServer(t, harness.ServerOptions{Args: []string{"--stream-max-age", "1s"}})
		c := one.SessionBased(t, "alice", harness.V20251125)
		c.Call(t, "resources/subscribe", object{"uri": "event://ci/build-finished"}, nil)
		stream := c.Open(t, "")
		<-stream.Ended()
		if stream.Retry() == "" || stream.Err() != io.EOF {
			t.Errorf("ended with retry %q: %v", stream.Retry(), stream.Err())
		}
		primes := stream.Primes()
		one.Publish(t, build("between", 1))
		if got := c.Open(t, primes[len(primes)-1]).NextUpdate(t).EventID; got != "between" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("SES-03 a stream resumes after a restart", func(t *testing.T) {
		one := harness.StartServer(t, harness.ServerOptions{})
		c := one.SessionBased(t, "alice", harness.V20251125)
		stream := c.Open(t, "")
		c.Call(t, "resources/subscribe", object{"uri": "event://github/acme"}, nil)
		one.Publish(t, pullRequest("u1", "acme", "api", 1))
		last := stream.Wait(t, 1)[0].SSE
		one.Publish(t, pullRequest("u2", "acme", "api", 2))
		stream.Wait(t, 2)
		one.Kill()
		one.Start()
		one.Publish(t, pullRequest("u3", "acme", "website", 3))
		got := idsOf(c.Open(t, last).Wait(t, 2))
		slices.Sort(got) // the events have different URIs
		if !slices.Equal(got, []string{"u2", "u3"}) {
			t.Errorf("resumed with %v, want u2 and u3", got)
		}
	})
}

func idsOf(updates []*harness.Update) (ids []string) {
	for _, u := range updates {
		ids = append(ids, u.EventID)
	}
	return ids
}

// session returns the client with another session id.
func session(c *harness.Client, id string) *harness.Client {
	return &harness.Client{URL: c.URL, Key: c.Key, Version: c.Version, Session: id}
}

// other returns bob's client with the id of a session of alice's.
func other(s *harness.Target, c *harness.Client) *harness.Client {
	return &harness.Client{URL: c.URL, Key: s.Keys["bob"], Version: c.Version, Session: c.Session}
}
