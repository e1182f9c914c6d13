package demand

import (
	"context"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestTokensOfCallers: GWN-21. A demand has the token of its principal only, which cannot be read without the key. The token that is valid
// for longer stays, and a refused one is replaced.
func TestTokensOfCallers(t *testing.T) {
	r := newRegistry(t)
	r.Start, r.Key = time.Nanosecond, func(context.Context) ([]byte, error) { return []byte("the key of the deployment"), nil }
	uriOfCaller := func(principal string) string { return uri + "." + catalog.CallerID(principal) }
	alices, bobs := uriOfCaller("alice"), uriOfCaller("bob")
	present := func(principal, of, header string, life time.Duration) error {
		token := auth.Token{Header: header}
		if life != 0 {
			token.Expires = time.Now().Add(life)
		}
		return r.Want(auth.WithToken(t.Context(), token), "default", principal, of)
	}
	check := func(what, of, want string) {
		t.Helper()
		expect.Equal(t, what, expect.Value(r.LoadToken(t.Context(), "default", of))(t).Header, want)
	}
	expect.Fault(t, "a demand without a token", present("alice", alices, "", 0), fault.Unauthenticated)
	expect.Fault(t, "an expired token", present("alice", alices, "Bearer old", -time.Second), fault.Unauthenticated)
	expect.Fault(t, "a long token", present("alice", alices, string(make([]byte, maxToken+1)), 0), fault.Invalid)
	expect.Fault(t, "the events of another principal", present("bob", alices, "Bearer bobs", 0), fault.Forbidden)
	expect.OK(t, present("alice", alices, "Bearer short", time.Hour))
	expect.OK(t, present("alice", alices, "Bearer long", 2*time.Hour))
	expect.OK(t, present("alice", alices, "Bearer middle", time.Hour)) // for example of another client
	expect.OK(t, present("alice", alices, "", 0))                      // a stream renews the demand
	expect.OK(t, present("bob", bobs, "Bearer bobs", 0))
	check("alice's token", alices, "Bearer long")
	check("bob's token", bobs, "Bearer bobs")
	wanted := expect.Value(r.ListWanted(t.Context(), "default", "shop"))(t)
	expect.List(t, "the principals that want alice's events", wanted[alices], []string{catalog.CallerID("alice")})

	it := expect.Value(store.One(t.Context(), r.DB, callerKey("default", alices), ""))(t)
	expect.Lacks(t, "the stored item", string(it.Value), "long")
	it.Key = callerKey("default", uriOfCaller("carol"))
	expect.OK(t, r.DB.Write(t.Context(), store.Put(*it)))
	check("a copied token", uriOfCaller("carol"), "")

	expect.OK(t, r.DropToken(t.Context(), "default", alices, auth.Token{Header: "Bearer short"}))
	check("alice's token, after an earlier one was refused", alices, "Bearer long")
	expect.OK(t, r.DropToken(t.Context(), "default", alices, auth.Token{Header: "Bearer long"}))
	check("alice's token, after it was refused", alices, "")
	expect.OK(t, r.SetState(t.Context(), "default", alices, State{Error: "it refuses the token"}))
	expect.OK(t, present("alice", alices, "Bearer shorter", time.Minute)) // and does not get the error of the earlier token
	check("alice's next token", alices, "Bearer shorter")
	expect.OK(t, r.SetState(t.Context(), "default", bobs, State{Error: "it has no such type", Unknown: true}))
	expect.Fault(t, "an unknown event type", present("bob", bobs, "Bearer other", time.Hour), fault.NotFound)

	r.Key = func(context.Context) ([]byte, error) { return []byte("another key"), nil }
	check("bob's token under another key", bobs, "")
}

// TestTokensEndWithTheirDemands: GWN-21.
func TestTokensEndWithTheirDemands(t *testing.T) {
	r := newRegistry(t)
	key := callerKey("default", uri+"."+catalog.CallerID("alice"))
	expect.OK(t, r.DB.Write(t.Context(), store.Put(item(key, []byte(uri+"."+catalog.CallerID("alice")+"\nsealed"), time.Now().Add(-keep-time.Second)))))
	expect.OK(t, expect.ErrOf(r.ListWanted(t.Context(), "default", "shop")))
	if it := expect.Value(store.One(t.Context(), r.DB, key, ""))(t); it != nil {
		t.Errorf("the token is still stored: %q", it.Value)
	}
}
