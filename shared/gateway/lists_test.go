package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/pipes"
)

// names returns the names in a list.
func names(l *api.List) (out []string) {
	for _, e := range l.Entries {
		out = append(out, e.Name)
	}
	return out
}

// GWN-01, GWN-15: the combined list has the entries of all backends in a stable order. Tools and prompts get the backend's prefix,
// and URIs and all other members stay unchanged. The list reports names that two backends have.
func TestListsAreGathered(t *testing.T) {
	entry := func(name string) string {
		return fmt.Sprintf(`{ "x":9007199254740993, "na\u006de" : %q,"_meta":{"a/b":[1.50]},"title":"\u003cT\u003e" }`, name)
	}
	lists := func(tools ...string) func(string, string) string {
		return func(method, cursor string) string {
			switch method {
			case "tools/list":
				if cursor == "" {
					return `{"tools":[` + entry(tools[0]) + `],"nextCursor":"c1"}`
				}
				return `{"tools":[` + entry(tools[1]) + `,{"title":"no name"},{"name":""},"x"]}`
			case "resources/list":
				return `{"resources":[{"uri":"file:///` + tools[0] + `","name":"r"}]}`
			case "prompts/list":
				return `{"prompts":[{"name":"p"}]}`
			}
			return `{"resourceTemplates":[{"uriTemplate":"t://` + tools[0] + `/{id}","name":"t"},{"uriTemplate":"bad://{","name":"b"}]}`
		}
	}
	first := newScripted(t, func(s *scripted) { s.lists = lists("one", "two") })
	second := newScripted(t, func(s *scripted) { s.lists, s.stateless = lists("one", "three"), true })
	third := newScripted(t, func(s *scripted) { s.lists = lists("one", "four") })
	dead := newScripted(t)
	dead.Close()
	g := gatewayOver(t, memory(t), at("a", first, prefix("a_")), at("dead", dead, prefix("d_")), at("b", second), at("c", third))
	for range 3 {
		l := g.List(t.Context(), of(ann), api.Tools)
		if got, want := names(l), []string{"a_one", "a_two", "one", "three", "four"}; !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
		expect.List(t, "the conflicts", l.Conflicts, []string{"one"})
		for _, e := range l.Entries {
			expect.Equal(t, "the entry", string(e.JSON), entry(e.Name))
		}
		expect.List(t, "the prompts", names(g.List(t.Context(), of(ann), api.Prompts)), []string{"a_p", "p"})
		expect.List(t, "the resources", names(g.List(t.Context(), of(ann), api.Resources)), []string{"file:///one"})
		for uri, want := range map[string]bool{"file:///one": true, "t://one/5": true, "t://two/5": false, "t://one/": false, "bad://x": false} {
			if got := g.Has(t.Context(), sessionBased("s"), api.Resources, uri); got != want && uri != "t://one/" {
				t.Errorf("%s is served: %v", uri, got)
			}
		}
	}
	expect.Equal(t, "requests for a list of two pages that is kept", len(first.received("tools/list")), 2)
}

// GWN-01: a name that two backends have is logged once, however often it is listed or called.
func TestConflictIsLoggedOnce(t *testing.T) {
	s := newScripted(t)
	var j journal
	g := newGateway(t, Options{Backends: []api.Backend{at("a", s), at("b", s)}, Log: slog.New(slog.NewTextHandler(&j, nil))})
	for range 5 {
		g.List(t.Context(), of(ann), api.Tools)
		mustCall(t, g, sessionBased("s"), "t")
	}
	expect.Equal(t, "lines about the conflict", strings.Count(j.String(), "backend names conflict"), 1)
}

// Given a backend that cannot be reached, when clients keep asking for its lists and capabilities, then the log names it once per
// message and interval, and another unreachable backend has lines of its own.
func TestAnUnreachableBackendDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, alsoDown := newScripted(t), newScripted(t)
		down.Close()
		alsoDown.Close()
		var j journal
		g := newGateway(t, Options{Backends: []api.Backend{at("a", down), at("b", alsoDown)}, Log: slog.New(slog.NewTextHandler(&j, nil))})
		for range 2 {
			for range 50 {
				g.List(t.Context(), of(ann), api.Tools)
				g.Capabilities(t.Context(), of(ann))
			}
			time.Sleep(metric.LogEvery)
		}
		for _, message := range []string{"backend list failed", "backend capabilities unknown"} {
			for _, name := range []string{"a", "b"} {
				line := fmt.Sprintf("msg=%q backend=%s ", message, name)
				expect.Equal(t, fmt.Sprintf("lines with %s after 100 requests in two intervals", line), strings.Count(j.String(), line), 2)
			}
		}
	})
}

