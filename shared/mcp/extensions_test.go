package mcp

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestEndpointWithoutExtensions shows that the endpoint works without each of the features that register themselves, and does not
// advertise them (EVS-01).
func TestEndpointWithoutExtensions(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Dialect, o.Conversation, o.EventTools = nil, nil, nil })
	t.Run("SSE-06 without the dialect, every workspace is unknown", func(t *testing.T) {
		for _, verb := range []string{http.MethodGet, http.MethodPost} {
			req := f.request(verb, alice, "")
			req.SetPathValue(PathWorkspace, "default")
			w := httptest.NewRecorder()
			f.endpoint.ServeHTTP(w, req)
			if w.Code != http.StatusNotFound {
				t.Errorf("%s: got status %d, want 404", verb, w.Code)
			}
		}
	})
	for name, method := range map[string]string{
		"conversations": conversation.UserMessage.Method(),
		"event tools":   spec.MethodToolsList,
	} {
		t.Run("EVS-01 without "+name+", their methods are unknown", func(t *testing.T) {
			got := f.stateless(alice, method, "")
			if got.Status != http.StatusNotFound || !strings.Contains(got.Body, `"code":-32601`) {
				t.Errorf("%s: got %d %s, want 404 with the code -32601", method, got.Status, got.Body)
			}
		})
	}
	t.Run("EVS-01 they are not advertised", func(t *testing.T) {
		got := f.stateless(alice, spec.MethodDiscover, "")
		for _, member := range []string{"conversationEvents", spec.ConversationExtension, `"tools"`, "instructions"} {
			if strings.Contains(got.Body, member) {
				t.Errorf("server/discover has %s, want nothing about it: %s", member, got.Body)
			}
		}
	})
	t.Run("EVS-02 the other methods work", func(t *testing.T) {
		if got := f.stateless(alice, spec.MethodResources, ""); got.Status != http.StatusOK || !strings.Contains(got.Body, "event://ci/build-finished") {
			t.Errorf("resources/list: got %d %s, want the event types", got.Status, got.Body)
		}
	})
}
