//lint:file-ignore SA1019 The revisions that have log messages are still served.

package mcp

import (
	"context"
	"encoding/json"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// TestGoSDKLogs lets the official client ask for log messages.
func TestGoSDKLogs(t *testing.T) {
	for _, v := range []mcpspec.Version{mcpspec.V20250326, mcpspec.V20250618, mcpspec.V20251125} {
		t.Run("SES-05_at_"+string(v), func(t *testing.T) {
			f := newFixture(t, nil)
			messages := make(chan *sdk.LoggingMessageParams, 20)
			client := f.connect(alice, string(v), &sdk.ClientOptions{
				LoggingMessageHandler: func(_ context.Context, r *sdk.LoggingMessageRequest) { messages <- r.Params },
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			must(t, client.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: "notice"}))
			if err := client.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: "loud"}); err == nil {
				t.Error("a level that there is not was taken")
			}
			must(t, client.Subscribe(ctx, &sdk.SubscribeParams{URI: "event://ci/build-finished"}))
			f.waitFor("the stream", func() bool { return f.tails.Running() == 4 })
			f.catalogs.Replace(mustParse(t, "events:\n  - {name: ci.deploy, uri: event://ci/deploy}\n"))
			must(t, f.log.Notify(ctx, "default", "catalog", json.RawMessage(`{}`)))
			select {
			case m := <-messages:
				data, _ := m.Data.(map[string]any)
				if m.Level != "warning" || data["uri"] != "event://ci/build-finished" {
					t.Errorf("got %+v", m)
				}
			case <-ctx.Done():
				t.Error("nothing was told")
			}
		})
	}
}
