//go:build unix

package e2e

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestAuthNone tests where --auth none is allowed.
func TestAuthNone(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"[::]:0", ":0"} {
		t.Run("AUT-08 refused at "+addr, func(t *testing.T) {
			s := harness.NewServer(t, harness.ServerOptions{Auth: "none", Args: []string{"--addr", addr}})
			err := s.TryStart(t.Context())
			if err == nil {
				t.Fatal("the server started")
			}
			if out := s.Output(); !strings.Contains(out, "none") || !strings.Contains(out, "loopback") {
				t.Errorf("the output lacks the reason: %s", out)
			}
		})
	}
	t.Run("AUT-08 allowed on loopback", func(t *testing.T) {
		s := harness.StartServer(t, harness.ServerOptions{Auth: "none"})
		s.Publish(t, build("", 1))
	})
	t.Run("AUT-02 keys without a key do not start", func(t *testing.T) {
		s := harness.NewServer(t, harness.ServerOptions{Callers: []harness.Caller{}})
		if s.TryStart(t.Context()) == nil {
			t.Error("the server started")
		}
	})
}