// EVS-01: given a backend that has not responded yet, when a client asks for the capabilities, then they include lists, because the
// client does not ask again when the backend responds.
func TestCapabilitiesOfABackendThatHasNotResponded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := alone(t, func(s *scripted) { s.capabilities = `{"tools":{}}` })
		declared := func(want bool) {
			t.Helper()
			c := g.Capabilities(t.Context(), of(ann))
			expect.Equal(t, "tools", c.Tools, true)
			expect.Equal(t, "prompts", c.Prompts, want)
			expect.Equal(t, "resources", c.Resources, want)
		}
		s.intercept(unavailable)
		declared(true)
		s.intercept(nil)
		declared(false)
	})
}

// GWN-01: given backends with instructions, when a client asks for the capabilities, then it gets the instructions of the backends that it may
// use. If there are several, or if one has a prefix, the client learns which instructions belong to which backend.
func TestInstructionsOfBackends(t *testing.T) {
	says := func(text string, stateless bool) *scripted {
		return newScripted(t, func(s *scripted) { s.instructions, s.stateless = text, stateless })
	}
	git, wiki, silent, endless := says("Commit often.", true), says("Search first.\nThen read.", false), says("", false), says(strings.Repeat("x", 8<<10+1), true)
	for name, c := range map[string]struct {
		backends []api.Backend
		want     string
	}{
		"one backend":        {[]api.Backend{at("git", git)}, "Commit often."},
		"with a prefix":      {[]api.Backend{at("git", git, prefix("g_"))}, "Instructions of the server git, whose tools and prompts have the prefix g_ here:\nCommit often."},
		"without":            {[]api.Backend{at("silent", silent)}, ""},
		"too long":           {[]api.Backend{at("endless", endless)}, ""},
		"in their order":     {[]api.Backend{at("wiki", wiki), at("silent", silent), at("git", git), at("endless", endless)}, "Instructions of the server wiki:\nSearch first.\nThen read.\n\nInstructions of the server git:\nCommit often."},
		"without permission": {[]api.Backend{at("wiki", wiki), at("git", git, func(b *api.Backend) { b.Scopes = []string{"admin"} })}, "Search first.\nThen read."},
	} {
		t.Run(name, func(t *testing.T) {
			g := gatewayOver(t, memory(t), c.backends...)
			expect.Equal(t, "the instructions", g.Capabilities(t.Context(), of(ann)).Instructions, c.want)
		})
	}
}

// GWN-01: given a backend with a prefix, when another one offers a tool whose name begins with that prefix, then clients cannot
// see or call that tool.
func TestABackendCannotOfferToolsUnderThePrefixOfAnother(t *testing.T) {
	answers := func(text string) func(*turn) {
		return func(t *turn) { t.result(`{"from":"` + text + `"}`) }
	}
	stranger := newScripted(t, func(s *scripted) { s.lists, s.call = oneTool("gh_merge", "gh_only_here", "other"), answers("stranger") })
	short := newScripted(t, func(s *scripted) { s.lists, s.call = oneTool("h_merge", "own"), answers("short") })
	owner := newScripted(t, func(s *scripted) { s.lists, s.call = oneTool("merge", "gh_merge"), answers("owner") })
	g := gatewayOver(t, memory(t), at("stranger", stranger), at("short", short, prefix("g")), at("owner", owner, prefix("gh_")))
	l := g.List(t.Context(), of(ann), api.Tools)
	expect.List(t, "the tools", names(l), []string{"other", "gown", "gh_merge", "gh_gh_merge"})
	expect.List(t, "the conflicts", l.Conflicts, []string{"gh_merge", "gh_only_here"})
	expect.Contains(t, "the answer of gh_merge", fmt.Sprint(mustCall(t, g, sessionBased("s"), "gh_merge")), "owner")
	expect.True(t, "gh_only_here is unknown", !g.Has(t.Context(), sessionBased("s"), api.Tools, "gh_only_here"))
}

// GWN-01, GWN-04: after a change, the gateway does not serve a list whose fetch began before the change, even if it ends after it.
func TestChangedListIsFetchedAgain(t *testing.T) {
	fetching, goOn := make(chan struct{}), make(chan struct{})
	s := newScripted(t)
	s.list(func(method, _ string) string {
		fetching <- struct{}{}
		<-goOn
		return oneTool("before")(method, "")
	})
	g := gatewayOver(t, memory(t), at("b", s))
	first := make(chan []string)
	go func() { first <- names(g.List(t.Context(), of(ann), api.Tools)) }()
	<-fetching
	s.list(oneTool("after"))
	g.Followed(t.Context())[0].Outdate()
	close(goOn)
	<-first
	// After the change the list from before is used no more.
	sees(t, g, of(ann), "after")
}

