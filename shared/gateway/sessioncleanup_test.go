package gateway

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/store"
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
	s := newScripted(t, func(s *scripted) { s.call = func(t *turn) { t.result(`{"by":"` + t.Session + `"}`) } })
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
	b := gateways[0].VisibleTo(t.Context(), ann)[0]
	for _, key := range []store.Key{sessionKey(holder(declaring(ann, 0)), b), listKey(declaring(ann, 0), b)} {
		items, err := db.Get(t.Context(), key)
		if err != nil || items[0] == nil {
			t.Fatalf("%v: %v", key, err)
		}
		items[0].Expires = time.Now().Add(time.Hour)
		if err := db.Write(t.Context(), store.Put(*items[0])); err != nil {
			t.Fatal(err)
		}
	}
	const clients = 3 * maxUnused
	for i := 1; i < clients; i++ {
		if i == 5 { // its use is recorded
			if again := by(1, declaring(ann, 0)); again != first {
				t.Errorf("it is in another session, %s", again)
			}
		}
		if sid := by(i, declaring(ann, i)); sid != by(i+1, declaring(ann, i)) {
			t.Errorf("client %d has a session for each call", i)
		}
		s.mu.Lock()
		n := len(s.sessions) - len(gateways) - len(others) // without the gateways' own
		s.mu.Unlock()
		if n > maxUnused {
			t.Fatalf("after client %d there are %d sessions", i, n)
		}
	}
	page, err := db.Query(t.Context(), store.Query{Table: store.Sessions, Partition: listKey(declaring(ann, 0), b).Partition, Limit: 1000})
	if err != nil || len(page.Items) != maxUnused {
		t.Errorf("%d are listed, %v", len(page.Items), err)
	}
	for name, c := range others {
		if sid := by(1, c); sid != was[name] {
			t.Errorf("%s has another session", name)
		}
	}
	if _, err := call(t, gateways[0], declaring(ann, 1), "t"); err != nil {
		t.Errorf("a client whose session was ended: %v", err)
	}
}

// GWN-08: a session does not expire while it is in use.
func TestUsedSessionsAreKept(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.call = func(t *turn) { t.result(`{}`) } })
	db := memory(t)
	g := gatewayOver(t, db, at("b", s))
	for _, c := range []api.Client{sessionBased("s"), statelessClient(ann)} {
		key := sessionKey(holder(c), g.VisibleTo(t.Context(), ann)[0])
		expires := func() time.Time {
			items, err := db.Get(t.Context(), key)
			if err != nil || items[0] == nil {
				t.Fatalf("%v", err)
			}
			return items[0].Expires
		}
		mustCall(t, g, c, "t")
		fresh := expires()
		items, _ := db.Get(t.Context(), key)
		items[0].Expires = time.Now().Add(time.Minute)
		if err := db.Write(t.Context(), store.Put(*items[0])); err != nil {
			t.Fatal(err)
		}
		mustCall(t, g, c, "t")
		if now := expires(); now.Before(fresh) {
			t.Errorf("it expires at %s, before %s", now, fresh)
		}
	}
}
