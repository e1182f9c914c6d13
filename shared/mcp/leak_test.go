package mcp

import (
	"strings"
	"testing"
)

// TestNoLeak gives everybody else the URI of alice's subscription and lets them
// try every method that takes or shows one.
func TestNoLeak(t *testing.T) {
	f := newFixture(t, nil)
	uri := f.registerOne(alice, "event://ci/deploy", "https://alice.example/")
	f.modern(alice, methodEventsSub, `"name":"ci.build",`+callback)
	f.publish("event://ci/deploy", `{"of":"alice"}`)
	for _, key := range []string{bob, foreign} {
		s := f.session(key, V20251125)
		for name, try := range map[string]func() string{
			methodResources:   func() string { return f.modern(key, methodResources, "").Body },
			methodRead:        func() string { return f.modern(key, methodRead, `"uri":"`+uri+`"`).Body },
			methodDeregister:  func() string { return f.modern(key, methodDeregister, `"uri":"`+uri+`"`).Body },
			methodEventsUnsub: func() string { return f.modern(key, methodEventsUnsub, `"name":"ci.build",`+callback).Body },
			methodSubscribe:   func() string { return f.legacy(key, s, methodSubscribe, `"uri":"`+uri+`"`).Body },
			methodListen: func() string {
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
				if (name == methodResources || name == methodListen) && strings.Contains(got, uri) {
					t.Errorf("the subscription shows in %s", got)
				}
			})
		}
	}
	if names, _ := f.all(alice, methodResources); len(names) != 6 {
		t.Errorf("alice has lost something: %v", names)
	}
}
