//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// elsewhere is the catalog of another workspace.
const elsewhere = `
events:
  - name: elsewhere.thing
    uri: event://elsewhere/thing
    payloadSchema: {type: object}
`

// TestDialect tests the named-event dialect, stand-alone and with the functions.
func TestDialect(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "elsewhere.yaml")
		if err := os.WriteFile(file, []byte(elsewhere), 0o600); err != nil {
			t.Fatal(err)
		}
		dialect(t, &harness.StartServer(t, harness.ServerOptions{Args: []string{"--workspace-catalog", "elsewhere=" + file}}).Target)
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		aws := harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick})
		aws.ApplyCatalog(t, "elsewhere", elsewhere)
		dialect(t, &aws.Target)
	})
}

func request(id any, method string, params object) string {
	b, _ := json.Marshal(object{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	return string(b)
}

func dialect(t *testing.T, s *harness.Target) {
	t.Run("SSE-06 workspaces are separate, and a hidden one looks like one that does not exist", func(t *testing.T) {
		foreign, alice := s.Dialect("foreign", "elsewhere"), s.Dialect("alice", "default")
		list := request(1, "resources/list", nil)
		harness.Eventually(t, harness.Patience, "the catalog of the other workspace", func() bool {
			return foreign.Raw(t, http.MethodPost, list, "Accept", "application/json").Status == http.StatusOK
		})
		if a := foreign.Raw(t, http.MethodPost, list); !strings.Contains(string(a.Body), "elsewhere.thing") || strings.Contains(string(a.Body), "ci.build") {
			t.Errorf("elsewhere: %.300s", a.Body)
		}
		if a := alice.Raw(t, http.MethodPost, list); strings.Contains(string(a.Body), "elsewhere.thing") || !strings.Contains(string(a.Body), "ci/build-finished") {
			t.Errorf("default: %.300s", a.Body)
		}
		var first *harness.Answer
		for _, workspace := range []string{"elsewhere", "nowhere"} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				a := s.Dialect("alice", workspace).Raw(t, method, map[string]string{http.MethodPost: list}[method])
				for _, own := range []string{"Date", "X-Amzn-Requestid", "X-Amzn-Trace-Id"} {
					a.Header.Del(own)
				}
				if first == nil {
					first = a
				}
				if a.Status != http.StatusNotFound || string(a.Body) != string(first.Body) || !maps.EqualFunc(a.Header, first.Header, slices.Equal[[]string]) {
					t.Errorf("%s %s: %d %v %s, want as %v %s", method, workspace, a.Status, a.Header, a.Body, first.Header, first.Body)
				}
			}
		}
		// The publisher's key determines an event's workspace.
		own, theirs := alice.OpenDialect(t, ""), foreign.OpenDialect(t, "")
		for c, uri := range map[*harness.Client]string{alice: "event://ci/build-finished", foreign: "event://elsewhere/thing"} {
			if a := c.Raw(t, http.MethodPost, request("s", "resources/subscribe", object{"uri": uri})); a.Error != nil || a.Status != http.StatusOK {
				t.Fatalf("subscribe to %s: %d %s", uri, a.Status, a.Body)
			}
		}
		if _, err := s.TryPublish(t.Context(), "foreign", harness.Event{ID: "theirs", URI: "event://elsewhere/thing", Data: object{}}); err != nil {
			t.Fatal(err)
		}
		if a := s.PostEvents(t, "foreign", "application/json", `{"uri":"event://ci/build-finished","data":{"build":1,"status":"passed"}}`); a.Status != http.StatusNotFound {
			t.Errorf("an event type of another workspace: status %d", a.Status)
		}
		s.Publish(t, build("own", 1))
		if got := idsOf(own.Wait(t, 1)); !slices.Equal(got, []string{"own"}) {
			t.Errorf("default got %v", got)
		}
		if got := idsOf(theirs.Wait(t, 1)); !slices.Equal(got, []string{"theirs"}) {
			t.Errorf("elsewhere got %v", got)
		}
	})
	t.Run("SSE-01 the stream opens with its headers, a session and streamOpened", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		// The harness requests a separate connection, which is answered with close. This request does not.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.Key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "Connection": "keep-alive"} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		m := st.Next(t)
		var p struct{ Timestamp time.Time }
		if err := json.Unmarshal(m.Params, &p); err != nil || m.Event != "lifecycle" || m.Method != "streamOpened" || time.Since(p.Timestamp).Abs() > time.Minute {
			t.Errorf("first event %s %s: %v", m.Event, m.Raw, err)
		}
		if len(c.Session) < 22 {
			t.Errorf("session id %q", c.Session)
		}
	})
	t.Run("SSE-03 responses arrive on the stream or in the POST, as requested", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		st.Next(t)
		var took []time.Duration
		for i := range 10 { // on AWS the stream occupies its instance, so another one answers
			id := fmt.Sprintf("r%d", i)
			began := time.Now()
			a := c.Raw(t, http.MethodPost, request(id, "resources/read", object{"uri": "event://ci/build-finished"}), "Accept", "application/json")
			if a.Status != http.StatusAccepted || len(a.Body) != 0 {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
			m := st.Next(t)
			for m.Event == "lifecycle" || strings.HasSuffix(m.Method, "/list_changed") { // a heartbeat, or the catalog of a new deployment
				m = st.Next(t)
			}
			if m.Event != "response" || string(m.ID) != `"`+id+`"` || m.Result == nil || m.Error != nil {
				t.Fatalf("got %s %.300s", m.Event, m.Raw)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("from the POST to the answer on the stream: median %v, longest %v", took[len(took)/2], took[len(took)-1])
		// This method is served by another function.
		hook := harness.NewReceiver(t).Endpoint("dialect")
		c.Raw(t, http.MethodPost, request("w", "resources/subscriptions/register", object{"uris": []string{"event://ci/build-finished"}, "targetUri": hook.URL()}), "Accept", "application/json")
		var r registered
		harness.Eventually(t, harness.Patience, "the answer to register", func() bool {
			for _, m := range st.Messages() {
				if m.Event == "response" && string(m.ID) == `"w"` {
					return json.Unmarshal(m.Result, &r) == nil
				}
			}
			return false
		})
		hook.SetSecret(r.Subscription.WebhookSecret.Key)
		s.Publish(t, build("dialect-hook", 1))
		hook.Wait(t, 1)

		c.Session = ""
		if a := c.Raw(t, http.MethodPost, request(1, "ping", nil), "Accept", "application/json"); a.Status != http.StatusOK || string(a.Body) != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("JSON: %d %s", a.Status, a.Body)
		}
		a := c.Raw(t, http.MethodPost, request(1, "ping", nil), "Accept", "text/event-stream")
		if a.Status != http.StatusOK || a.Header.Get("Content-Type") != "text/event-stream" || string(a.Body) != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("SSE: %d %v %s", a.Status, a.Header, a.Body)
		}
	})
	t.Run("SSE-03 another principal's session looks like one that does not exist", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		bob := s.Dialect("bob", "default")
		bob.Session = c.Session
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if a := bob.Raw(t, method, map[string]string{http.MethodPost: request(1, "ping", nil)}[method], "Accept", "*/*"); a.Status != http.StatusNotFound {
				t.Errorf("%s: status %d", method, a.Status)
			}
		}
		for _, m := range st.Messages() {
			if m.Event == "response" {
				t.Errorf("on alice's stream: %s", m.Raw)
			}
		}
	})
	t.Run("SSE-04 a resume brings only notifications, from the client's position", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		a := c.Raw(t, http.MethodPost, request(1, "resources/subscribe", object{"uri": "event://chat/dialect"}))
		if a.Status != http.StatusOK {
			t.Fatalf("subscribe: %d %s", a.Status, a.Body)
		}
		s.Publish(t, messageIn("dialect", "d1", "general"))
		s.Publish(t, messageIn("else", "no", "general"))
		first := st.Wait(t, 1)[0]
		for _, m := range st.Messages() {
			if m.Method == "notifications/resources/updated" && m.Event != "notification" {
				t.Errorf("an event named %q: %s", m.Event, m.Raw)
			}
		}
		st.Close()
		s.Publish(t, messageIn("dialect", "d2", "general"))
		if got := idsOf(c.OpenDialect(t, first.SSE).Wait(t, 1)); !slices.Equal(got, []string{"d2"}) {
			t.Errorf("resumed with %v", got)
		}
	})
	t.Run("SSE-05 reused ids and invalid requests are refused", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		c.OpenDialect(t, "")
		for i, want := range []int{http.StatusOK, http.StatusBadRequest} {
			a := c.Raw(t, http.MethodPost, request("once", "ping", nil), "Accept", "text/event-stream")
			if a.Status != want || i == 1 && (a.Error == nil || a.Error.Code != -32600 || string(a.ID) != `"once"`) {
				t.Errorf("time %d: %d %s", i+1, a.Status, a.Body)
			}
		}
		for body, code := range map[string]int{
			`{`: -32700, `{"jsonrpc":"2.0","id":null,"method":"ping"}`: -32600, `[]`: -32600, `{"id":2,"method":"ping"}`: -32600,
		} {
			a := c.Raw(t, http.MethodPost, body, "Accept", "application/json")
			if a.Status != http.StatusBadRequest || a.Error == nil || a.Error.Code != code || strings.Contains(string(a.Body), `"id":null`) {
				t.Errorf("%s: %d %s", body, a.Status, a.Body)
			}
		}
	})
}

