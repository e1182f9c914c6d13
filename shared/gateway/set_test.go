package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-01, GWN-03: backends can be added, changed and removed while the process runs. Unchanged backends are not asked again.
// Removed ones are no longer listed, called or followed.
func TestBackendsAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newScripted(t), newScripted(t)
		two.list(oneTool("u"))
		g := gatewayOver(t, memory(t), at("one", one))
		l := newLog()
		relaying(t, "r", g, l)
		l.until(t, one) // it has compared the lists
		sees(t, g, of(ann), "t")
		asked := len(one.received("tools/list"))
		// A second one comes.
		g.Replace(t.Context(), []api.Backend{at("two", two, prefix("x_")), at("one", one)})
		sees(t, g, of(ann), "x_u", "t")
		two.only(t, 1)
		expect.Equal(t, "how often the one that stayed was asked", len(one.received("tools/list")), asked)
		// The second one changes, the first one goes.
		g.Replace(t.Context(), []api.Backend{at("two", two, prefix("y_"))})
		sees(t, g, of(ann), "y_u")
		expect.Error(t, "a tool of the removed backend", expect.ErrOf(call(t, g, sessionBased("s"), "t")))
		expect.Eventually(t, "no one listens to it", func() bool { return one.open() == 0 })
		two.only(t, 2)
		g.Replace(t.Context(), nil)
		expect.True(t, "the absence of backends", !g.Any(t.Context()))
		expect.Eventually(t, "no one listens to the other one", func() bool { return two.open() == 0 })
	})
}

// GWN-01: with a source, each use sees its current backends, or the previous ones while it fails.
func TestSourceOfBackends(t *testing.T) {
	s := newScripted(t)
	var now atomic.Pointer[[]api.Backend]
	g := newGateway(t, Options{Source: func(context.Context) ([]api.Backend, error) {
		if p := now.Load(); p != nil {
			return *p, nil
		}
		return nil, errors.New("away")
	}})
	for _, c := range []struct {
		name string
		now  *[]api.Backend
		want []string
	}{
		{"it fails at first", nil, nil},
		{"none", &[]api.Backend{}, nil},
		{"one", &[]api.Backend{at("b", s)}, []string{"t"}},
		{"with a prefix", &[]api.Backend{at("b", s, prefix("p_"))}, []string{"p_t"}},
		{"it fails", nil, []string{"p_t"}},
		{"none again", &[]api.Backend{}, nil},
	} {
		now.Store(c.now)
		if got := names(g.List(t.Context(), of(ann), api.Tools)); !slices.Equal(got, c.want) || g.Any(t.Context()) != (c.want != nil) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// GWN-19: a backend whose secret is missing is left out, and the others serve. It serves when the secret exists, and is never
// called without it.
func TestMissingSecretFailsItsBackendOnly(t *testing.T) {
	open := newScripted(t)
	locked := newScripted(t, func(s *scripted) {
		s.allow = func(h http.Header) bool { return h.Get("Authorization") == "Bearer later" }
	})
	c := parsed(t, "  - {name: locked, url: %q, prefix: l_, headers: {Authorization: \"env:GATEWAY_TEST_LATER\"}}\n  - {name: open, url: %q}\n", locked.URL, open.URL)
	g := newGateway(t, Options{Source: func(context.Context) ([]api.Backend, error) { return c.Backends, nil }})
	// Its secret is not there.
	sees(t, g, of(ann), "t")
	expect.AtMost(t, "the requests without credentials", len(locked.received("server/discover"))+len(locked.received("initialize")), 0)
	// The secret comes.
	t.Setenv("GATEWAY_TEST_LATER", "Bearer later")
	sees(t, g, of(ann), "l_t", "t")
	// A file with such a fault is not taken as a whole.
	c.Backends = append(c.Backends, api.Backend{Name: "x", URL: open.URL, Workspace: "w", Headers: c.Backends[0].Headers})
	t.Setenv("GATEWAY_TEST_LATER", "")
	expect.Fault(t, "the check", g.Check(t.Context(), c.Backends), fault.Invalid, "GATEWAY_TEST_LATER")
}

// GWN-03, GWN-04: two workspaces may each have a backend of the same name. Each has its own stream, notifications and
// subscriptions. A backend that is down does not delay them.
func TestSameNameInTwoWorkspaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead, mine, theirs, l := newScripted(t), newScripted(t), newScripted(t), newLog()
		dead.Close()
		g := gatewayOver(t, memory(t), at("dead", dead), at("b", mine), at("b", theirs, func(b *api.Backend) { b.Workspace = "other" }))
		relaying(t, "r", g, l)
		mine.only(t, 1)
		theirs.only(t, 1)
		want := wants("x://1", "s")
		want.Place.Workspace = "other"
		subscribe(t, g, want)
		expect.Eventually(t, "it is subscribed", func() bool { return len(theirs.received("resources/subscribe")) == 1 })
		expect.Equal(t, "the subscriptions at the other backend", len(mine.received("resources/subscribe")), 0)
		l.has(t, `r other b notifications/resources/updated {"uri":"x://1"}`) // the subscription took effect
		expect.Len(t, "the changes before any change", append(l.until(t, mine), l.until(t, theirs)...), 0)
		theirs.list(oneTool("t", "u"))
		g.List(t.Context(), of(ann), api.Tools)
		asked := len(mine.received("tools/list"))
		theirs.notify(toolsChanged)
		l.has(t, "r other b notifications/tools/list_changed")
		// After the change the other workspace has the new list.
		sees(t, g, of(auth.Principal{ID: "x", Workspace: "other"}), "t", "u")
		g.List(t.Context(), of(ann), api.Tools)
		expect.Equal(t, "how often the other workspace's backend was asked", len(mine.received("tools/list")), asked)
	})
}

