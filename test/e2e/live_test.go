//go:build unix

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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

	t.Run("EVS-14 a faulty file keeps the old catalog and is reported to the operator", func(t *testing.T) {
		put(t, after+"  - {name: live.two, uri: event://live/twice}\n")
		harness.Eventually(t, harness.Patience, "the complaint", func() bool {
			return strings.Contains(s.Output(), "live.yaml:") && strings.Contains(s.Output(), "reload failed")
		})
		expect.Equal(t, "the number of resources", len(s.Stateless("operator").All(t, "resources/list", "resources")), 2)
	})
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
		if !harness.Within(t, harness.Patience, told) {
			t.Errorf("the breaking change is not in the log")
		}
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
	t.Run("AUT-02 a removed key is refused, and a new one accepted", func(t *testing.T) {
		s.SetCallers(t, append(harness.SameKeys(s)[1:], harness.Caller{Principal: "newcomer", Scopes: harness.All}))
		harness.Eventually(t, harness.Patience, "the new key", func() bool {
			return s.Stateless("newcomer").Do(t, "resources/list", nil).Status == 200
		})
		expect.Equal(t, "the status", s.Stateless("alice").Do(t, "resources/list", nil).Status, 401)
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