// TestDialectEnds tests how the server ends a stream of the dialect.
func TestDialectEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args   []string
		stop   bool
		reason string
	}{
		"at its maximum age": {[]string{"--stream-max-age", "2s", "--heartbeat", "1s"}, false, "maxAge"},
		"at SIGTERM":         {nil, true, "shutdown"},
	} {
		t.Run("SSE-02 the server says why it closes "+name, func(t *testing.T) {
			one := harness.StartServer(t, harness.ServerOptions{Args: tc.args})
			st := one.Dialect("alice", "default").OpenDialect(t, "")
			if tc.stop {
				one.Stop()
			}
			<-st.Ended()
			messages := st.Messages()
			last := messages[len(messages)-1]
			if last.Event != "lifecycle" || last.Method != "streamClosed" || string(last.Params) != `{"reason":"`+tc.reason+`"}` || st.Err() != io.EOF {
				t.Errorf("the last message is %s %s, %v", last.Event, last.Raw, st.Err())
			}
			pings := slices.ContainsFunc(messages, func(m *harness.Message) bool { return m.Method == "ping" && m.Event == "lifecycle" })
			if pings == tc.stop || st.Comments() > 0 {
				t.Errorf("pings: %v, comments: %d", pings, st.Comments())
			}
		})
	}
	t.Run("SSE-03 SSE-04 events published while the server was down arrive after a resume", func(t *testing.T) {
		one := harness.StartServer(t, harness.ServerOptions{})
		c := one.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		if a := c.Raw(t, http.MethodPost, request(1, "resources/subscribe", object{"uri": "event://github/acme"})); a.Status != http.StatusOK {
			t.Fatalf("subscribe: %d %s", a.Status, a.Body)
		}
		one.Publish(t, pullRequest("k1", "acme", "api", 1))
		last := st.Wait(t, 1)[0].SSE
		one.Publish(t, pullRequest("k2", "acme", "api", 2))
		one.Kill()
		<-st.Ended()
		one.Start()
		one.Publish(t, pullRequest("k3", "acme", "api", 3))
		// The server did not notice the end of the stream, so its session still counts as connected.
		if a := c.Raw(t, http.MethodPost, request(2, "ping", nil), "Accept", "application/json"); a.Status != http.StatusAccepted {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		again := c.OpenDialect(t, last)
		if got := idsOf(again.Wait(t, 2)); !slices.Equal(got, []string{"k2", "k3"}) {
			t.Errorf("resumed with %v", got)
		}
		harness.Eventually(t, harness.Patience, "the answer", func() bool {
			return slices.ContainsFunc(again.Messages(), func(m *harness.Message) bool { return m.Event == "response" && string(m.ID) == "2" })
		})
		if a := c.Raw(t, http.MethodPost, request(1, "ping", nil), "Accept", "application/json"); a.Status != http.StatusBadRequest {
			t.Errorf("SSE-05: an old id: status %d", a.Status)
		}
	})
	t.Run("SSE-02 the newest stream of a session takes over", func(t *testing.T) {
		one := harness.StartServer(t, harness.ServerOptions{})
		c := one.Dialect("alice", "default")
		older := c.OpenDialect(t, "")
		id := c.Session
		newer := c.OpenDialect(t, "")
		<-older.Ended()
		messages := older.Messages()
		if last := messages[len(messages)-1]; string(last.Params) != `{"reason":"superseded"}` || c.Session != id {
			t.Errorf("the last message is %s", last.Raw)
		}
		if a := c.Raw(t, http.MethodPost, request(1, "ping", nil), "Accept", "application/json"); a.Status != http.StatusAccepted {
			t.Errorf("status %d", a.Status)
		}
		newer.Next(t)
		if m := newer.Next(t); m.Event != "response" {
			t.Errorf("got %s %s", m.Event, m.Raw)
		}
	})
}
