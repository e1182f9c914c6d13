//go:build unix

package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestKeys tests --auth keys.
func TestKeys(t *testing.T) {
	t.Parallel()
	callers := append(harness.Callers(), harness.Caller{Principal: "expired", Scopes: harness.All, Expires: "2020-01-01"})
	s := harness.StartServer(t, harness.ServerOptions{Callers: callers})
	ping := func(authorization string) *harness.Answer {
		return s.Stateless("").Raw(t, http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{`+
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
			"Authorization", authorization, "Mcp-Method", "server/discover")
	}
	key := s.Keys["alice"]
	t.Run("AUT-02 a valid key", func(t *testing.T) {
		for _, header := range []string{"Bearer " + key, "bearer " + key} {
			if a := ping(header); a.Status != http.StatusOK {
				t.Errorf("status %d: %s", a.Status, a.Body)
			}
		}
	})
	refused := map[string]string{
		"no key": "", "another key": "Bearer " + key + "x", "an expired key": "Bearer " + s.Keys["expired"], "the hash of a key": "Bearer " + harness.SHA256(key),
	}
	for what, header := range refused {
		t.Run("AUT-02 "+what, func(t *testing.T) {
			a := ping(header)
			if a.Status != http.StatusUnauthorized || !strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("status %d, WWW-Authenticate %q", a.Status, a.Header.Get("WWW-Authenticate"))
			}
			if strings.Contains(string(a.Body), key) {
				t.Error("the response contains a key")
			}
		})
	}
	t.Run("AUT-02 no stream without a key", func(t *testing.T) {
		if a := s.Stateless("").Raw(t, http.MethodGet, "", "Authorization", ""); a.Status != http.StatusUnauthorized {
			t.Errorf("status %d", a.Status)
		}
	})
	t.Run("AUT-03 publishing needs its own scope", func(t *testing.T) {
		body := string(marshal(t, build("", 1)))
		for principal, want := range map[string]int{"publisher": 202, "alice": 202, "reader": 403, "": 401, "expired": 401} {
			a := s.PostEvents(t, principal, "application/json", body)
			if a.Status != want {
				t.Errorf("%q publishes: status %d, want %d", principal, a.Status, want)
			}
			if want == 403 && !strings.Contains(a.Header.Get("WWW-Authenticate")+string(a.Body), "events:publish") {
				t.Errorf("the missing scope is not named: %s", a.Body)
			}
		}
	})
	t.Run("AUT-03 the right to publish does not include reading", func(t *testing.T) {
		c := s.Stateless("publisher")
		for method, params := range map[string]object{
			"resources/list": nil, "resources/read": {"uri": "event://ci/build-finished"}, "events/list": nil,
			"subscriptions/listen":             {"notifications": object{"resourceSubscriptions": []string{"event://ci"}}},
			"resources/subscriptions/register": {"uris": []string{"event://ci"}, "targetUri": "http://127.0.0.1:9/"},
		} {
			if a := c.Do(t, method, params); a.Error == nil {
				t.Errorf("%s: %.300s", method, a.Body)
			}
		}
	})
	t.Run("AUT-02 the right to read does not include registering", func(t *testing.T) {
		c := s.Stateless("reader")
		c.Call(t, "resources/list", nil, nil)
		for method, params := range map[string]object{
			"resources/subscriptions/register": {"uris": []string{"event://ci"}, "targetUri": "http://127.0.0.1:9/"},
			"events/subscribe":                 subscription("ci.build_finished", nil, "http://127.0.0.1:9/", newSecret()),
		} {
			a := c.Do(t, method, params)
			if a.Error == nil || !strings.Contains(string(a.Body), "events:subscribe") {
				t.Errorf("%s: %.300s", method, a.Body)
			}
		}
	})
	t.Run("AUT-02 workspaces are separate", func(t *testing.T) {
		receiver := harness.NewReceiver(t)
		hook, own := receiver.Endpoint("foreign"), receiver.Endpoint("own")
		foreign := s.Stateless("foreign")
		register(t, foreign, hook, "event://ci/build-finished")
		register(t, s.Stateless("alice"), own, "event://ci/build-finished")
		stream := foreign.Listen(t, 1, object{"resourceSubscriptions": []string{"event://ci"}}, nil)
		s.Publish(t, build("here", 1))
		own.Wait(t, 1)
		if _, err := s.TryPublish(t.Context(), "foreign", build("there", 2)); err != nil {
			t.Fatal(err)
		}
		hook.Wait(t, 1)
		if got := idsOf(stream.Wait(t, 1)); !slices.Equal(got, []string{"there"}) || hook.IDs()["here"] != 0 || own.IDs()["there"] != 0 {
			t.Errorf("foreign streamed %v, delivered %v; own delivered %v", got, hook.IDs(), own.IDs())
		}
	})
}

// TestAuthNone tests where --auth none is allowed.
func TestAuthNone(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"0.0.0.0:0", "[::]:0", ":0", "192.0.2.1:0"} {
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

// restricted is a catalog whose event types require a scope or a claim.
const restricted = `
events:
  - name: open.thing
    uri: event://open/thing
    payloadSchema: {type: object}
  - name: scoped.thing
    uri: event://scoped/thing
    payloadSchema: {type: object}
    access: {scopes: [secrets]}
  - name: team.thing
    uriTemplate: event://teams/{team}/thing
    payloadSchema: {type: object}
    access: {claims: {team: team}}
  - name: stream.only
    uri: event://stream/only
    payloadSchema: {type: object}
    delivery: [push, poll]
`

// TestAccessRules tests the access rules of catalog entries.
func TestAccessRules(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Catalog: restricted})
	receiver := harness.NewReceiver(t)
	alice := s.Stateless("alice") // in team red
	hook := receiver.Endpoint("hook")
	t.Run("EVX-02 only events that the caller may see are listed", func(t *testing.T) {
		for method, member := range map[string]string{"events/list": "events", "resources/list": "resources"} {
			for _, it := range alice.All(t, method, member) {
				if it["name"] == "scoped.thing" {
					t.Errorf("%s lists %v", method, it)
				}
			}
		}
	})
	t.Run("EVX-02 the listed delivery modes are those that really work", func(t *testing.T) {
		for _, it := range alice.All(t, "events/list", "events") {
			if delivery, _ := it["delivery"].([]any); it["name"] == "stream.only" && slices.Contains(delivery, any("webhook")) {
				t.Errorf("listed with %v", delivery)
			}
		}
		a := alice.Do(t, "events/subscribe", subscription("stream.only", nil, hook.URL(), newSecret()))
		if a.Error == nil || a.Error.Code != -32014 {
			t.Errorf("events/subscribe: %s", a.Body)
		}
		alice.Refused(t, -32602, "resources/subscriptions/register", object{"uris": []string{"event://stream/only"}, "targetUri": hook.URL()})
	})
	t.Run("AUT-04 subscribe, read and listen", func(t *testing.T) {
		for _, uri := range []string{"event://scoped/thing", "event://teams/blue/thing", "event://teams/*/thing"} {
			if a := alice.Do(t, "resources/subscriptions/register", object{"uris": []string{uri}, "targetUri": hook.URL()}); a.Error == nil {
				t.Errorf("register %s: %s", uri, a.Body)
			}
			if a := alice.Do(t, "resources/read", object{"uri": uri}); a.Error == nil {
				t.Errorf("read %s: %s", uri, a.Body)
			}
			l := alice.Listen(t, 1, object{"resourceSubscriptions": []string{uri}}, nil)
			if p := decode[struct{ Notifications map[string]any }](t, l.Next(t).Params); len(p.Notifications) != 0 {
				t.Errorf("listen to %s: %v", uri, p.Notifications)
			}
		}
		register(t, alice, hook, "event://teams/red/thing")
		s.Publish(t, harness.Event{ID: "red", URI: "event://teams/red/thing", Data: object{}})
		hook.Wait(t, 1)
	})
	t.Run("AUT-04 a parent delivers only events that the caller may see", func(t *testing.T) {
		l := alice.Listen(t, 1, object{"resourceSubscriptions": []string{"event://teams"}}, nil)
		p := decode[struct{ Notifications map[string]any }](t, l.Next(t).Params)
		s.Publish(t, harness.Event{ID: "blue-1", URI: "event://teams/blue/thing", Data: object{}})
		s.Publish(t, harness.Event{ID: "red-1", URI: "event://teams/red/thing", Data: object{}})
		if len(p.Notifications) == 0 {
			return // refusing the parent is also safe
		}
		if got := idsOf(l.Wait(t, 1)); !slices.Equal(got, []string{"red-1"}) {
			t.Errorf("got %v", got)
		}
	})
}
