//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
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
	s := harness.StartServer(t, harness.ServerOptions{})
	dialect(t, &s.Target)
	t.Run("SSE-03 SSE-04 SSE-05 after a crash, a resume brings the missed events and the responses", func(t *testing.T) { dialectAfterACrash(t, s) })
}

func request(id any, method string, params object) string {
	b, _ := json.Marshal(object{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	return string(b)
}

func dialect(t *testing.T, s *harness.Target) {
	t.Run("SSE-01 SSE-03 responses arrive on the stream, which says first that it is open", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		if m := st.Next(t); m.Event != "lifecycle" || m.Method != "streamOpened" || len(c.Session) < 22 || st.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("the stream of session %q begins with %v %s %s", c.Session, st.Header, m.Event, m.Raw)
		}
		for i := range 4 { // on AWS the stream occupies its instance, so another one answers
			id := fmt.Sprintf("r%d", i)
			a := c.Raw(t, http.MethodPost, request(id, "resources/read", object{"uri": "event://ci/build-finished"}), "Accept", "application/json")
			expect.MustEqual(t, "the status", a.Status, http.StatusAccepted)
			expect.MustLen(t, "the body", a.Body, 0)
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
	})
	t.Run("SSE-04 a resume brings only notifications, from the client's position", func(t *testing.T) {
		c := s.Dialect("alice", "default")
		st := c.OpenDialect(t, "")
		a := c.Raw(t, http.MethodPost, request(1, "resources/subscribe", object{"uri": "event://chat/dialect"}))
		expect.MustEqual(t, "the status of subscribe "+string(a.Body), a.Status, http.StatusOK)
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
		expect.List(t, "the events of the resumed stream", idsOf(c.OpenDialect(t, first.SSE).Wait(t, 1)), []string{"d2"})
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
	expect.List(t, "the events of the resumed stream", idsOf(again.Wait(t, 2)), []string{"k2", "k3"})
	harness.Eventually(t, harness.Patience, "the answer", func() bool {
		return slices.ContainsFunc(again.Messages(), func(m *harness.Message) bool { return m.Event == "response" && string(m.ID) == "2" })
	})
	if a := c.Raw(t, http.MethodPost, request(1, "ping", nil), "Accept", "application/json"); a.Status != http.StatusBadRequest {
		t.Errorf("SSE-05: an old id: status %d", a.Status)
	}
}
