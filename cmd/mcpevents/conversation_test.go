package main

import (
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/fault"
)

const chatter = `
events:
  - name: conversation.user_message
    uri: event://conversation/user-message
    description: Said by a user.
    payloadSchema: {type: object}
`

// CNV-07: a server whose catalog does not say who may have the events of conversations does not start,
// and one that runs does not take such a catalog or configuration.
func TestConversationNeedsARule(t *testing.T) {
	settings := func(catalog, src string) server.Options {
		c, err := config.Parse([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		return server.Options{
			Addr: "127.0.0.1:0", Data: ":memory:", Catalog: []byte(catalog), CatalogName: "catalog.yaml", Config: c,
			Auth: auth.ModeNone, Limits: config.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
		}
	}
	const events = "conversation: {userMessages: true, events: {userMessage: true}}\n"
	const ruled = chatter + "    access: {scopes: [conversation]}\n"
	faults := map[string]struct {
		catalog, config, want string
	}{
		"no rule":      {chatter, events, "needs an access rule"},
		"no event":     {strings.Replace(ruled, "user-message", "message", 1), events, "declares no event type with the URI event://conversation/user-message"},
		"no secret":    {ruled, "conversation: {userMessages: true, providers: [{name: a, url: 'http://x', headers: {Authorization: 'env:NO_SUCH_SECRET'}}]}\n", "NO_SUCH_SECRET"},
		"no workspace": {ruled, "conversation: {userMessages: true, events: {userMessage: true, workspace: other}}\n", ""},
	}
	for name, tc := range faults {
		e, err := server.New(t.Context(), settings(tc.catalog, tc.config))
		if err == nil {
			e.Shutdown(t.Context())
		}
		if (err == nil) != (tc.want == "") || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	e, err := server.New(t.Context(), settings(ruled, events))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Shutdown(t.Context())
	for name, tc := range faults {
		if err := e.Reload(t.Context(), settings(tc.catalog, tc.config)); (err == nil) != (tc.want == "") {
			t.Errorf("%s: reloaded with %v", name, err)
		}
	}
	// Nor is it applied to a deployment.
	dir := t.TempDir()
	files := map[string]string{"catalog.yaml": chatter, "config.yaml": events}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, _, errs := command(t, "", "catalog", "apply", "--table", "none", "--config", filepath.Join(dir, "config.yaml"), filepath.Join(dir, "catalog.yaml"))
	if code != exitRefused || !strings.Contains(errs, "needs an access rule") {
		t.Errorf("apply: exit code %d: %s", code, errs)
	}
	// CNV-06: with --auth none nobody can consent for everybody.
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, e.URL+"/consent/events", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "--allow-insecure-targets") {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}
