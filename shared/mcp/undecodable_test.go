package mcp

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// damage makes values of items of a session unreadable.
func (f *fixture) damage(id string, which func(sort string) bool) (n int) {
	f.t.Helper()
	page, err := f.db.Query(f.t.Context(), store.Query{Table: store.Sessions, Partition: "s#" + session.Key(id), Limit: 1000})
	must(f.t, err)
	for _, it := range page.Items {
		if which(it.Sort) {
			it.Value = []byte(`{"u":5,"ver":[`)
			must(f.t, f.db.Write(f.t.Context(), store.Put(it)))
			n++
		}
	}
	return n
}

// SES-02: a session whose item cannot be decoded is as one that there is not: its client begins another. It is counted, and no other session
// is harmed.
func TestAnUndecodableSessionIsNone(t *testing.T) {
	f := newFixture(t, nil)
	bad, good := f.session(alice, spec.V20251125), f.session(alice, spec.V20251125)
	open := f.stream(alice, bad, "")
	open.event()
	if n := f.damage(bad, func(sort string) bool { return sort == "-" }); n != 1 {
		t.Fatalf("%d items were damaged", n)
	}
	for range 3 {
		if r := f.sessionBased(alice, bad, spec.MethodResources, ""); r.Status != http.StatusNotFound {
			t.Errorf("the damaged session: %d %s", r.Status, r.Body)
		}
	}
	if got := f.endpoint.sessions.Broken.Count("session"); got != 3 {
		t.Errorf("counted %d", got)
	}
	for what, id := range map[string]string{"another": good, "a new one": f.session(alice, spec.V20251125)} {
		if r := f.sessionBased(alice, id, spec.MethodResources, ""); r.Status != 200 {
			t.Errorf("%s: %d %s", what, r.Status, r.Body)
		}
	}
}

// SES-04: of the subscriptions of a session one that cannot be decoded brings nothing, the others go on, and all of them end with it.
func TestAnUndecodableSubscriptionOfASession(t *testing.T) {
	f := newFixture(t, nil)
	id := f.session(alice, spec.V20251125)
	for _, uri := range []string{"event://ci/deploy", "event://ci/build-finished"} {
		if r := f.sessionBased(alice, id, spec.MethodSubscribe, `"uri":"`+uri+`"`); r.Status != 200 || r.rpc(t).Error != nil {
			t.Fatalf("%+v", r)
		}
	}
	bad := uriSort("event://ci/build-finished")
	if n := f.damage(id, func(sort string) bool { return sort == bad }); n != 1 {
		t.Fatalf("%d items were damaged", n)
	}
	s := f.stream(alice, id, "")
	s.event()
	f.publish("event://ci/deploy", `{"n":1}`)
	s.next().isEvent(t, "event://ci/deploy", `{"n":1}`)
	if got := f.endpoint.sessions.Broken.Count("subscription of a session"); got == 0 {
		t.Error("it was not counted")
	}
	if r := f.do("DELETE", alice, "", "Mcp-Session-Id: "+id); r.Status != http.StatusNoContent {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	if n := f.damage(id, func(string) bool { return true }); n != 0 {
		t.Errorf("%d items are left behind", n)
	}
}

// uriSort is where a session's subscription to a URI lies.
func uriSort(uri string) string {
	h := sha256.Sum256([]byte(uri))
	return "u#" + base64.RawURLEncoding.EncodeToString(h[:])
}
