package mcp

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/stream/lease"
)

func two(context.Context, auth.Principal) int { return 2 }

// keepers are both ways to bound streams: of one process, and of a fleet.
func keepers(t *testing.T) map[string]func() Leases {
	return map[string]func() Leases{
		"embedded": func() Leases { return lease.NewLocal(two, false) },
		"fleet": func() Leases {
			db, err := sqlite.Open(":memory:", sqlite.Options{})
			must(t, err)
			t.Cleanup(func() { _ = db.Close() })
			return &lease.Shared{DB: db, Max: two, Fleet: 4, Life: time.Minute, Check: 10 * time.Millisecond}
		},
	}
}

// oneStream are the leases of a fleet that has room for one stream.
type oneStream struct{ taken atomic.Bool }

func (o *oneStream) Take(context.Context, auth.Principal, func()) (release func(), err error) {
	if o.taken.Swap(true) {
		return nil, fault.New(fault.Unavailable, "there is one already").AtLimit("streams", 1)
	}
	return func() { o.taken.Store(false) }, nil
}

func TestStreamsOfAPrincipal(t *testing.T) {
	for name, leases := range keepers(t) {
		t.Run("AUT-07 SUB-06 the oldest listen over the quota is completed: "+name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.Leases = leases() })
			var all []*open
			for _, id := range []string{"1", "2"} {
				l := f.listen(alice, id, `{"resourceSubscriptions":["event://ci/deploy"]}`)
				l.next()
				all = append(all, l)
			}
			other := f.listen(bob, "1", `{"resourceSubscriptions":["event://ci/deploy"]}`)
			other.next()
			third := f.listen(alice, "3", `{"resourceSubscriptions":["event://ci/deploy"]}`)
			third.next()
			if e := all[0].event(); !strings.Contains(string(e.Data), `"resultType":"complete"`) {
				t.Errorf("the oldest got %s", e.Data)
			}
			all[0].end()
			f.publish("event://ci/deploy", `{"n":1}`)
			for _, l := range []*open{all[1], other, third} {
				l.next().isEvent(t, "event://ci/deploy", `{"n":1}`)
			}
		})
		t.Run("AUT-07 SSE-02 so is a stream of the dialect: "+name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.Leases = leases() })
			first, _ := f.dialectStream(alice)

			for _, id := range []string{"1", "2"} {
				f.listen(alice, id, `{}`).next()
			}
			if e := first.event(); e.Name != "lifecycle" || !strings.Contains(string(e.Data), "superseded") {
				t.Errorf("got %s %s", e.Name, e.Data)
			}
		})
	}
	t.Run("AUT-07 a fleet without room says so, and calls get through", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Leases = keepers(t)["fleet"]() })
		for _, key := range []string{alice, bob} {
			for _, id := range []string{"1", "2"} {
				f.listen(key, id, `{}`).next()
			}
		}
		r := f.stateless(reader, mcpspec.MethodListen, `"notifications":{}`)
		if r.Status != 503 || r.code(t) != codeUnavailable || !strings.Contains(r.Body, `"limit":"streams"`) || r.Header.Get("Retry-After") == "" {
			t.Errorf("%+v", r)
		}
		if r := f.stateless(reader, mcpspec.MethodResources, ""); r.Status != 200 {
			t.Errorf("%+v", r)
		}
	})
	for name, leases := range map[string]func(*testing.T) Leases{
		"embedded": func(*testing.T) Leases { return lease.NewLocal(two, true) },
		"fleet": func(t *testing.T) Leases {
			db, err := sqlite.Open(":memory:", sqlite.Options{})
			must(t, err)
			t.Cleanup(func() { _ = db.Close() })
			return &lease.Shared{DB: db, Max: two, Life: time.Minute, Check: 10 * time.Millisecond, Refuse: true}
		},
	} {
		t.Run("AUT-07 EVX-16 a stream over the quota is refused where the operator wants that: "+name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.Leases = leases(t) })
			f.listen(alice, "1", `{}`).next()
			f.push(alice, "2", "ci.deploy", `{}`, "")
			session := f.session(alice, mcpspec.V20251125)
			for what, c := range map[string]struct {
				reply
				status, code int
			}{
				"push":   {f.stateless(alice, mcpspec.MethodEventsStream, pollParams("ci.deploy", `{}`, "")), 200, -32013},
				"listen": {f.stateless(alice, mcpspec.MethodListen, `"notifications":{}`), 200, codeExhausted},
				"GET":    {f.do("GET", alice, "", "Accept:", "Accept: text/event-stream", "Mcp-Session-Id: "+session), 429, codeExhausted},
			} {
				if c.Status != c.status || c.reply.code(t) != c.code || !strings.Contains(c.Body, `"limit":"streams","max":2`) {
					t.Errorf("%s: %d %s", what, c.Status, c.Body)
				}
			}
		})
	}
}
