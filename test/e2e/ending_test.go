//go:build unix

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// Catalogs of the workspace whose subscriptions end.
const (
	granted = `
events:
  - {name: ending.kept, uri: event://ending/kept, payloadSchema: {type: object}}
  - {name: ending.locked, uri: event://ending/locked, payloadSchema: {type: object}}
  - {name: ending.changed, uri: event://ending/changed, payloadSchema: {type: object}}
  - {name: ending.gone, uri: event://ending/gone, payloadSchema: {type: object}}
`
	takenAway = `
events:
  - {name: ending.kept, uri: event://ending/kept, payloadSchema: {type: object, properties: {n: {type: integer}}}}
  - {name: ending.locked, uri: event://ending/locked, payloadSchema: {type: object}, access: {scopes: [locksmith]}}
  - {name: ending.changed, uri: event://ending/changed, payloadSchema: {type: object, required: [n]}}
  - {name: ending.secret, uri: event://ending/secret, payloadSchema: {type: object}, access: {scopes: [locksmith]}}
`
)

// TestEnding changes the catalog while there are webhook subscriptions. TestOnLocalAWS does the same on AWS.
func TestEnding(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ending.yaml")
	replaceFile(t, file, granted)
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--workspace-catalog", "ending=" + file, "--events-retry-schedule", "0s,1s,1s", "--allow-breaking"}})
	ending(t, &s.Target, func(t *testing.T) { replaceFile(t, file, takenAway) })
}

func ending(t *testing.T, s *harness.Target, change func(*testing.T)) {
	c := s.Stateless("leaver")
	hooks := harness.NewReceiver(t)
	ends := map[string]struct {
		code int
		data string
	}{
		"locked":  {-32012, `{"reason":"Access revoked"}`},
		"changed": {-32014, `{"feature":"payloadSchema","reason":"schema_changed"}`},
		"gone":    {-32011, `{"kind":"event"}`},
	}
	events, ids := map[string]*harness.Endpoint{}, map[string]string{}
	for _, name := range []string{"kept", "locked", "changed", "gone"} {
		events[name] = hooks.Endpoint(name)
		ids[name] = subscribe(t, c, events[name], "ending."+name, nil).ID
	}
	standard, parent := hooks.Endpoint("standard"), hooks.Endpoint("parent")
	registered := register(t, c, standard, "event://ending/gone", "event://ending/kept").Subscription.URI
	register(t, c, parent, "event://ending")
	watch := c.Listen(t, 1, object{"resourcesListChanged": true, "resourceSubscriptions": []string{registered}}, nil)
	watch.Next(t)
	events["locked"].Answer(func(n int, _ *harness.Delivery) harness.Reply { return harness.Reply{Status: 503 * (n & 1)} })

	change(t)

	t.Run("EVX-13 EVX-17 AUT-04 a signed message announces the end and its reason, even if no event is published", func(t *testing.T) {
		for name, want := range ends {
			got := events[name].Wait(t, 1)
			isEnd(t, got, events[name].Secret(), want.code, want.data)
			expect.Equal(t, name+": the subscription", got[0].Header.Get("X-MCP-Subscription-Id"), ids[name])
		}
	})
	t.Run("EVX-13 it is retried like an event, with the same id", func(t *testing.T) {
		got := events["locked"].WaitAttempts(t, 2)
		expect.Equal(t, "the id", got[0].ID(), got[1].ID())
		expect.Equal(t, "the body", string(got[0].Body), string(got[1].Body))
	})
	t.Run("EVX-17 a subscription of SEP-1803 is disabled, and its owner is notified", func(t *testing.T) {
		harness.Eventually(t, harness.Patience, "both notifications", func() bool {
			return count(watch, "notifications/resources/updated") > 0 && count(watch, "notifications/resources/list_changed") > 0
		})
		var read struct{ Contents []struct{ Text string } }
		c.Call(t, "resources/read", object{"uri": registered}, &read)
		state := decode[struct{ State, Reason string }](t, []byte(read.Contents[0].Text))
		expect.Equal(t, "the state", state.State, "disabled")
		expect.Contains(t, "the reason", state.Reason, "ending.gone")
	})
	t.Run("EVX-17 AUT-04 an addition ends no subscription, and a parent receives unrestricted events", func(t *testing.T) {
		for n, name := range []string{"secret", "locked", "kept", "kept"} {
			e := harness.Event{ID: fmt.Sprint(name, "-", n), URI: "event://ending/" + name, Data: object{"n": n}}
			expect.OK(t, expect.ErrOf(s.TryPublish(t.Context(), "leaver", e)))
			if name == "kept" { // when this has arrived everywhere, the earlier ones would have arrived
				events["kept"].Wait(t, n-1)
				parent.Wait(t, n-1)
			}
		}
		for _, e := range []*harness.Endpoint{events["kept"], parent} {
			if ids := e.IDs(); len(ids) != 2 || ids["kept-2"] == 0 || ids["kept-3"] == 0 {
				t.Errorf("%s got %v, want kept-2 and kept-3", e.Name, ids)
			}
		}
		for _, e := range []*harness.Endpoint{events["locked"], events["gone"], standard} {
			for id := range e.IDs() {
				if !strings.HasPrefix(id, "msg_terminated_") {
					t.Errorf("%s got %s after its end", e.Name, id)
				}
			}
		}
	})
}