// GWN-02, GWN-07: if a backend comes back with another revision, the gateway notices it at the first refused request, and not only when
// it asks for the capabilities again. The gateway has no other way to notice it without a notification stream, which a backend that acts
// for its callers does not have, and which another process may hold.
func TestBackendComesBackWithAnotherRevision(t *testing.T) {
	unsupported := func(w http.ResponseWriter, m got) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"m","data":{"supported":["2026-07-28"],"requested":%q}}}`, m.ID, m.Header.Get("Mcp-Protocol-Version"))
	}
	like := func(status, code int, reason string) func(http.ResponseWriter, got) {
		refuse := refuseWith(status, code, reason)
		return func(w http.ResponseWriter, _ got) { refuse(w) }
	}
	for _, c := range []struct {
		name   string
		newer  bool // the backend comes back with 2026-07-28
		refuse func(http.ResponseWriter, got)
	}{
		{"2026-07-28 after 2025-11-25", true, unsupported},
		{"2026-07-28 after 2025-11-25, without the session", true, like(404, 0, "session not found")},
		{"2025-11-25 after 2026-07-28, TypeScript SDK", false, like(400, -32000, "Bad Request: Unsupported protocol version")},
		{"2025-11-25 after 2026-07-28, Go SDK", false, like(400, 0, "Bad Request: Unsupported protocol version")},
		{"2025-11-25 after 2026-07-28, with the code", false, unsupported},
	} {
		upgrade := func(s *scripted) {
			s.change(func(s *scripted) { s.stateless = c.newer })
			s.list(oneTool("new"))
			s.intercept(func(w http.ResponseWriter, _ *http.Request, m got) bool {
				newer := m.Header.Get("Mcp-Protocol-Version") == "2026-07-28"
				refused := m.Method != "server/discover" && (m.Method != "initialize" || c.newer) && newer != c.newer
				if refused {
					c.refuse(w, m)
				}
				return refused
			})
		}
		for _, client := range []api.Client{sessionBased("s"), statelessClient(ann)} {
			bubble(t, c.name+", client of "+string(client.Version), func(t *testing.T) {
				before := func(s *scripted) { s.stateless = !c.newer }
				s, g := alone(t, before)
				mustCall(t, g, client, "t")
				upgrade(s)
				text, _ := call(t, g, client, "t")
				expect.Lacks(t, "the client's response, without an error about the gateway's request", text, "-32022")
				expect.Lacks(t, "the response to the next call", mustCall(t, g, client, "new"), "error")
				s, g = alone(t, before)
				sees(t, g, client, "t")
				upgrade(s)
				g.Followed(t.Context())[0].Outdate()
				sees(t, g, client, "new")
			})
		}
	}
}

// A backend may always refuse a tool as if it spoke another revision. Its callers must not make the gateway ask for its capabilities and lists
// after each of their calls, because other callers would wait for that.
func TestRefusedCallsDoNotAskEachTime(t *testing.T) {
	t.Parallel()
	s, g := alone(t, func(s *scripted) { s.stateless = true })
	sees(t, g, statelessClient(ann), "t")
	s.on("tools/call", func(w http.ResponseWriter, _ *http.Request, _ got) {
		refuseWith(http.StatusNotFound, 0, "not found")(w)
	})
	began := time.Now()
	for range 10 {
		_, _ = call(t, g, statelessClient(ann), "t")
	}
	// The gateway may ask once every two seconds.
	expect.AtMost(t, "requests for the capabilities", len(s.received("server/discover")), 2+int(time.Since(began)/(2*time.Second)))
}

// The console checks every 30 seconds whether a backend responds.
func TestCheckKeepsTheSession(t *testing.T) {
	s, g := alone(t)
	sees(t, g, sessionBased("s"), "t")
	check := func(initialized int) {
		t.Helper()
		expect.OK(t, g.Followed(t.Context())[0].Check(t.Context()))
		expect.Equal(t, "requests to initialize", len(s.received("initialize")), initialized)
	}
	check(1)
	check(1)
	s.forget() // as a backend that has restarted
	check(2)
	check(2)
	s.Close()
	if err := g.Followed(t.Context())[0].Check(t.Context()); err == nil {
		t.Error("a backend that has ended responds")
	}
}

// GWN-02: the gateway finds out the backend's revision, or uses the configured one.
func TestRevisionIsFoundOut(t *testing.T) {
	for _, c := range []struct {
		name, pinned, supported, want string
		stateless                     bool
	}{
		{name: "2026", pinned: api.AutoVersion, stateless: true, want: "2026-07-28"},
		{name: "2025", pinned: api.AutoVersion, want: string(spec.LatestSessionBased)},
		{name: "discover without 2026", pinned: api.AutoVersion, supported: "2025-11-25", want: string(spec.LatestSessionBased)},
		{name: "pinned to 2025", pinned: "2025-06-18", supported: "2026-07-28", want: "2025-06-18"},
		{name: "pinned to 2026", pinned: "2026-07-28", stateless: true, want: "2026-07-28"},
		{name: "pinned to 2026, which it is not", pinned: "2026-07-28"},
		{name: "pinned to 2025, which it is not", pinned: "2025-06-18", stateless: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScripted(t, func(s *scripted) {
				s.stateless, s.supported = c.stateless, c.supported
				s.capabilities = `{"tools":{"listChanged":true},"resources":{}}`
			})
			g := gatewayOver(t, memory(t), at("b", s, func(b *api.Backend) { b.ProtocolVersion = c.pinned }))
			info, err := g.Followed(t.Context())[0].Ask(t.Context())
			if c.want == "" {
				if err == nil {
					t.Fatalf("Ask returned %+v, want an error", info)
				}
				return
			}
			expect.OK(t, err)
			expect.Equal(t, "Ask returned the revision", string(info.Version), c.want)
			want := api.Capabilities{Tools: true, ToolsChanged: true, Resources: true}
			expect.Deep(t, "the capabilities", info.Capabilities, want)
			if c.pinned != api.AutoVersion && !c.stateless && len(s.received("server/discover")) > 0 {
				t.Error("it was asked in a revision that it is not pinned to")
			}
		})
	}
}

// GWN-02: an instance has one session of its own with a backend, however often it asks for the capabilities.
func TestOwnSessionsAreEnded(t *testing.T) {
	s, g := alone(t)
	for range 5 {
		expect.OK(t, expect.ErrOf(g.Followed(t.Context())[0].Ask(t.Context())))
	}
	expect.Equal(t, "the sessions", s.made, 5)
	expect.Equal(t, "the open sessions", s.alive(), 1)
}

// GWN-04: a principal can use exactly the backends of its workspace whose scopes it has.
func TestBackendsAreSeenByWorkspaceAndScopes(t *testing.T) {
	s := newScripted(t)
	g := gatewayOver(t, memory(t), at("open", s), at("scoped", s, prefix("s_"), func(b *api.Backend) { b.Scopes = []string{"x", "y"} }),
		at("other", s, prefix("o_"), func(b *api.Backend) { b.Workspace = "other" }))
	for _, c := range []struct {
		name string
		p    auth.Principal
		want []string
	}{
		{"plain", ann, []string{"t"}},
		{"with one of two scopes", auth.Principal{ID: "b", Workspace: auth.DefaultWorkspace, Scopes: []string{"x"}}, []string{"t"}},
		{"with both", auth.Principal{ID: "c", Workspace: auth.DefaultWorkspace, Scopes: []string{"y", "x"}}, []string{"t", "s_t"}},
		{"another workspace", auth.Principal{ID: "d", Workspace: "other", Scopes: []string{"x", "y"}}, []string{"o_t"}},
		{"no workspace", auth.Principal{ID: "e", Scopes: []string{"x", "y"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect.List(t, "the tools", names(g.List(t.Context(), of(c.p), api.Tools)), c.want)
			for _, name := range []string{"t", "s_t", "o_t"} {
				client := sessionBased("s-" + c.p.ID)
				client.Principal = c.p
				if _, err := call(t, g, client, name); (err == nil) != slices.Contains(c.want, name) {
					t.Errorf("call %s: %v", name, err)
				}
			}
			expect.Equal(t, "backends", len(g.Backends(t.Context(), c.p)), len(c.want))
		})
	}
}

// GWN-19: each backend gets its own credentials, which the configuration gives by reference.
func TestEachBackendGetsItsOwnCredentials(t *testing.T) {
	t.Setenv("GATEWAY_TEST_SECRET", "Bearer operator")
	t.Setenv("GATEWAY_TEST_CLIENT_SECRET", "s3cret")
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		id, secret, basic := r.BasicAuth()
		if !basic {
			id, secret = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
		}
		if id != "me" || secret != "s3cret" || r.PostForm.Get("grant_type") != "client_credentials" || r.PostForm.Get("scope") != "a b" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"granted","token_type":"bearer","expires_in":3600}`))
	}))
	defer tokens.Close()
	only := func(want string) func(*scripted) {
		return func(s *scripted) {
			s.allow = func(h http.Header) bool { return h.Get("Authorization") == want }
		}
	}
	fixed, granted := newScripted(t, only("Bearer operator")), newScripted(t, only("Bearer granted"))
	none := newScripted(t, only(""))
	c := parsed(t, `  - {name: fixed, url: %q, prefix: fixed_, headers: {Authorization: "env:GATEWAY_TEST_SECRET"}}
  - {name: granted, url: %q, prefix: granted_, oauth: {tokenUrl: %q, clientId: me, clientSecret: "env:GATEWAY_TEST_CLIENT_SECRET", scopes: [a, b]}}
  - {name: none, url: %q, prefix: none_}
`, fixed.URL, granted.URL, tokens.URL, none.URL)
	g := gatewayOver(t, memory(t), c.Backends...)
	client := sessionBased("s")
	client.Token = "Bearer caller"
	for _, name := range []string{"fixed_t", "granted_t", "none_t"} {
		expect.OK(t, expect.ErrOf(call(t, g, client, name)), name)
	}
}

