package server

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/stream"
)

func types(t *testing.T, names ...string) []byte {
	t.Helper()
	src := "events:\n"
	for _, name := range names {
		src += "  - {name: " + name + ", uri: 'event://" + name + "'}\n"
	}
	return []byte(src)
}

func ownTypes(t *testing.T, names ...string) *catalog.Catalog {
	t.Helper()
	c, err := catalog.Parse(types(t, names...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func configured(t *testing.T, src string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// in lists the event types of a workspace.
func in(t *testing.T, s *Server, workspace string) (names []string) {
	t.Helper()
	c, err := s.core.Catalogs.Catalog(t.Context(), workspace)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Entries() {
		names = append(names, e.Name)
	}
	return names
}

// The files of a start are all that there are: neither catalogs nor backends of an earlier run stay.
func TestFilesOfTheStartWin(t *testing.T) {
	var o Options
	end(t, serve(t, func(s *Options) {
		s.Catalog, s.Workspaces = types(t, "shared"), map[string]*catalog.Catalog{"own": ownTypes(t, "own"), "kept": ownTypes(t, "kept")}
		s.Config = configured(t, "backends:\n  - {name: b, url: 'http://127.0.0.1:1/mcp'}\n")
		o = *s
	}))
	delete(o.Workspaces, "own")
	o.Config = nil
	for range 2 {
		s, err := New(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		for workspace, want := range map[string]string{"own": "shared", "kept": "kept", "any": "shared"} {
			if got := in(t, s, workspace); !slices.Equal(got, []string{want}) {
				t.Errorf("workspace %s has %q, want %s", workspace, got, want)
			}
		}
		if c, err := s.core.Config.Config(t.Context()); err != nil || len(c.Backends) != 0 || s.backends.Any(t.Context()) {
			t.Errorf("backends of the run before: %+v, %v", c, err)
		}
		end(t, s)
	}
	o.Workspaces["own"] = ownTypes(t, "again")
	s, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, s)
	if got := in(t, s, "own"); !slices.Equal(got, []string{"again"}) {
		t.Errorf("a catalog that is given again: %q", got)
	}
}

// What a reload applies is in use when it returns.
func TestAReloadIsInUseAtOnce(t *testing.T) {
	key := func(secret string) *config.Config {
		return configured(t, "keys:\n  - {principal: a, scopes: [events:read], sha256: "+hash(secret)+"}\n")
	}
	var o Options
	s := serve(t, func(with *Options) {
		with.Auth, with.Catalog, with.Config = auth.ModeKeys, types(t, "before"), key("key")
		o = *with
	})
	caller := func(secret string) error {
		_, err := s.core.Auth.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + secret}})
		return err
	}
	if err := caller("key"); err != nil {
		t.Fatal(err)
	}
	o.Catalog, o.Config = types(t, "after"), key("two")
	if err := s.Reload(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := in(t, s, "default"); !slices.Equal(got, []string{"after"}) {
		t.Errorf("EVS-14: the event types are %q", got)
	}
	if err := caller("two"); err != nil || !fault.Is(caller("key"), fault.Unauthenticated) {
		t.Errorf("AUT-02: the new key: %v; the old one: %v", err, caller("key"))
	}
	o.Config = nil
	if err := s.Reload(t.Context(), o); !fault.Is(err, fault.Invalid) || caller("two") != nil {
		t.Errorf("without keys nobody could call: %v", err)
	}
}

// EVS-14: who has the catalog that workspaces share is notified once of its change, also of one while the server was down;
// who has another is not.
func TestStreamsAreNotifiedOfASharedCatalog(t *testing.T) {
	var o Options
	s := serve(t, func(with *Options) {
		with.Catalog, with.Workspaces = types(t, "before"), map[string]*catalog.Catalog{"own": ownTypes(t, "own")}
		o = *with
	})
	open := func(workspace, cursor string) *stream.Feed {
		t.Helper()
		f, err := s.tails.Open(t.Context(), stream.Request{Workspace: workspace, Topics: []string{stream.TopicCatalog}, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		return f
	}
	// notified counts the changes before one that the test makes itself.
	marks := 0
	notified := func(f *stream.Feed, workspace string) (n int, cursor string) {
		t.Helper()
		marks++
		mark := string(rune('a' + marks))
		if err := stream.AnnounceBackends(t.Context(), &eventlog.Log{DB: s.db}, workspace, mark); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			d, ok, err := f.Poll(ctx)
			if err == nil && !ok {
				select {
				case <-f.Ready():
					continue
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			if err != nil {
				t.Fatalf("workspace %s: %v", workspace, err)
			}
			if stream.OfBackends(d.Notice) {
				return n, d.Cursor
			}
			n++
		}
	}
	first, second, own := open("first", ""), open("second", ""), open("own", "")
	o.Catalog = types(t, "after")
	for range 2 { // the second changes nothing
		if err := s.Reload(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	cursors := map[string]string{}
	for workspace, c := range map[string]struct {
		feed *stream.Feed
		want int
	}{"first": {first, 1}, "second": {second, 1}, "own": {own, 0}} {
		n, cursor := notified(c.feed, workspace)
		if n != c.want {
			t.Errorf("workspace %s was notified %d times, want %d", workspace, n, c.want)
		}
		cursors[workspace] = cursor
	}
	end(t, s)
	o.Catalog = types(t, "later")
	var err error
	if s, err = New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer end(t, s)
	for workspace, want := range map[string]int{"first": 1, "own": 0} {
		if n, _ := notified(open(workspace, cursors[workspace]), workspace); n != want {
			t.Errorf("SUB-08: workspace %s came back and was notified %d times, want %d", workspace, n, want)
		}
	}
}

// CNV-07: a server whose catalog does not say who may have the events of conversations does not start,
// and one that runs does not take such a catalog; nor does either take a provider whose secret is missing.
func TestConversationsNeedARule(t *testing.T) {
	const (
		chatter  = "events:\n  - {name: conversation.user_message, uri: event://conversation/user-message"
		ruled    = chatter + ", access: {scopes: [conversation]}}\n"
		events   = "conversation: {userMessages: true, events: {userMessage: true}"
		provider = events + ", providers: [{name: notes, url: 'http://127.0.0.1:1/notes', headers: {Authorization: 'env:NOT_THERE'}}]"
	)
	var o Options
	s := serve(t, func(with *Options) {
		with.Catalog, with.Config = []byte(ruled), configured(t, events+"}\n")
		with.Limits.AllowInsecureTargets = false
		o = *with
	})
	// CNV-06: without authentication no one can consent for all.
	if status, text := ask(t, s, "", "PUT", "/consent/events", ""); status != http.StatusForbidden || !strings.Contains(text, "--allow-insecure-targets") {
		t.Errorf("got %d %s", status, text)
	}
	for _, c := range []struct{ catalog, config, says string }{
		{chatter + "}\n", events, "needs an access rule"},
		{ruled, provider, "provider notes: header Authorization: the environment variable NOT_THERE"},
	} {
		bad := o
		bad.Catalog, bad.Config = []byte(c.catalog), configured(t, c.config+"}\n")
		if err := s.Reload(t.Context(), bad); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("reloaded: %v, want %s", err, c.says)
		}
		bad.Data = ":memory:"
		refuses(t, bad, c.says)
	}
}