// isEnd checks that the last message announces the end of the subscription, with the reason.
func isEnd(t *testing.T, got []*harness.Delivery, secret string, code int, data string) {
	t.Helper()
	d := got[len(got)-1]
	expect.OK(t, d.Verify(secret), "the signature")
	if !strings.HasPrefix(d.ID(), "msg_terminated_") || len(d.ID()) < len("msg_terminated_")+16 {
		t.Errorf("webhook-id %q", d.ID())
	}
	body := decode[struct {
		Type  string
		Error struct {
			Code    int
			Message string
			Data    json.RawMessage
		}
	}](t, d.Body)
	if body.Type != "terminated" || body.Error.Code != code || body.Error.Message == "" || string(body.Error.Data) != data {
		t.Errorf("got %s, want the code %d and the data %s", d.Body, code, data)
	}
}

// Catalogs of the workspace that changes.
const (
	before = `
events:
  - {name: live.one, uri: event://live/one, payloadSchema: {type: object}}
`
	after = before + `
  - {name: live.two, uri: event://live/two, payloadSchema: {type: object}}
`
)

// replaceFile replaces a file with a new one, as editors do.
func replaceFile(t *testing.T, file, text string) {
	t.Helper()
	expect.OK(t, errors.Join(os.WriteFile(file+"~", []byte(text), 0o600), os.Rename(file+"~", file)))
}

// TestLiveCatalog changes the catalog while clients are connected. TestOnLocalAWS does the same on AWS.
func TestLiveCatalog(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "live.yaml")
	put := func(t *testing.T, text string) { t.Helper(); replaceFile(t, file, text) }
	put(t, before)
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--workspace-catalog", "live=" + file}})
	liveCatalog(t, &s.Target, func(t *testing.T) { put(t, after) })

	t.Run("EVS-14 SIGHUP reloads the files, and a breaking change is logged", func(t *testing.T) {
		c := s.Stateless("operator")
		l := c.Listen(t, 1, object{"resourcesListChanged": true}, nil)
		l.Next(t)
		put(t, before)
		s.Signal(syscall.SIGHUP)
		if m := l.Next(t); m.Method != "notifications/resources/list_changed" {
			t.Errorf("got %s", m.Raw)
		}
		told := func() bool {
			return strings.Contains(s.Output(), "is removed") && strings.Contains(s.Output(), `"breaking":true`)
		}
		expect.True(t, "the breaking change is in the log", harness.Within(t, harness.Patience, told))
	})
	t.Run("EVS-14 SUB-08 a client that reconnects is notified of a change while the server was down", func(t *testing.T) {
		l := s.Stateless("operator").Listen(t, 1, object{"resourcesListChanged": true}, nil)
		var cursor string
		expect.OK(t, json.Unmarshal(harness.Meta(l.Next(t).Params, harness.Prefix+"cursor"), &cursor))
		s.Stop()
		put(t, after)
		s.Start()
		l = s.Stateless("operator").Listen(t, 2, object{"resourcesListChanged": true}, object{harness.Prefix + "cursor": cursor})
		l.Next(t)
		if m := l.Next(t); m.Method != "notifications/resources/list_changed" {
			t.Errorf("got %s", m.Raw)
		}
	})
}

