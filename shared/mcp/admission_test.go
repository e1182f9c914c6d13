package mcp

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// keep is an option: so many streams for each principal, of which the oldest ends for one more, unless that is refused.
// That a process and a fleet count alike is shown with [lease].
func keep(n int, refuse bool) func(*Options) {
	return func(o *Options) {
		o.Leases = lease.NewLocal(func(context.Context, auth.Principal) int { return n }, refuse)
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
	t.Run("AUT-07 SUB-06 the oldest listen over the quota is completed", func(t *testing.T) {
		f := newFixture(t, keep(2, false))
		listen := func(key, id string) *open {
			l := f.listen(key, id, `{"resourceSubscriptions":["event://ci/deploy"]}`)
			l.next()
			return l
		}
		oldest, second, other, third := listen(alice, "1"), listen(alice, "2"), listen(bob, "1"), listen(alice, "3")
		if e := oldest.event(); !strings.Contains(string(e.Data), `"resultType":"complete"`) {
			t.Errorf("the oldest got %s", e.Data)
		}
		oldest.end()
		f.publish("event://ci/deploy", `{"n":1}`)
		for _, l := range []*open{second, other, third} {
			l.next().isEvent(t, "event://ci/deploy", `{"n":1}`)
		}
	})
	t.Run("AUT-07 SSE-02 so is a stream of the dialect", func(t *testing.T) {
		f := newFixture(t, keep(2, false))
		first, _ := f.dialectStream(alice)
		for _, id := range []string{"1", "2"} {
			f.listen(alice, id, `{}`).next()
		}
		if got := first.lifecycle("streamClosed"); got["reason"] != "superseded" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("AUT-07 a fleet without room says so, and calls get through", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Leases = &oneStream{} })
		f.listen(alice, "1", `{}`).next()
		r := f.stateless(reader, spec.MethodListen, `"notifications":{}`)
		if r.Status != 503 || r.code(t) != method.CodeUnavailable || !strings.Contains(r.Body, `"limit":"streams"`) || r.Header.Get("Retry-After") == "" {
			t.Errorf("%+v", r)
		}
		if r := f.stateless(reader, spec.MethodResources, ""); r.Status != 200 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("AUT-07 EVX-16 a stream over the quota is refused where the operator wants that", func(t *testing.T) {
		f := newFixture(t, keep(2, true))
		f.listen(alice, "1", `{}`).next()
		f.push(alice, "2", "ci.deploy", `{}`, "")
		session := f.session(alice, spec.V20251125)
		for what, c := range map[string]struct {
			reply
			status, code int
		}{
			"push":   {f.stateless(alice, spec.MethodEventsStream, pollParams("ci.deploy", `{}`, "")), 200, -32013},
			"listen": {f.stateless(alice, spec.MethodListen, `"notifications":{}`), 200, method.CodeExhausted},
			"GET":    {f.do("GET", alice, "", "Accept:", "Accept: text/event-stream", "Mcp-Session-Id: "+session), 429, method.CodeExhausted},
		} {
			if c.Status != c.status || c.reply.code(t) != c.code || !strings.Contains(c.Body, `"limit":"streams","max":2`) {
				t.Errorf("%s: %d %s", what, c.Status, c.Body)
			}
		}
	})
}
