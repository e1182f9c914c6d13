package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
		s.lists = func(method, _ string) string {
			if method == "tools/list" {
				return `{"tools":[{"name":"t"}],"ttlMs":60000}`
			}
			return emptyList(method)
		}
		s.call = func(t *turn) { t.result(`{"resultType":"complete"}`) }
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
	if reads, _ := db.reads(func() {
		mustCall(t, g, statelessClient(ann), "b_t")
	}); reads != 0 {
		t.Errorf("a call made %d reads", reads)
	}
	if reads, _ := db.reads(func() {
		if _, err := call(t, g, statelessClient(ann), "nothing"); err == nil {
			t.Fatal("what is not there was called")
		}
	}); reads != 1 {
		t.Errorf("a call of an unknown tool made %d reads, want 1", reads)
	}
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
		if _, err := call(t, other, sessionBased("s"), name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
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
	s := newScripted(t, func(s *scripted) {
		s.stateless = true
		s.call = func(t *turn) { t.result(`{"resultType":"complete"}`) }
	})
	db := &counting{DB: memory(t)}
	g := gatewayOver(t, db, at("b", s))
	g.List(t.Context(), of(ann), api.Tools)
	db.fail.Store(true)
	if _, err := call(t, g, statelessClient(ann), "t"); err != nil {
		t.Error(err)
	}
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
		if took := time.Since(began); took > g.options.AskTimeout {
			t.Errorf("it is waited for %s", took)
		}
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
		expect.OK(t, g.VisibleTo(t.Context(), ann)[0].ChangeListVersion(t.Context(), api.Tools.Changed()))
		n = asked.Load()
		g.List(t.Context(), of(ann), api.Tools)
		if asked.Load() == n {
			t.Error("a backend that notifies of a change is not asked")
		}
	})
}

// GWN-01: calls use a list with a time to live of 0 without fetching it again. Lists fetch it each time.
func TestCallsUseAListThatMayNotBeKept(t *testing.T) {
	s, g := alone(t, func(s *scripted) {
		s.stateless = true
		s.lists = func(method, _ string) string {
			return `{"tools":[{"name":"t"}],"ttlMs":0,"cacheScope":"public"}`
		}
		s.call = func(t *turn) { t.result(`{"resultType":"complete"}`) }
	})
	for range 3 {
		mustCall(t, g, statelessClient(ann), "t")
	}
	expect.Equal(t, "requests for the list by three calls", len(s.received("tools/list")), 1)
	for range 3 {
		g.List(t.Context(), of(ann), api.Tools)
	}
	if n := len(s.received("tools/list")); n != 4 {
		t.Errorf("three lists asked %d times, want 3", n-1)
	}
}