func liveCatalog(t *testing.T, s *harness.Target, change func(*testing.T)) {
	stateless, sessionBased := s.Stateless("operator"), s.SessionBased(t, "operator", harness.V20251125)
	parent := object{"resourceSubscriptions": []string{"event://live"}}
	all := object{"resourcesListChanged": true, "eventsListChanged": true, "resourceSubscriptions": []string{"event://live"}}
	asked, silent := stateless.Listen(t, 1, all, nil), stateless.Listen(t, 2, parent, nil)
	early := stateless.Listen(t, 3, all, nil)
	var cursor string
	expect.OK(t, json.Unmarshal(harness.Meta(early.Next(t).Params, harness.Prefix+"cursor"), &cursor))
	early.Close()
	sessionBased.Call(t, "resources/subscribe", object{"uri": "event://live"}, nil)
	session := sessionBased.Open(t, "")
	push := stateless.Stream(t, 4, "events/stream", object{"name": "live.one", "arguments": object{}})

	change(t)
	harness.Eventually(t, harness.Patience, "the new event type", func() bool {
		return len(stateless.All(t, "resources/list", "resources")) == 2
	})
	publish := func(id, uri string) {
		expect.OK(t, expect.ErrOf(s.TryPublish(t.Context(), "operator", harness.Event{ID: id, URI: uri, Data: object{}})))
	}
	late := stateless.Listen(t, 5, all, object{harness.Prefix + "cursor": cursor})
	for what, st := range map[string]*harness.Stream{"listen": asked, "session": session, "resumed": late} {
		harness.Eventually(t, harness.Patience, what+" is announced", func() bool { return count(st, "notifications/resources/list_changed") > 0 })
	}
	publish("two", "event://live/two")
	publish("one", "event://live/one")

	t.Run("EVS-14 events follow the new catalog, even for earlier subscriptions to the parent", func(t *testing.T) {
		for what, st := range map[string]*harness.Stream{"listen": asked, "silent": silent, "session": session, "resumed": late} {
			got := idsOf(st.Wait(t, 2))
			slices.Sort(got)
			expect.List(t, "the events of "+what, got, []string{"one", "two"})
		}
	})
	t.Run("EVS-14 EVX-18 SUB-03 each stream that asked for it is notified once, and others are not", func(t *testing.T) {
		for what, want := range map[string]struct {
			*harness.Stream
			resources, events int
		}{
			"listen": {asked, 1, 1}, "resumed": {late, 1, 1}, "session": {session, 1, 0}, "silent": {silent, 0, 0}, "events/stream": {push, 0, 0},
		} {
			if n, m := count(want.Stream, "notifications/resources/list_changed"), count(want.Stream, "notifications/events/list_changed"); n != want.resources || m != want.events {
				t.Errorf("%s: %d resources/list_changed and %d events/list_changed, want %d and %d", what, n, m, want.resources, want.events)
			}
		}
	})
	t.Run("EVX-17 an additive change ends no subscription", func(t *testing.T) {
		harness.Eventually(t, harness.Patience, "the event", func() bool { return count(push, "notifications/events/event") == 1 })
	})
}

func count(s *harness.Stream, method string) (n int) {
	for _, m := range s.Messages() {
		if m.Method == method {
			n++
		}
	}
	return n
}
