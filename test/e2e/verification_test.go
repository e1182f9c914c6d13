//go:build unix

package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestVerifiedRegistrations tests the challenge for SEP-1803, if the operator enables it.
func TestVerifiedRegistrations(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--verify-registrations"}})
	alice := s.Stateless("alice")
	t.Run("SRF-07 mcpevents listen echoes the challenge of its registration", func(t *testing.T) {
		ended := make(chan struct{})
		var code int
		var out, errs string
		go func() {
			defer close(ended)
			code, out, errs = s.Command(t, "alice", "listen", "--server", s.MCP, "--uri", "event://ci/build-finished", "--count", "1", "--for", harness.Patience.String())
		}()
		harness.Eventually(t, harness.Patience, "a registration", func() bool {
			return slices.ContainsFunc(alice.All(t, "resources/list", "resources"), func(r map[string]any) bool {
				uri, _ := r["uri"].(string)
				return strings.HasPrefix(uri, "subscription://")
			})
		})
		s.Publish(t, build("arrived-once", 1))
		<-ended
		if code != 0 || !strings.Contains(out, "arrived-once") {
			t.Errorf("the command ended with %d: %s\n%s", code, out, errs)
		}
	})
	t.Run("SRF-07 an endpoint that does not echo is not registered", func(t *testing.T) {
		hook := harness.NewReceiver(t).Endpoint("silent")
		hook.AnswerChallenge(func(*harness.Delivery) harness.Reply { return harness.Reply{Status: http.StatusNoContent} })
		e := alice.Refused(t, -32602, "resources/subscriptions/register", object{"uris": []string{"event://ci/build-finished"}, "targetUri": hook.URL()})
		if reason := decode[map[string]any](t, e.Data)["reason"]; reason != "challenge_failed" || !strings.Contains(e.Message, "challenge") {
			t.Errorf("the error is %v", e)
		}
	})
}
