// Package servertest starts stand-alone servers for the tests of other packages.
package servertest

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/harness"
)

// Patience limits how long a test waits for an expected result.
const Patience = 20 * time.Second

// Caller describes the rights of a caller. Tests have callers in a map. The map's key is the name of the caller's principal, and also its
// API key.
type Caller struct {
	Workspace string
	Scopes    string // separated by commas
}

// Options returns the options of a server for tests. The server has the sample catalog and sends webhooks to any URL. If the parameter
// callers is nil, the server does not authenticate callers.
func Options(t *testing.T, callers map[string]Caller) standalone.Options {
	t.Helper()
	catalog, err := os.ReadFile(filepath.Join(harness.Root(t), "catalog.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	o := standalone.Options{
		Addr: "127.0.0.1:0", Data: t.TempDir(), Catalog: catalog, CatalogName: "catalog.yaml", Auth: auth.ModeNone,
		Limits: standalone.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
	}
	o.Limits.AllowInsecureTargets = true
	if callers != nil {
		o.Auth, o.Config = auth.ModeKeys, Config(t, callers, "")
	}
	return o
}

// Config returns a configuration with an API key for each caller. The parameter more is the YAML text of the other sections of the
// configuration.
func Config(t *testing.T, callers map[string]Caller, more string) *config.Config {
	t.Helper()
	text := "keys:\n"
	for name, c := range callers {
		text += fmt.Sprintf("  - {principal: %s, workspace: %s, scopes: [%s], sha256: %x}\n", name, c.Workspace, c.Scopes, sha256.Sum256([]byte(name)))
	}
	c, err := config.ParseFile("config.yaml", []byte(text+more))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Start starts a server for the duration of the test.
func Start(t *testing.T, o standalone.Options) *standalone.Server {
	t.Helper()
	s, err := standalone.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { End(t, s) })
	return s
}

// End shuts a server down before the end of the test.
func End(t *testing.T, s *standalone.Server) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections() // because a server waits 5 s for an unused connection
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("end the server: %v", err)
	}
}

// Subscribe calls resources/subscriptions/register as the given principal. The subscription sends the events of the URIs to the URL
// endpoint. Subscribe returns the id of the subscription. The parameter url is the server's URL.
func Subscribe(t *testing.T, url, principal, endpoint string, uris ...string) string {
	t.Helper()
	c, err := client.Connect(t.Context(), url, client.Options{Key: principal, Agent: "test/1", Revision: string(spec.V20260728)})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Subscription struct{ URI string } }
	if err := c.Call(t.Context(), "resources/subscriptions/register", map[string]any{"uris": uris, "targetUri": endpoint}, &got); err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(got.Subscription.URI, "subscription://")
}

// SubscribeEvents calls events/subscribe as the given principal. The subscription sends the events of the type with the given name to the
// URL endpoint. SubscribeEvents returns the id of the subscription. The endpoint must pass the challenge, for example with [Echo].
func SubscribeEvents(t *testing.T, url, principal, endpoint, name string, arguments map[string]any) string {
	t.Helper()
	c, err := client.Connect(t.Context(), url, client.Options{Key: principal, Agent: "test/1", Revision: string(spec.V20260728)})
	if err != nil {
		t.Fatal(err)
	}
	secret := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))
	var got struct{ ID string }
	if err := c.Call(t.Context(), spec.MethodEventsSub, map[string]any{
		"name": name, "arguments": arguments, "delivery": map[string]any{"mode": "webhook", "url": endpoint, "secret": secret},
	}, &got); err != nil {
		t.Fatal(err)
	}
	return got.ID
}

// Echo answers the challenge that a server sends to a new webhook endpoint, by repeating it. For any other request, Echo returns false
// and writes no response.
func Echo(w http.ResponseWriter, r *http.Request) bool {
	if !strings.HasPrefix(r.Header.Get("Webhook-Id"), webhook.VerificationPrefix) {
		return false
	}
	_, _ = io.Copy(w, r.Body)
	return true
}
