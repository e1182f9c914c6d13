package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// declaring returns a client of 2026-07-28 with capabilities that differ for each i.
func declaring(p auth.Principal, i int) api.Client {
	c := statelessClient(p)
	c.Capabilities = json.RawMessage(fmt.Sprintf(`{"experimental":{"x":%d}}`, i))
	return c
}

// GWN-08: a principal has a limited number of sessions with a session-based backend, however many clients of 2026-07-28 it has.
// The gateway ends the longest unused ones, in the store and at the backend, and begins them again when they are needed. Sessions
// of other principals and of clients with sessions stay.
func TestSessionsOfStatelessClientsAreBounded(t *testing.T) {
	s := newScripted(t, showSession)
	db := memory(t)
	gateways := []*Gateway{gatewayOver(t, db, at("b", s)), gatewayOver(t, db, at("b", s))}
	for _, g := range gateways {
		g.sessions.idle = -time.Hour // no call is ever under way
	}
	by := func(i int, c api.Client) string {
		return mustCall(t, gateways[i%2], c, "t")
	}
	bob := auth.Principal{ID: "bob", Workspace: auth.DefaultWorkspace, Scopes: ann.Scopes}
	others := map[string]api.Client{"bob": declaring(bob, 0), "a session": sessionBased("s")}
	was := map[string]string{}
	for name, c := range others {
		was[name] = by(0, c)
	}
	first := by(0, declaring(ann, 0))
	// It was used long ago, as the store records it, to the second.
	b, ss := gateways[0].VisibleTo(t.Context(), ann)[0], gateways[0].sessions
	for _, key := range []store.Key{sessionKey(ss.holderOf(declaring(ann, 0), b), b), ss.listKey(declaring(ann, 0), b)} {
		items, err := db.Get(t.Context(), key)
		if err != nil || items[0] == nil {
			t.Fatalf("%v: %v", key, err)
		}
		items[0].Expires = time.Now().Add(time.Hour)
		expect.OK(t, db.Write(t.Context(), store.Put(*items[0])))
	}
	const clients = 3 * maxUnusedSessions
	for i := 1; i < clients; i++ {
		if i == 5 { // its use is recorded
			expect.Equal(t, "the session of the first client", by(1, declaring(ann, 0)), first)
		}
		expect.Equal(t, fmt.Sprint("the sessions of two calls of client ", i), by(i, declaring(ann, i)), by(i+1, declaring(ann, i)))
		s.mu.Lock()
		n := len(s.sessions) - len(gateways) - len(others) // without the gateways' own
		s.mu.Unlock()
		if n > maxUnusedSessions {
			t.Fatalf("after client %d there are %d sessions", i, n)
		}
	}
	page := expect.Value(db.Query(t.Context(), store.Query{Table: store.Sessions, Partition: ss.listKey(declaring(ann, 0), b).Partition, Limit: 1000}))(t)
	expect.Equal(t, "the number of items", len(page.Items), maxUnusedSessions)
	for name, c := range others {
		expect.Equal(t, fmt.Sprint("the session of ", name), by(1, c), was[name])
	}
	expect.OK(t, expect.ErrOf(call(t, gateways[0], declaring(ann, 1), "t")), "a client whose session was ended")
}

func presenting(token string) api.Client {
	c := statelessClient(ann)
	c.Token = token
	return c
}

