//go:build unix

package e2e

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestDiscovery tests how the server describes itself, with and without a session.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	session := &harness.Client{URL: s.MCP, Key: s.Keys["alice"], Version: harness.V20251125}
	for name, result := range map[string]json.RawMessage{
		"initialize": session.Initialize(t), "server/discover": s.Stateless("alice").Do(t, "server/discover", nil).Result,
	} {
		t.Run("EVS-01 EVX-01 events are advertised, and nothing that needs a backend: "+name, func(t *testing.T) {
			c := decode[struct{ Capabilities map[string]json.RawMessage }](t, result).Capabilities
			resources, extensions := decode[object](t, c["resources"]), decode[object](t, c["extensions"])
			if resources["events"] != true || resources["subscribe"] != true || resources["listChanged"] != true ||
				!reflect.DeepEqual(resources["subscription"], []any{"notification", "webhook"}) {
				t.Errorf("capabilities.resources = %v", resources)
			}
			if extensions[harness.Extension] == nil || extensions["io.modelcontextprotocol/events"] == nil || c["events"] == nil {
				t.Errorf("capabilities.extensions = %v and capabilities.events = %s, want events in both shapes", extensions, c["events"])
			}
			if c["tools"] != nil || c["prompts"] != nil {
				t.Errorf("capabilities.tools = %s and capabilities.prompts = %s, want both absent", c["tools"], c["prompts"])
			}
		})
	}
	t.Run("EVS-01 EVS-05 methods that are not advertised are unknown", func(t *testing.T) {
		for method, c := range map[string]*harness.Client{
			"tools/list": session, "prompts/list": session, "tools/call": s.Stateless("alice"), "resources/subscribe": s.Stateless("alice"),
		} {
			c.Refused(t, -32601, method, object{"name": "x", "uri": "event://ci/build-finished"})
		}
	})
}

// TestCatalogEntries tests how the sample catalog's entries are listed.
func TestCatalogEntries(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	c := s.Stateless("alice")
	find := func(t *testing.T, items []map[string]any, key, value string) map[string]any {
		t.Helper()
		for _, it := range items {
			if it[key] == value {
				return it
			}
		}
		t.Fatalf("no %s among %d items", value, len(items))
		return nil
	}
	t.Run("EVS-02 a fixed event type", func(t *testing.T) {
		r := find(t, c.All(t, "resources/list", "resources"), "uri", "event://ci/build-finished")
		meta, _ := r["_meta"].(map[string]any)
		schema, _ := meta["eventSchema"].(map[string]any)
		if r["name"] != "ci.build_finished" || r["title"] != "Build finished" || r["description"] == nil || schema["type"] != "object" {
			t.Errorf("listed as %v", r)
		}
	})
	t.Run("EVS-03 a templated event type", func(t *testing.T) {
		r := find(t, c.All(t, "resources/templates/list", "resourceTemplates"), "uriTemplate", "event://deploy/{environment}/{service}/finished")
		meta, _ := r["_meta"].(map[string]any)
		params, _ := meta["paramsSchema"].(map[string]any)
		schema, _ := meta["eventSchema"].(map[string]any)
		if params["type"] != "object" || schema["type"] != "object" || meta["webhookType"] != "deploy.finished" {
			t.Errorf("listed as %v", r)
		}
	})
	t.Run("EVX-02 events/list", func(t *testing.T) {
		e := find(t, c.All(t, "events/list", "events"), "name", "deploy.finished")
		delivery, _ := e["delivery"].([]any)
		input, _ := e["inputSchema"].(map[string]any)
		properties, _ := input["properties"].(map[string]any)
		payload, _ := e["payloadSchema"].(map[string]any)
		if e["description"] == nil || !slices.Contains(delivery, any("webhook")) || payload["type"] != "object" {
			t.Errorf("listed as %v", e)
		}
		for _, name := range []string{"environment", "service", "outcome"} {
			if properties[name] == nil {
				t.Errorf("inputSchema has no %s: %v", name, input)
			}
		}
	})
	t.Run("EVX-02 delivery lists the modes that this caller may use", func(t *testing.T) {
		for _, e := range s.Stateless("reader").All(t, "events/list", "events") {
			if delivery, _ := e["delivery"].([]any); slices.Contains(delivery, any("webhook")) || len(delivery) == 0 {
				t.Errorf("a caller without events:subscribe is offered %v of %v", delivery, e["name"])
			}
		}
	})
}

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
