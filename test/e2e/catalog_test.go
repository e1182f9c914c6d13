//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/harness"
)

// capabilities are the capabilities in the results of initialize and server/discover.
type capabilities struct {
	Capabilities map[string]json.RawMessage `json:"capabilities"`
}

// TestDiscovery tests how the server describes itself, with and without a session.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	revisions := map[string]func() json.RawMessage{
		"initialize": func() json.RawMessage {
			c := &harness.Client{URL: s.MCP, Key: s.Keys["alice"], Version: harness.V20251125}
			return c.Initialize(t)
		},
		"server/discover": func() json.RawMessage {
			var r json.RawMessage
			s.Stateless("alice").Call(t, "server/discover", nil, &r)
			return r
		},
	}
	for name, discover := range revisions {
		t.Run(name, func(t *testing.T) {
			c := decode[capabilities](t, discover()).Capabilities
			t.Run("EVS-01 capabilities of resources", func(t *testing.T) {
				r := decode[map[string]any](t, c["resources"])
				want := map[string]any{
					"events": true, "subscribe": true, "listChanged": true,
					"subscription": []any{"notification", "webhook"},
				}
				for k, v := range want {
					if !sameJSON(t, marshal(t, r[k]), marshal(t, v)) {
						t.Errorf("capabilities.resources.%s = %v, want %v", k, r[k], v)
					}
				}
			})
			t.Run("EVS-01 our extension id", func(t *testing.T) {
				members := []string{"extensions"}
				if name == "initialize" {
					members = append(members, "experimental")
				}
				for _, m := range members {
					if _, ok := decode[map[string]any](t, c[m])[harness.Extension]; !ok {
						t.Errorf("capabilities.%s = %s, want %s in it", m, c[m], harness.Extension)
					}
				}
			})
			t.Run("EVX-01 both shapes of the events capability", func(t *testing.T) {
				ext := decode[map[string]map[string]any](t, c["extensions"])["io.modelcontextprotocol/events"]
				if ext["listChanged"] != true {
					t.Errorf("capabilities.extensions = %s", c["extensions"])
				}
				if len(c["events"]) == 0 || c["events"][0] != '{' {
					t.Errorf("capabilities.events = %s, want an object", c["events"])
				}
			})
			t.Run("EVS-01 capabilities without a backend are not advertised", func(t *testing.T) {
				for _, m := range []string{"tools", "prompts", "sampling"} {
					if c[m] != nil {
						t.Errorf("capabilities.%s = %s", m, c[m])
					}
				}
			})
		})
	}
	t.Run("EVS-01 methods without a backend are unknown", func(t *testing.T) {
		for _, c := range []*harness.Client{s.Stateless("alice"), s.SessionBased(t, "alice", harness.V20251125)} {
			for _, method := range []string{"tools/list", "tools/call", "prompts/list", "prompts/get", "no/such/method"} {
				c.Refused(t, -32601, method, object{"name": "x"})
			}
		}
	})
	t.Run("EVS-05 subscribe and unsubscribe are unknown in 2026-07-28", func(t *testing.T) {
		for _, method := range []string{"resources/subscribe", "resources/unsubscribe"} {
			s.Stateless("alice").Refused(t, -32601, method, object{"uri": "event://ci/build-finished"})
		}
	})
	t.Run("EVS-01 a listen omits notifications that need a backend", func(t *testing.T) {
		l := s.Stateless("alice").Listen(t, 1, object{
			"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
		}, nil)
		p := decode[struct{ Notifications map[string]any }](t, l.Next(t).Params)
		if len(p.Notifications) != 1 || p.Notifications["resourcesListChanged"] != true {
			t.Errorf("acknowledged %v, want only resourcesListChanged", p.Notifications)
		}
	})
}

// manyTypes returns a catalog of n fixed and n templated event types.
func manyTypes(n int) string {
	var b strings.Builder
	b.WriteString("events:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: fixed.n%03d\n    uri: event://fixed/n%03d\n    title: Fixed %d\n    description: One of many.\n    payloadSchema: {type: object}\n", i, i, i)
		fmt.Fprintf(&b, "  - name: templated.n%03d\n    uriTemplate: event://templated/n%03d/{name}\n    payloadSchema: {type: object}\n    paramsSchema: {type: object, properties: {name: {type: string}}}\n    webhookType: hook.n%03d\n", i, i, i)
	}
	return b.String()
}