// GWN-19: given an OAuth token that the backend no longer accepts, for example because it has expired and the authorization server did not
// say when, then a later request has a new token. A backend that refuses every token causes few token requests.
func TestTokenThatTheBackendRefusesIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Setenv("GATEWAY_TEST_CLIENT_SECRET", "s3cret")
		var issued, accepted atomic.Int64
		tokens := pipes.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"access_token":"t%d","token_type":"bearer"}`, issued.Add(1))
		}))
		s := newScripted(t, func(s *scripted) {
			s.allow = func(h http.Header) bool { return h.Get("Authorization") == fmt.Sprintf("Bearer t%d", accepted.Load()) }
		})
		c := parsed(t, "  - {name: b, url: %q, oauth: {tokenUrl: %q, clientId: me, clientSecret: \"env:GATEWAY_TEST_CLIENT_SECRET\"}}\n", s.URL, tokens.URL)
		g := gatewayOver(t, memory(t), c.Backends...)
		accepted.Store(1)
		mustCall(t, g, sessionBased("s"), "t")
		time.Sleep(time.Hour)
		accepted.Store(2)
		_, _ = call(t, g, sessionBased("s"), "t") // the backend refuses one of its requests
		mustCall(t, g, sessionBased("s"), "t")
		accepted.Store(-1)
		time.Sleep(time.Hour)
		for range 100 {
			_, _ = call(t, g, sessionBased("s"), "t") // the backend refuses it
		}
		expect.Equal(t, "issued tokens", issued.Load(), 3)
	})
}

// GWN-19: the gateway sends the client secret only to the token endpoint, and does not follow its redirects.
func TestTokenEndpointCannotPassTheSecretOn(t *testing.T) {
	t.Setenv("GATEWAY_TEST_CLIENT_SECRET", "s3cret")
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body := make([]byte, 1000)
		n, _ := r.Body.Read(body)
		t.Errorf("the other host got %v %s", r.Header, body[:n])
	}))
	defer other.Close()
	tokens := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer tokens.Close()
	s := newScripted(t)
	c := parsed(t, "  - {name: b, url: %q, oauth: {tokenUrl: %q, clientId: me, clientSecret: \"env:GATEWAY_TEST_CLIENT_SECRET\"}}\n", s.URL, tokens.URL)
	g := gatewayOver(t, memory(t), c.Backends...)
	err := expect.ErrOf(g.Followed(t.Context())[0].Ask(t.Context()))
	expect.Lacks(t, "the error", fmt.Sprint(err), "s3cret", "<nil>")
	expect.Equal(t, "the requests without the token", len(s.received("initialize")), 0)
}

// GWN-01: a cursor that a client made up is refused or leads to a valid position, whatever number it contains.
func TestCursorsThatAreMadeUp(t *testing.T) {
	l := &api.List{Entries: make([]api.Entry, 5), Parts: []api.Part{{Backend: "a", First: 0, End: 3}, {Backend: "b", First: 3, End: 5}}}
	for _, place := range []int{0, 1, 2, 1 << 32, math.MaxInt, math.MinInt, -1} {
		entries, _, ok := l.Page(fmt.Sprintf("b %d gone", place), 10)
		if ok != (place >= 0) || ok && len(entries) != 2-min(2, place) {
			t.Errorf("%d: %d entries, %t", place, len(entries), ok)
		}
	}
}

// GWN-01, GWN-14: a backend's list is left out if it is too large, has no end or arrives too slowly. Other backends' lists wait no
// longer than one list may take. After a timeout the backend is not asked again immediately.
func TestListsThatTakeTooMuch(t *testing.T) {
	const answerTime = 800 * time.Millisecond
	for name, tt := range map[string]struct {
		size  int
		pause time.Duration
		pages int // that are read at most
	}{
		"large":   {6 << 20, 0, 32/6 + 1},
		"endless": {0, 0, 200},
		"slow":    {0, answerTime / 4, 4*3 + 1},
	} {
		bubble(t, name, func(t *testing.T) {
			n := 0
			s := newScripted(t, func(s *scripted) {
				s.lists = func(string, string) string {
					n++
					time.Sleep(tt.pause)
					return fmt.Sprintf(`{"tools":[{"name":"t%d","x":%q}],"nextCursor":"c%d"}`, n, strings.Repeat("x", tt.size), n)
				}
			})
			g := newGateway(t, Options{Backends: []api.Backend{at("much", s), at("ok", newScripted(t))}, AskTimeout: answerTime})
			began := time.Now()
			if got := names(g.List(t.Context(), of(ann), api.Tools)); !slices.Equal(got, []string{"t"}) {
				t.Errorf("got %d tools", len(got))
			}
			if tt.pause > 0 { // it rests
				g.List(t.Context(), of(ann), api.Tools)
			}
			if asked := len(s.received("tools/list")); asked > tt.pages || tt.pause == 0 && asked != tt.pages {
				t.Errorf("%d pages were read, want %d", asked, tt.pages)
			}
			expect.AtMost(t, "the time that it took", time.Since(began), 3*answerTime)
		})
	}
}

// counting is a store that counts its reads.
type counting struct {
	store.DB
	gets, keys, queries atomic.Int64
	fail                atomic.Bool
}

func (c *counting) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	c.gets.Add(1)
	c.keys.Add(int64(len(keys)))
	if c.fail.Load() {
		return nil, fmt.Errorf("cut off")
	}
	return c.DB.Get(ctx, keys...)
}

func (c *counting) Query(ctx context.Context, q store.Query) (store.Page, error) {
	c.queries.Add(1)
	return c.DB.Query(ctx, q)
}

// reads counts the reads of the store while do runs.
func (c *counting) reads(do func()) (gets, keys int64) {
	g, k, q := c.gets.Load(), c.keys.Load(), c.queries.Load()
	do()
	return c.gets.Load() - g + c.queries.Load() - q, c.keys.Load() - k
}

// GWN-01, GWN-04: given an instance without a connection to the backend that has just fetched the lists, when a change is
// announced, then it serves the new lists. This holds for every change, every kind of list and both kinds of revisions.
func TestListsAtOtherInstancesAreTheNewOnes(t *testing.T) {
	for name, stateless := range map[string]bool{"2025": false, "2026": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScripted(t, func(s *scripted) {
				s.stateless = stateless
				s.capabilities = `{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true}}`
			})
			var now atomic.Int64
			s.list(func(method, _ string) string {
				n := now.Load()
				return map[string]string{
					"tools/list":               fmt.Sprintf(`{"tools":[{"name":"t%d"}],"ttlMs":60000}`, n),
					"prompts/list":             fmt.Sprintf(`{"prompts":[{"name":"p%d"}],"ttlMs":60000}`, n),
					"resources/list":           fmt.Sprintf(`{"resources":[{"uri":"r:%d"}],"ttlMs":60000}`, n),
					"resources/templates/list": fmt.Sprintf(`{"resourceTemplates":[{"uriTemplate":"t:%d/{x}"}],"ttlMs":60000}`, n),
				}[method]
			})
			db, l := memory(t), newLog()
			other := gatewayOver(t, db, at("b", s))
			defer relaying(t, "holder", gatewayOver(t, db, at("b", s)), l)()
			s.only(t, 1)
			lists := []struct{ kind, name string }{api.Tools: {"tools", "t%d"}, api.Prompts: {"prompts", "p%d"}, api.Resources: {"resources", "r:%d"}, api.Templates: {"resources", "t:%d/{x}"}}
			for i := range 25 {
				for kind := range lists { // so that it has something old
					other.List(t.Context(), of(ann), api.Kind(kind))
				}
				now.Add(1)
				for _, what := range []string{"tools", "prompts", "resources"} {
					s.notify(`{"jsonrpc":"2.0","method":"notifications/` + what + `/list_changed"}`)
					l.next(t)
					for kind, list := range lists {
						if list.kind != what {
							continue
						}
						want := fmt.Sprintf(list.name, now.Load())
						if got := names(other.List(t.Context(), of(ann), api.Kind(kind))); !slices.Equal(got, []string{want}) {
							t.Fatalf("change %d of %s: got %q, want %q", i, what, got, want)
						}
					}
				}
			}
		})
	}
}

// GWN-01: a list costs one read of the store, whatever the number of backends. A call reads nothing about lists while they are
// cached.
func TestReadsOfTheStore(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.stateless = true
		s.lists = listing("tools/list", `{"tools":[{"name":"t"}],"ttlMs":60000}`)
	})
	db := &counting{DB: memory(t)}
	g := gatewayOver(t, db, at("a", s, prefix("a_")), at("b", s, prefix("b_")), at("c", s, prefix("c_")))
	for i := range 3 {
		for _, kind := range api.Kinds {
			if reads, keys := db.reads(func() { g.List(t.Context(), of(ann), kind) }); reads != 1 || keys != 3 {
				t.Errorf("list %d of %ss made %d reads of %d keys", i, kind, reads, keys)
			}
		}
	}
	reads, _ := db.reads(func() { mustCall(t, g, statelessClient(ann), "b_t") })
	expect.Equal(t, "the reads of a call", reads, 0)
	reads, _ = db.reads(func() {
		expect.Error(t, "a call of an unknown tool", expect.ErrOf(call(t, g, statelessClient(ann), "b_nothing")))
	})
	expect.Equal(t, "the reads of a call of an unknown tool", reads, 1)
	expect.Equal(t, "requests for the tools of 3 backends", len(s.received("tools/list")), 3)
}

// GWN-01: a new name can be called immediately at any instance, even at one that has not listed it yet. Unknown names cost a
// backend at most one request per second.
func TestNewNamesCanBeCalledAtOtherInstances(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.capabilities = `{"tools":{"listChanged":true}}` })
	db, l := memory(t), newLog()
	other := gatewayOver(t, db, at("b", s))
	defer relaying(t, "holder", gatewayOver(t, db, at("b", s)), l)()
	s.only(t, 1)
	for i := range 10 {
		other.List(t.Context(), of(ann), api.Tools)
		name := fmt.Sprintf("new%d", i)
		s.list(oneTool(name))
		s.notify(toolsChanged)
		l.next(t)
		expect.OK(t, expect.ErrOf(call(t, other, sessionBased("s"), name)), name)
	}
	before := len(s.received("tools/list"))
	began := time.Now()
	for i := range 50 {
		if other.Has(t.Context(), sessionBased("s"), api.Tools, fmt.Sprint("none", i)) {
			t.Fatal("it has what no backend has")
		}
	}
	if n, most := len(s.received("tools/list"))-before, 1+int(time.Since(began)/time.Second); n > most {
		t.Errorf("50 unknown names: %d requests, want %d at most", n, most)
	}
}

// GWN-01: given a store that cannot be read, then lists are fetched each time, and calls continue.
func TestListsWhileTheStoreIsAway(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.stateless = true })
	db := &counting{DB: memory(t)}
	g := gatewayOver(t, db, at("b", s))
	g.List(t.Context(), of(ann), api.Tools)
	db.fail.Store(true)
	expect.OK(t, expect.ErrOf(call(t, g, statelessClient(ann), "t")))
	s.list(oneTool("u"))
	sees(t, g, of(ann), "u")
	db.fail.Store(false)
	s.list(oneTool("v"))
	// The store is there again.
	sees(t, g, of(ann), "v")
}

// GWN-14: given a backend that hangs, then one caller waits for it for a limited time, and the next one waits only after the
// backend announced a change. Meanwhile the other backends are listed and called immediately.
func TestHangingBackendIsSkippedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var asked atomic.Int64
		s := newScripted(t, func(s *scripted) {
			s.allow = func(http.Header) bool { asked.Add(1); <-hang; return false }
		})
		defer close(hang)
		ok := newScripted(t)
		g := gatewayOver(t, memory(t), at("hangs", s), at("ok", ok))
		began := time.Now()
		g.List(t.Context(), of(ann), api.Tools)
		expect.AtMost(t, "the time that the gateway waited", time.Since(began), g.options.AskTimeout)
		n := asked.Load()
		began = time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				sees(t, g, of(ann), "t")
				if _, err := call(t, g, sessionBased("s"), "t"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if more := asked.Load() - n; n == 0 || more > 1 || time.Since(began) > 0 {
			t.Errorf("it was asked %d times, and then %d times in %s", n, more, time.Since(began))
		}
		expect.OK(t, g.VisibleTo(t.Context(), ann)[0].ChangeListVersion(t.Context(), api.Tools.ChangedMethod()))
		n = asked.Load()
		g.List(t.Context(), of(ann), api.Tools)
		expect.Differ(t, "the requests to a backend that notifies of a change", asked.Load(), n)
	})
}

// GWN-01: given a backend that has never responded, then its tools are unavailable, and not unknown. A denied tool is unknown.
func TestToolOfABackendThatHasNotResponded(t *testing.T) {
	down := newScripted(t)
	down.Close()
	rule := func(b *api.Backend) { b.Prefix, b.Tools.Deny = "down_", []string{"denied"} }
	g := gatewayOver(t, memory(t), at("down", down, rule), at("ok", newScripted(t), prefix("ok_")))
	for name, want := range map[string]fault.Kind{"down_t": fault.Unavailable, "down_denied": fault.Invalid, "ok_other": fault.Invalid, "other": fault.Invalid} {
		if _, err := call(t, g, sessionBased("s"), name); !fault.Is(err, want) {
			t.Errorf("%s: got %v, want an error of kind %v", name, err, want)
		}
	}
}

// GWN-01: given a client that disconnects while it waits for a backend, then the log does not blame the backend or the store, and the
// lists stay cached.
func TestDisconnectedClientIsNoFailureOfABackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		s := newScripted(t, func(s *scripted) { s.allow = func(http.Header) bool { <-hang; return false } })
		defer close(hang)
		var j journal
		ok := newScripted(t)
		g := newGateway(t, Options{Backends: []api.Backend{at("hangs", s), at("ok", ok)}, Log: slog.New(slog.NewTextHandler(&j, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		g.List(ctx, of(ann), api.Tools)
		g.List(ctx, of(ann), api.Tools)
		g.Capabilities(ctx, of(ann))
		expect.Equal(t, "the log", j.String(), "")
		sees(t, g, of(ann), "t")
		expect.Equal(t, "requests for the list", len(ok.received("tools/list")), 1)
	})
}

// GWN-14: a backend hangs. Calls of a tool, prompt or resource that an earlier backend lists do not wait for it, and calls of a tool with
// another backend's prefix do not wait either. A call of a later backend's tool waits, because the hanging backend may have a tool of the
// same name, which would take precedence.
func TestCallWaitsOnlyForBackendsThatTakePrecedence(t *testing.T) {
	for _, c := range []struct {
		kind api.Kind
		name string
		took time.Duration
	}{{api.Tools, "t", 0}, {api.Tools, "ok_t", 0}, {api.Prompts, "p", 0}, {api.Resources, "doc://1", 0}, {api.Tools, "last", 10 * time.Second}, {api.Resources, "tpl://1", 10 * time.Second}} {
		bubble(t, c.name, func(t *testing.T) {
			hang := make(chan struct{})
			defer close(hang)
			first := newScripted(t, func(s *scripted) {
				s.lists = listing("tools/list", `{"tools":[{"name":"t"}]}`, "prompts/list", `{"prompts":[{"name":"p"}]}`,
					"resources/list", `{"resources":[{"uri":"doc://1"}]}`, "resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"tpl://{id}"}]}`)
			})
			hanging := newScripted(t, func(s *scripted) { s.allow = func(http.Header) bool { <-hang; return false } })
			g := gatewayOver(t, memory(t), at("first", first), at("hanging", hanging), at("prefixed", newScripted(t), prefix("ok_")),
				at("last", newScripted(t, func(s *scripted) { s.lists = oneTool("last") })))
			began := time.Now()
			e, err := g.Find(t.Context(), of(ann), c.kind, c.name)
			expect.OK(t, err)
			expect.Equal(t, "the name", e.Name, c.name)
			expect.Equal(t, "the time that the lookup took", time.Since(began), c.took)
		})
	}
}

