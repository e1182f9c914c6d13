package mcp

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestNoLeak gives everybody else the URI of alice's subscription and lets them
// try every method that takes or shows one.
func TestNoLeak(t *testing.T) {
	f := newFixture(t, nil)
	uri := f.registerOne(alice, "event://ci/deploy", "https://alice.example/")
	f.stateless(alice, spec.MethodEventsSub, `"name":"ci.build",`+callback)
	f.publish("event://ci/deploy", `{"of":"alice"}`)
	for _, key := range []string{bob, foreign} {
		s := f.session(key, spec.V20251125)
		for name, try := range map[string]func() string{
			spec.MethodResources:   func() string { return f.stateless(key, spec.MethodResources, "").Body },
			spec.MethodRead:        func() string { return f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`).Body },
			spec.MethodDeregister:  func() string { return f.stateless(key, spec.MethodDeregister, `"uri":"`+uri+`"`).Body },
			spec.MethodEventsUnsub: func() string { return f.stateless(key, spec.MethodEventsUnsub, `"name":"ci.build",`+callback).Body },
			spec.MethodSubscribe:   func() string { return f.sessionBased(key, s, spec.MethodSubscribe, `"uri":"`+uri+`"`).Body },
			spec.MethodListen: func() string {
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
				if (name == spec.MethodResources || name == spec.MethodListen) && strings.Contains(got, uri) {
					t.Errorf("the subscription shows in %s", got)
				}
			})
		}
	}
	if names, _ := f.all(alice, spec.MethodResources); len(names) != 6 {
		t.Errorf("alice has lost something: %v", names)
	}
}