// TestLists tests the lists of a catalog that needs several pages.
func TestLists(t *testing.T) {
	t.Parallel()
	const n = 120
	s := harness.StartServer(t, harness.ServerOptions{Catalog: manyTypes(n)})
	for _, c := range []*harness.Client{s.Stateless("alice"), s.SessionBased(t, "alice", harness.V20251125), s.SessionBased(t, "alice", harness.V20250326)} {
		t.Run(c.Version, func(t *testing.T) {
			lists := []struct{ name, method, member, key, format string }{
				{"EVS-02 resources/list", "resources/list", "resources", "uri", "event://fixed/n%03d"},
				{"EVS-03 resources/templates/list", "resources/templates/list", "resourceTemplates", "uriTemplate", "event://templated/n%03d/{name}"},
			}
			for _, l := range lists {
				t.Run(l.name+" is paginated in a stable order", func(t *testing.T) {
					pages := c.Pages(t, l.method, l.member)
					if len(pages) < 2 {
						t.Errorf("%d items are on %d page", n, len(pages))
					}
					items := slices.Concat(pages...)
					var want, got []string
					for i := range n {
						want = append(want, fmt.Sprintf(l.format, i))
					}
					for _, it := range items {
						got = append(got, fmt.Sprint(it[l.key]))
					}
					if !slices.Equal(got, want) {
						t.Errorf("got %d items, want all of the catalog in its order: %v", len(got), got)
					}
				})
			}
			t.Run("EVX-02 events/list is paginated and complete", func(t *testing.T) {
				pages := c.Pages(t, "events/list", "events")
				if got := len(slices.Concat(pages...)); got != 2*n || len(pages) < 2 {
					t.Errorf("%d events on %d pages, want %d", got, len(pages), 2*n)
				}
			})
			t.Run("an invalid cursor is refused", func(t *testing.T) {
				c.Refused(t, -32602, "resources/list", object{"cursor": "nonsense"})
			})
		})
	}
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

// TestRead tests resources/read of event URIs.
func TestRead(t *testing.T) {
	t.Parallel()
	reading(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
}

func reading(t *testing.T, s *harness.Target) {
	type latest struct {
		Events []struct {
			EventID, Name, URI, Timestamp string
			Data                          json.RawMessage
		}
	}
	stateless, sessionBased := s.Stateless("alice"), s.SessionBased(t, "alice", harness.V20251125)
	read := func(t *testing.T, c *harness.Client, uri string) latest {
		t.Helper()
		var r contents
		c.Call(t, "resources/read", object{"uri": uri}, &r)
		if len(r.Contents) != 1 || r.Contents[0].URI != uri || r.Contents[0].MimeType != "application/json" {
			t.Fatalf("read %s: %+v", uri, r)
		}
		if !strings.Contains(r.Contents[0].Text, `"events":[`) {
			t.Errorf("events is not an array: %s", r.Contents[0].Text)
		}
		return decode[latest](t, []byte(r.Contents[0].Text))
	}
	t.Run("EVS-04 without events", func(t *testing.T) {
		for _, uri := range []string{"event://calendar/empty/changed", "event://github/readers/website/pull_request", "event://github/readers"} {
			if l := read(t, stateless, uri); len(l.Events) != 0 {
				t.Errorf("%s: %v", uri, l)
			}
		}
	})
	var ids []string
	for i := range 30 {
		id := fmt.Sprintf("pr-%d", i)
		ids = append(ids, id)
		s.Publish(t, pullRequest(id, "readers", []string{"website", "api"}[i%2], i+1))
	}
	for _, c := range []*harness.Client{stateless, sessionBased} {
		t.Run("EVS-04 the latest events in "+c.Version, func(t *testing.T) {
			var l latest
			harness.Eventually(t, harness.Patience, "the last event in the log", func() bool {
				l = read(t, c, "event://github/readers/api/pull_request")
				return len(l.Events) > 0 && l.Events[0].EventID == "pr-29"
			})
			for i, e := range l.Events {
				if want := fmt.Sprintf("pr-%d", 29-2*i); e.EventID != want || e.Name != "github.pull_request" || e.Timestamp == "" || len(e.Data) == 0 {
					t.Errorf("event %d is %+v, want %s", i, e, want)
				}
			}
			if len(l.Events) > 30 {
				t.Errorf("%d events, want a limited number", len(l.Events))
			}
		})
		t.Run("EVS-04 a parent in "+c.Version, func(t *testing.T) {
			l := read(t, c, "event://github/readers")
			seen := map[string]bool{}
			for _, e := range l.Events {
				seen[e.URI] = true
			}
			if len(seen) != 2 || !slices.Contains(ids, l.Events[0].EventID) {
				t.Errorf("the parent contains events of %v", seen)
			}
		})
	}
	t.Run("EVS-04 an unknown URI", func(t *testing.T) {
		for _, uri := range []string{"event://ci/other", "event://nowhere", "file:///etc/passwd", "subscription://sub_00000000000000000000000000000000"} {
			for c, code := range map[*harness.Client]int{sessionBased: -32002, stateless: -32602} {
				e := c.Refused(t, code, "resources/read", object{"uri": uri})
				if got := decode[map[string]any](t, e.Data)["uri"]; got != uri {
					t.Errorf("%s: data.uri = %v, want %s", c.Version, got, uri)
				}
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
	t.Run("a browser's request without an allowed origin is refused", func(t *testing.T) {
		a := s.Stateless("").Raw(t, http.MethodPost, `{}`, "Origin", "https://evil.example")
		if a.Status != http.StatusForbidden {
			t.Errorf("status %d, want 403", a.Status)
		}
	})
}
