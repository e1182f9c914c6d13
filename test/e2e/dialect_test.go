//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// elsewhere is the catalog of another workspace.
const elsewhere = `
events:
  - name: elsewhere.thing
    uri: event://elsewhere/thing
    payloadSchema: {type: object}
`

// TestDialect tests the named-event dialect of the stand-alone server. TestOnLocalAWS does the same on AWS.
func TestDialect(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "elsewhere.yaml")
	if err := os.WriteFile(file, []byte(elsewhere), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--workspace-catalog", "elsewhere=" + file}})
	dialect(t, &s.Target)
	t.Run("SSE-03 SSE-04 SSE-05 after a crash, a resume brings the missed events and the responses", func(t *testing.T) { dialectAfterACrash(t, s) })
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
		for c, uri := range map[*harness.Client]string{alice: "event://chat/separate", foreign: "event://elsewhere/thing"} {
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
		s.Publish(t, messageIn("separate", "own", "general"))
		if got := idsOf(own.Wait(t, 1)); !slices.Equal(got, []string{"own"}) {
			t.Errorf("default got %v", got)
		}
		if got := idsOf(theirs.Wait(t, 1)); !slices.Equal(got, []string{"theirs"}) {
			t.Errorf("elsewhere got %v", got)
		}
	})
	t.Run("SSE-01 SSE-03 responses arrive on the stream, which says first that it is open, or in the POST, as requested", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		if m := st.Next(t); m.Event != "lifecycle" || m.Method != "streamOpened" || len(c.Session) < 22 || st.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("the stream of session %q begins with %v %s %s", c.Session, st.Header, m.Event, m.Raw)
		}
		for i := range 10 { // on AWS the stream occupies its instance, so another one answers
			id := fmt.Sprintf("r%d", i)
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
		}
		// This method is served by another function.
		hook := harness.NewReceiver(t).Endpoint("dialect")
		c.Raw(t, http.MethodPost, request("w", "resources/subscriptions/register", object{"uris": []string{"event://chat/dialect-hook"}, "targetUri": hook.URL()}), "Accept", "application/json")
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
		s.Publish(t, messageIn("dialect-hook", "hooked", "general"))
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
}

func dialectAfterACrash(t *testing.T, s *harness.Server) {
	c := s.Dialect("alice", "default")
	st := c.OpenDialect(t, "")
	if a := c.Raw(t, http.MethodPost, request(1, "resources/subscribe", object{"uri": "event://github/acme"})); a.Status != http.StatusOK {
		t.Fatalf("subscribe: %d %s", a.Status, a.Body)
	}
	s.Publish(t, pullRequest("k1", "acme", "api", 1))
	last := st.Wait(t, 1)[0].SSE
	s.Publish(t, pullRequest("k2", "acme", "api", 2))
	s.Kill()
	<-st.Ended()
	s.Start()
	s.Publish(t, pullRequest("k3", "acme", "api", 3))
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
}
