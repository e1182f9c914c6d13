package mcp

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// TestNoLeak gives everybody else the URI of alice's subscription and lets them
// try every method that takes or shows one.
func TestNoLeak(t *testing.T) {
	f := newFixture(t, nil)
	uri := f.registerOne(alice, "event://ci/deploy", "https://alice.example/")
	f.stateless(alice, mcpspec.MethodEventsSub, `"name":"ci.build",`+callback)
	f.publish("event://ci/deploy", `{"of":"alice"}`)
	for _, key := range []string{bob, foreign} {
		s := f.session(key, mcpspec.V20251125)
		for name, try := range map[string]func() string{
			mcpspec.MethodResources:   func() string { return f.stateless(key, mcpspec.MethodResources, "").Body },
			mcpspec.MethodRead:        func() string { return f.stateless(key, mcpspec.MethodRead, `"uri":"`+uri+`"`).Body },
			mcpspec.MethodDeregister:  func() string { return f.stateless(key, mcpspec.MethodDeregister, `"uri":"`+uri+`"`).Body },
			mcpspec.MethodEventsUnsub: func() string { return f.stateless(key, mcpspec.MethodEventsUnsub, `"name":"ci.build",`+callback).Body },
			mcpspec.MethodSubscribe:   func() string { return f.sessionBased(key, s, mcpspec.MethodSubscribe, `"uri":"`+uri+`"`).Body },
			mcpspec.MethodListen: func() string {
				l := f.listen(key, "1", `{"resourceSubscriptions":["`+uri+`"]}`)
				defer l.cancel()
				return string(l.next().sse.Data)
			},
		} {
			t.Run("AUT-05_"+strings.ReplaceAll(name, "/", "_")+"_by_"+key, func(t *testing.T) {
				got := try()
				// The URI that they sent may be echoed; anything else of alice's must not.
				for _, secret := range []string{"alice.example", `"state"`, `"of"`} {
					if strings.Contains(got, secret) {
						t.Errorf("%s in %s", secret, got)
					}
				}
				if (name == mcpspec.MethodResources || name == mcpspec.MethodListen) && strings.Contains(got, uri) {
					t.Errorf("the subscription shows in %s", got)
				}
			})
		}
	}
	if names, _ := f.all(alice, mcpspec.MethodResources); len(names) != 6 {
		t.Errorf("alice has lost something: %v", names)
	}
}