// GWN-08, GWN-19: a session with a backend that gets the callers' tokens is for one token of a client without a session. All instances use
// it. At other backends, and for a client with a session, the token makes no difference.
func TestSessionsOfStatelessClientsAreForOneToken(t *testing.T) {
	s, other := newScripted(t, showSession), newScripted(t, showSession)
	var mu sync.Mutex
	tokens := map[string]string{} // of each session
	s.intercept(func(_ http.ResponseWriter, _ *http.Request, m got) bool {
		token := m.Header.Get("Authorization")
		mu.Lock()
		defer mu.Unlock()
		if m.Session != "" && m.Method != "" && tokens[m.Session] != "" && tokens[m.Session] != token {
			t.Errorf("the session of %q was used with %q", tokens[m.Session], token)
		}
		tokens[m.Session] = token
		return false
	})
	db := memory(t)
	var gateways []*Gateway
	for range 2 {
		gateways = append(gateways, gatewayOver(t, db, at("b", s, forwarded), at("other", other, prefix("o_"))))
	}
	g := gateways[0]
	a, b := presenting("Bearer a"), presenting("Bearer b")
	ofA := mustCall(t, g, a, "t")
	expect.Differ(t, "the session of the other token", ofA, mustCall(t, g, b, "t"))
	expect.Equal(t, "the session of the first token at another instance", mustCall(t, gateways[1], a, "t"), ofA)
	expect.Equal(t, "the sessions of two tokens at a backend that does not get them", mustCall(t, g, a, "o_t"), mustCall(t, g, b, "o_t"))

	expect.OK(t, g.Notify(t.Context(), a, json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/x"}`)))
	if session := s.next(t, "notifications/x").Session; !strings.Contains(ofA, `"`+session+`"`) {
		t.Errorf("the session %s was notified, want %s", session, ofA)
	}
	other.next(t, "notifications/x")
	expect.OK(t, g.End(t.Context(), a))
	expect.Differ(t, "the session after the end", mustCall(t, g, a, "t"), ofA)

	s.intercept(nil)
	first, second := sessionBased("s"), sessionBased("s")
	first.Token, second.Token = "Bearer a", "Bearer b"
	expect.Equal(t, "the session of a client with a session and a new token", mustCall(t, g, second, "t"), mustCall(t, g, first, "t"))
}

// GWN-08, GWN-19: a principal may use any number of tokens, for example because it refreshes them. The gateway ends the longest unused
// sessions of earlier tokens. A single token has a limited number of sessions.
func TestSessionsOfManyTokensAreEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		db := memory(t)
		g := gatewayOver(t, db, at("b", s, forwarded))
		for i := range maxSessionsInUse + 1 {
			mustCall(t, g, presenting(fmt.Sprint("Bearer ", i)), "t")
		}
		same := func(i int) api.Client {
			c := declaring(ann, i)
			c.Token = "Bearer same"
			return c
		}
		for i := range maxSessionsInUse {
			mustCall(t, g, same(i), "t")
		}
		_, err := call(t, g, same(maxSessionsInUse), "t")
		expect.Fault(t, "one session more with the same token", err, fault.Exhausted)
		time.Sleep(time.Hour)
		mustCall(t, g, presenting("Bearer last"), "t")
		list := g.sessions.listKey(presenting("Bearer last"), g.VisibleTo(t.Context(), ann)[0])
		page := expect.Value(db.Query(t.Context(), store.Query{Table: store.Sessions, Partition: list.Partition, Limit: 1000}))(t)
		expect.Equal(t, "listed sessions", len(page.Items), maxUnusedSessions)
	})
}

// GWN-08, GWN-19: all users share the anonymous principal. If they have more sessions than the store returns in one page, the gateway still
// counts the sessions of a token and ends the longest unused ones.
func TestSessionsOfMoreTokensThanFitIntoAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const page = 1000
		s := newScripted(t)
		db := memory(t)
		g := gatewayOver(t, db, at("b", s, forwarded))
		b, ss := g.VisibleTo(t.Context(), ann)[0], g.sessions
		list := ss.listKey(presenting("x"), b)
		add := func(holder string, unused time.Duration) {
			expect.OK(t, db.Write(t.Context(), store.Put(store.Item{
				Key: store.Key{Table: list.Table, Partition: list.Partition, Sort: holder}, Expires: time.Now().Add(sessionTTL - unused),
			})))
		}
		for i := range page {
			add(fmt.Sprintf("a-%04d.another", i), 0) // sorts before the holders of clients, which begin with p-
		}
		own := ss.tokenID(presenting("Bearer own"), b)
		for i := range maxSessionsInUse {
			add(fmt.Sprintf("z-%d%s", i, own), 0)
		}
		_, err := call(t, g, presenting("Bearer own"), "t")
		expect.Fault(t, "one session more with the same token", err, fault.Exhausted)
		add("z-old.another", 2*ss.idle)
		mustCall(t, g, presenting("Bearer other"), "t")
		items := expect.Value(db.Get(t.Context(), store.Key{Table: list.Table, Partition: list.Partition, Sort: "z-old.another"}))(t)
		if items[0] != nil {
			t.Error("the longest unused session was not ended")
		}
	})
}

