//go:build unix

package e2e

import (
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestPlainClient tests a client that does not know about events: the official one, with ordinary handlers, at each
// revision that it supports.
func TestPlainClient(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Auth: "none"})
	for _, version := range []string{harness.V20250326, harness.V20250618, harness.V20251125, harness.V20260728} {
		t.Run("EVS-15 "+version, func(t *testing.T) {
			c := s.SDK(t, "", version, harness.SDKOptions{ListChanged: true})
			browse(t, c)
			c.Follow(t, "event://ci/build-finished")
			id := "plain-" + version
			s.Publish(t, build(id, 1))
			harness.Eventually(t, harness.Patience, "the update", func() bool { return len(c.Updates()) == 1 })
			if u := c.Updates()[0]; u.URI != "event://ci/build-finished" || u.EventID != id {
				t.Errorf("got %+v", u)
			}
			if _, err := c.ListTools(t.Context(), nil); err == nil {
				t.Error("tools/list succeeded without a backend")
			}
			if err := c.Unsubscribe(t.Context(), &sdk.UnsubscribeParams{URI: "event://ci/build-finished"}); err != nil {
				t.Errorf("unsubscribe: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}