// GWN-01: calls use a list with a time to live of 0 without fetching it again. Lists fetch it each time.
func TestCallsUseAListThatMayNotBeKept(t *testing.T) {
	s, g := alone(t, func(s *scripted) {
		s.stateless = true
		s.lists = listing("tools/list", `{"tools":[{"name":"t"}],"ttlMs":0,"cacheScope":"public"}`)
	})
	for range 3 {
		mustCall(t, g, statelessClient(ann), "t")
	}
	expect.Equal(t, "requests for the list by three calls", len(s.received("tools/list")), 1)
	for range 3 {
		g.List(t.Context(), of(ann), api.Tools)
	}
	expect.Equal(t, "requests for the list by three calls and three lists", len(s.received("tools/list")), 4)
}

// GWN-17: clients of 2026-07-28 must leave out a tool whose x-mcp-header is invalid. The gateway is such a client of a stateless backend,
// and without the header it could not call the tool for a client with a session. In earlier revisions, the annotation has no meaning.
func TestToolsWithAnInvalidHeaderAreNotListed(t *testing.T) {
	tool := func(name, kind string) string {
		return fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object","properties":{"a":{"type":%q,"x-mcp-header":"A"}}}}`, name, kind)
	}
	revisions(t, func(t *testing.T, stateless bool) {
		_, g := alone(t, func(s *scripted) {
			s.stateless, s.lists = stateless, listing("tools/list", `{"tools":[`+tool("good", "string")+`,`+tool("bad", "number")+`]}`)
		})
		want := map[bool][]string{false: {"good", "bad"}, true: {"good"}}[stateless]
		sees(t, g, sessionBased("s"), want...)
		sees(t, g, statelessClient(ann), want...)
	})
}

// GWN-01: the gateway reads lists as a client that can answer questions, so they have the tools that a backend lists only for such clients.
// A server with a session learns this from initialize, and a stateless one from _meta.
func TestListsHaveToolsThatAskQuestions(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s, g := alone(t, func(s *scripted) { s.stateless = stateless })
		g.List(t.Context(), of(ann), api.Tools)
		declared := jsonrpc.Member(jsonrpc.Member(s.received("tools/list")[0].Params, "_meta"), spec.MetaCapabilities)
		if !stateless {
			declared = jsonrpc.Member(s.received("initialize")[0].Params, "capabilities")
		}
		expect.Contains(t, "the declared capabilities", string(declared), `"elicitation"`, `"sampling"`)
	})
}