// GWN-08: a session does not expire while it is in use.
func TestUsedSessionsAreKept(t *testing.T) {
	_, g := alone(t)
	db, b := g.options.DB, g.VisibleTo(t.Context(), ann)[0]
	for _, c := range []api.Client{sessionBased("s"), statelessClient(ann)} {
		stored := func() store.Item {
			mustCall(t, g, c, "t")
			return *expect.Value(db.Get(t.Context(), sessionKey(g.sessions.holderOf(c, b), b)))(t)[0]
		}
		fresh := stored()
		old := fresh
		old.Expires = time.Now().Add(time.Minute)
		expect.OK(t, db.Write(t.Context(), store.Put(old)))
		expect.True(t, "the expiry is later", !stored().Expires.Before(fresh.Expires))
	}
}

// GWN-08: given a stored session that cannot be decoded, then the next call begins a new one and continues.
func TestAnUndecodableSessionWithABackend(t *testing.T) {
	s, g := alone(t)
	damaged := store.Item{Key: sessionKey("s1", g.VisibleTo(t.Context(), ann)[0]), Value: []byte(`{"v":`), Version: 7, Expires: time.Now().Add(time.Hour)}
	for range 2 {
		expect.OK(t, g.options.DB.Write(t.Context(), store.Put(damaged)))
		for range 2 {
			expect.Contains(t, "the result", mustCall(t, g, sessionBased("s1"), "t"), `"result":{}`)
		}
	}
	expect.Equal(t, "broken items that were counted", g.broken.Count("session with a backend"), 2)
	expect.Equal(t, "calls of the backend", len(s.received("tools/call")), 4)
}

// GWN-09: given a stored question that cannot be decoded, then an answer to it is an answer to an unknown question.
func TestAnUndecodableQuestion(t *testing.T) {
	_, g := alone(t)
	id := addRequest(t, t.Context(), g)
	expect.OK(t, g.options.DB.Write(t.Context(), store.Put(store.Item{Key: elicitationKey(id), Value: []byte(`[`), Expires: time.Now().Add(time.Hour)})))
	expect.Fault(t, "an answer to it", g.Answer(t.Context(), sessionBased("s1"), id, json.RawMessage(`{}`)), fault.NotFound)
	expect.Equal(t, "broken items that were counted", g.broken.Count("request of a backend"), 1)
}

// GWN-03: a lease that cannot be decoded belongs to another relay until it expires. Then any relay can take it.
func TestAnUndecodableLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := alone(t)
		key := store.Key{Table: store.Sessions, Partition: "relay#default#b", Sort: "-"}
		expect.OK(t, g.options.DB.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte(`{`), Expires: time.Now().Add(2 * time.Second)})))
		relaying(t, "r", g, newLog())
		s.only(t, 1)
	})
}

// GWN-08: given a backend that refuses the session for a call, then the client learns which backend it is.
func TestARefusedSessionNamesItsBackend(t *testing.T) {
	s, g := alone(t)
	g.List(t.Context(), of(ann), api.Tools)
	s.change(func(s *scripted) { s.allow = func(http.Header) bool { return false } })
	for _, c := range []api.Client{sessionBased("s"), statelessClient(ann)} {
		_, err := call(t, g, c, "t")
		expect.Equal(t, "the error", fault.Public(err), "backend b did not begin a session")
	}
}
