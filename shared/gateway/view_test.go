package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// personal returns a backend that shows each caller a tool named after its token, and refuses callers without a token.
func personal(t *testing.T, stateless bool) *scripted {
	t.Helper()
	s := newScripted(t, func(s *scripted) {
		s.stateless = stateless
		s.allow = func(h http.Header) bool { return strings.HasPrefix(h.Get("Authorization"), "Bearer ") }
		s.call = func(t *turn) {
			t.result(fmt.Sprintf(`{"resultType":"complete","for":%q}`, t.Header.Get("Authorization")))
		}
	})
	inner := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if r.Method == http.MethodPost {
			// The lists of the script do not know who asks, so each answer is made under a lock.
			personalLists.Lock()
			defer personalLists.Unlock()
			s.list(oneTool("of-" + who))
		}
		inner.ServeHTTP(w, r)
	})
	return s
}

var personalLists sync.Mutex

func forwarded(b *api.Backend) { b.ForwardToken = true }

func withToken(id, token string) api.Client {
	c := sessionBased("s-" + id)
	c.Principal.ID, c.Token = id, token
	return c
}

// GWN-19, GWN-02: given a backend without credentials of the operator, then the gateway reads its capabilities and lists with the
// caller's token. A caller cannot see or call the tools of another principal, of the same principal with another token, or of any
// caller if it has no token.
func TestCallersSeeTheirOwnLists(t *testing.T) {
	for name, stateless := range map[string]bool{"2025": false, "2026": true} {
		t.Run(name, func(t *testing.T) {
			s := personal(t, stateless)
			g := gatewayOver(t, memory(t), at("b", s, forwarded))
			callers := map[string]api.Client{
				"alice": withToken("ann", "Bearer alice"), "bob": withToken("bob", "Bearer bob"), "alice2": withToken("ann", "Bearer alice2"),
			}
			var all sync.WaitGroup
			for range 5 {
				for token, c := range callers {
					all.Go(func() {
						if got := names(g.List(t.Context(), c, api.Tools)); !slices.Equal(got, []string{"of-" + token}) {
							t.Errorf("%s sees %q", token, got)
						}
					})
				}
			}
			all.Wait()
			for token, c := range callers {
				if !g.Capabilities(t.Context(), c).Tools {
					t.Errorf("%s is not offered tools", token)
				}
				for other := range callers {
					got, err := call(t, g, c, "of-"+other)
					if (err == nil) != (token == other) || err == nil && !strings.Contains(got, `"Bearer `+token+`"`) {
						t.Errorf("%s calls what is %s's: %s, %v", token, other, got, err)
					}
				}
			}
			for _, tokenless := range []api.Client{withToken("ann", ""), of(ann)} {
				if got := names(g.List(t.Context(), tokenless, api.Tools)); len(got) > 0 {
					t.Errorf("without a token one sees %q", got)
				}
				if g.Has(t.Context(), tokenless, api.Tools, "of-alice") || g.Capabilities(t.Context(), tokenless).Tools {
					t.Error("without a token there is something")
				}
			}
			if l := g.List(t.Context(), callers["bob"], api.Tools); l.Shared {
				t.Error("a caller's own list is public")
			}
			for _, m := range s.seen {
				if m.Header.Get("Authorization") == "" {
					t.Errorf("%s was asked for without a token", m.Method)
				}
			}
		})
	}
}

// GWN-19: given a backend that has credentials of the operator and gets callers' tokens, then lists use the operator's credentials
// and calls use the caller's token. A caller without a token does not call with the operator's credentials.
func TestOperatorListsAndCallerCalls(t *testing.T) {
	t.Setenv("GATEWAY_TEST_SECRET", "Bearer operator")
	s := personal(t, false)
	c := parsed(t, "  - {name: b, url: %q, forwardToken: true, headers: {Authorization: \"env:GATEWAY_TEST_SECRET\"}}\n", s.URL)
	g := gatewayOver(t, memory(t), c.Backends...)
	l := newLog()
	defer relaying(t, "r", g, l)()
	until(t, "the stream is open", func() bool { return s.open() == 1 })
	for _, token := range []string{"alice", "bob"} {
		c := withToken(token, "Bearer "+token)
		if got := names(g.List(t.Context(), c, api.Tools)); !slices.Equal(got, []string{"of-operator"}) {
			t.Errorf("%s sees %q", token, got)
		}
		if got, err := call(t, g, c, "of-operator"); err != nil || !strings.Contains(got, `"Bearer `+token+`"`) {
			t.Errorf("%s calls: %s, %v", token, got, err)
		}
	}
	if got, err := call(t, g, withToken("eve", ""), "of-operator"); err == nil {
		t.Errorf("without a token one calls: %s", got)
	}
	if g.List(t.Context(), withToken("bob", "Bearer bob"), api.Tools).Shared {
		t.Error("a list of a backend that distinguishes callers is public")
	}
	for _, m := range append(s.received("tools/call"), s.received("GET")...) {
		if want := map[string]string{"GET": "Bearer operator"}[m.Method]; want != "" && m.Header.Get("Authorization") != want {
			t.Errorf("%s with %q", m.Method, m.Header.Get("Authorization"))
		}
	}
}

// GWN-19: the gateway keeps a limited number of callers' views, and ends its own sessions of the views that it removes.
func TestViewsAreBounded(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.capabilities = `{"tools":{}}` })
	g := gatewayOver(t, memory(t), at("b", s, forwarded))
	const maxViews = 256
	var next atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				i := next.Add(1)
				if i > maxViews+20 {
					return
				}
				g.List(t.Context(), withToken(fmt.Sprint("p", i), fmt.Sprint("Bearer ", i)), api.Tools)
			}
		})
	}
	all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.sessions); n != maxViews || s.made != maxViews+20 {
		t.Errorf("%d of %d sessions are open, want %d of %d", n, s.made, maxViews, maxViews+20)
	}
}

// GWN-19, GWN-04: the relay does not follow a backend without credentials of the operator, and clients cannot subscribe to its
// resources.
func TestRelayDoesNotFollowWithCallersTokens(t *testing.T) {
	s := personal(t, false)
	s.list(func(method, _ string) string {
		if method == "resources/list" {
			return `{"resources":[{"uri":"x://1","name":"x"}]}`
		}
		return emptyList(method)
	})
	other := newScripted(t)
	g := gatewayOver(t, memory(t), at("b", s, forwarded), at("other", other))
	l := newLog()
	defer relaying(t, "r", g, l)()
	until(t, "another's stream is open", func() bool { return other.open() == 1 })
	if n := len(s.received("initialize")); n > 0 {
		t.Errorf("it was asked %d times", n)
	}
	if _, ok := g.Subscribable(t.Context(), auth.Principal{ID: "ann", Workspace: auth.DefaultWorkspace}, "x://1"); ok {
		t.Error("a caller's own resource can be subscribed to by all")
	}
}