// GWN-08, GWN-11: when another server takes a backend's place under the same name, it does not get the session ids of the previous
// server or the answers to its questions.
func TestAnotherServerUnderTheSameName(t *testing.T) {
	t.Parallel()
	ask := func(r *turn) {
		r.write(`{"jsonrpc":"2.0","id":"secret","method":"elicitation/create","params":{"message":"?"}}`)
		<-r.r.Context().Done()
	}
	one := newScripted(t, func(s *scripted) { s.call = ask })
	two := newScripted(t, func(s *scripted) { s.made = 100 }) // other names of sessions
	g := gatewayOver(t, memory(t), at("b", one))
	x := start(t, g, sessionBased("s"), "t", "1", `{"name":"t"}`)
	id, _ := jsonrpc.String(jsonrpc.Member([]byte(x.next(t).text), "id"))
	had := one.received("tools/call")[0].Session
	g.Replace(t.Context(), []api.Backend{at("b", two)})
	answer := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"result":{"action":"decline"}}`, id)
	expect.Fault(t, "the answer to a server that is gone", g.Answer(t.Context(), sessionBased("s"), id, answer), fault.NotFound)
	mustCall(t, g, sessionBased("s"), "t")
	expect.OK(t, g.End(t.Context(), sessionBased("s")))
	two.mu.Lock()
	defer two.mu.Unlock()
	for _, m := range two.seen {
		expect.Differ(t, "the session", m.Session, had)
		expect.Lacks(t, "the message", m.Raw, "secret")
	}
}

// GWN-08: the gateway's own session with a backend ends when another server takes its place or its settings change. Clients'
// sessions continue. A backend that hangs at the end of a session delays the change only for a limited time.
func TestOwnSessionEndsWithItsBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newScripted(t), newScripted(t)
		g := gatewayOver(t, memory(t), at("b", one))
		mustCall(t, g, sessionBased("s"), "t")
		ofClient := one.received("tools/call")[0].Session
		for i, next := range []api.Backend{at("b", one, prefix("p_")), at("b", two)} {
			g.List(t.Context(), of(ann), api.Tools)
			g.Replace(t.Context(), []api.Backend{next})
			one.mu.Lock()
			if len(one.sessions) != 1 || !one.sessions[ofClient] {
				t.Errorf("after change %d it has the sessions %v, want %s", i, one.sessions, ofClient)
			}
			one.mu.Unlock()
		}
		g.List(t.Context(), of(ann), api.Tools)
		ends := make(chan struct{})
		defer close(ends)
		two.mu.Lock()
		two.ends = ends
		two.mu.Unlock()
		began := time.Now()
		g.Replace(t.Context(), nil)
		expect.AtMost(t, "the time", time.Since(began), endTime)
	})
}

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
	s.intercept(func(w http.ResponseWriter, r *http.Request, m got) bool {
		who, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || m.Method != "tools/list" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, oneTool("of-"+who)(m.Method, ""))
		return true
	})
	return s
}

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
						expect.List(t, fmt.Sprint("the tools of ", token), names(g.List(t.Context(), c, api.Tools)), []string{"of-" + token})
					})
				}
			}
			all.Wait()
			for token, c := range callers {
				expect.True(t, token+" is offered tools", g.Capabilities(t.Context(), c).Tools)
				for other := range callers {
					got, err := call(t, g, c, "of-"+other)
					if (err == nil) != (token == other) || err == nil && !strings.Contains(got, `"Bearer `+token+`"`) {
						t.Errorf("%s calls what is %s's: %s, %v", token, other, got, err)
					}
				}
			}
			for _, tokenless := range []api.Client{withToken("ann", ""), of(ann)} {
				expect.Len(t, "the tools without a token", names(g.List(t.Context(), tokenless, api.Tools)), 0)
				if g.Has(t.Context(), tokenless, api.Tools, "of-alice") || g.Capabilities(t.Context(), tokenless).Tools {
					t.Error("without a token there is something")
				}
			}
			expect.True(t, "a caller's own list is private", !g.List(t.Context(), callers["bob"], api.Tools).Shared)
			for _, m := range s.seen {
				expect.Differ(t, "the token of "+m.Method, m.Header.Get("Authorization"), "")
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
	expect.Eventually(t, "the stream is open", func() bool { return s.open() == 1 })
	for _, token := range []string{"alice", "bob"} {
		c := withToken(token, "Bearer "+token)
		expect.List(t, fmt.Sprint("the tools of ", token), names(g.List(t.Context(), c, api.Tools)), []string{"of-operator"})
		if got, err := call(t, g, c, "of-operator"); err != nil || !strings.Contains(got, `"Bearer `+token+`"`) {
			t.Errorf("%s calls: %s, %v", token, got, err)
		}
	}
	if got, err := call(t, g, withToken("eve", ""), "of-operator"); err == nil {
		t.Errorf("without a token one calls: %s", got)
	}
	expect.True(t, "the list of a backend that distinguishes callers is private", !g.List(t.Context(), withToken("bob", "Bearer bob"), api.Tools).Shared)
	streams := s.received("GET") // the first one is the relay's
	expect.Equal(t, "the credentials of the relay's stream", streams[0].Header.Get("Authorization"), "Bearer operator")
	for _, m := range streams[1:] {
		expect.Differ(t, "the credentials of the stream of a caller's session", m.Header.Get("Authorization"), "Bearer operator")
	}
}

// GWN-19: the gateway keeps a limited number of callers' views, and ends its own sessions of the views that it removes.
func TestViewsAreBounded(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.capabilities = `{"tools":{}}` })
	g := gatewayOver(t, memory(t), at("b", s, forwarded))
	var next atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := next.Add(1); i <= maxViews+20; i = next.Add(1) {
				g.List(t.Context(), withToken(fmt.Sprint("p", i), fmt.Sprint("Bearer ", i)), api.Tools)
			}
		})
	}
	all.Wait()
	expect.Equal(t, "the open sessions", s.alive(), maxViews)
	expect.Equal(t, "the sessions", s.made, maxViews+20)
}

// maxViews is the limit of package backends.
const maxViews = 256

// GWN-19: given a principal that uses a new token for each request, then the views of the other principals stay.
func TestOnePrincipalDoesNotUseUpTheViews(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.capabilities = `{"tools":{}}` })
	g := gatewayOver(t, memory(t), at("b", s, forwarded))
	list := func(principal, token string) { g.List(t.Context(), withToken(principal, "Bearer "+token), api.Tools) }
	list("bob", "bob")
	for i := range maxViews + 20 {
		list("ann", fmt.Sprint(i))
	}
	list("bob", "bob")
	expect.Equal(t, "the sessions", s.made, maxViews+21)
}

// GWN-19, GWN-04: the relay does not follow a backend without credentials of the operator, and clients cannot subscribe to its
// resources.
func TestRelayDoesNotFollowWithCallersTokens(t *testing.T) {
	s := personal(t, false)
	withResources("x://1")(s)
	other := newScripted(t)
	g := gatewayOver(t, memory(t), at("b", s, forwarded), at("other", other))
	l := newLog()
	defer relaying(t, "r", g, l)()
	expect.Eventually(t, "another's stream is open", func() bool { return other.open() == 1 })
	expect.AtMost(t, "the requests", len(s.received("initialize")), 0)
	if _, ok, _ := g.Subscribable(t.Context(), auth.Principal{ID: "ann", Workspace: auth.DefaultWorkspace}, "x://1"); ok {
		t.Error("a caller's own resource can be subscribed to by all")
	}
}
