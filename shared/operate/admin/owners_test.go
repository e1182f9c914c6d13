package admin_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestOwnersLists: OPS-09, of an owner who names no subscription.
func TestOwnersLists(t *testing.T) {
	f := start(t, nil)
	mine := []string{f.subscribe("alice", "/a", built), f.subscribe("alice", "/b", built)}
	f.subscribe("bob", "/c", built)
	f.answerWith(413)
	for i := range 5 {
		f.publish(built, fmt.Sprintf("evt_%d", i))
	}
	f.eventually("the dead letters", func() bool { return len(f.list("op", "dead-letters").Items) == 15 })
	for _, path := range []string{"deliveries", "dead-letters"} {
		t.Run("OPS-09 OPS-03 an owner pages through all of their own "+path+", newest first, and through nothing else", func(t *testing.T) {
			var got []string
			f.eventually("the list of all", func() bool { return len(f.list("op", path).Items) == 15 })
			l := f.list("alice", path+"?limit=3")
			for pages := 1; ; pages++ {
				for _, it := range l.Items {
					if !slices.Contains(mine, it["subscription"].(string)) {
						t.Fatalf("another's: %v", it)
					}
					at := it["at"]
					if at == nil {
						at = it["dead"]
					}
					got = append(got, fmt.Sprint(at)+" "+it["subscription"].(string)+" "+it["event"].(string))
				}
				if l.Next == "" || pages == 20 {
					break
				}
				l = f.list("alice", path+"?limit=3&cursor="+l.Next)
			}
			var want []string
			for _, it := range f.list("op", path).Items {
				if at := it["at"]; slices.Contains(mine, it["subscription"].(string)) {
					if at == nil {
						at = it["dead"]
					}
					want = append(want, fmt.Sprint(at)+" "+it["subscription"].(string)+" "+it["event"].(string))
				}
			}
			slices.Sort(want)
			sorted := slices.Sorted(slices.Values(got))
			if len(got) != 10 || !slices.Equal(sorted, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			for i := 1; i < len(got); i++ {
				if got[i-1][:19] < got[i][:19] {
					t.Errorf("%s comes before %s", got[i-1], got[i])
				}
			}
		})
	}
}

// SRF-07: an owner cannot have webhooks sent again to an endpoint that answered 410. An operator can.
func TestAnOwnerDoesNotResumeASubscriptionOfAnEndpointThatIsGone(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	f.answerWith(http.StatusGone)
	f.publish(built, "evt_1")
	f.eventually("the end of the subscription", func() bool {
		return len(f.list("op", "subscriptions?state=disabled").Items) == 1
	})
	if raw := f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusConflict, nil); !strings.Contains(string(raw), "410 Gone") {
		t.Errorf("the reason is not named: %s", raw)
	}
	f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
}

// AUT-07: the quota of registrations limits the changes of owners. Changes of operators and reads are not limited.
func TestOwnersChangesHaveARate(t *testing.T) {
	f := start(t, func(o *standalone.Options) { o.Limits.RegistrationRate = 0.1 }) // a burst of one
	id := f.subscribe("alice", "/a", built)
	f.call("alice", http.MethodPost, "subscriptions/"+id+"/pause", "", http.StatusOK, nil)
	if raw := f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusTooManyRequests, nil); !strings.Contains(string(raw), `"limit":"registrationRate"`) {
		t.Errorf("the limit is not named: %s", raw)
	}
	f.call("alice", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, nil)
	for range 3 {
		f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
		f.call("op", http.MethodPost, "subscriptions/"+id+"/pause", "", http.StatusOK, nil)
	}
}

// TestOriginOfTheConsole: OPS-11. Behind TLS the console's own origin needs no setting; others do.
func TestOriginOfTheConsole(t *testing.T) {
	h := admin.New(admin.Options{Auth: auth.None(), Log: slog.New(slog.DiscardHandler)})
	for origin, want := range map[string]int{
		"": 200, "https://events.example.com": 200, "http://events.example.com": 403, "https://other.example.com": 403, "null": 403,
	} {
		r := httptest.NewRequest("GET", "https://events.example.com/admin/v1/openapi.json", nil)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		expect.Equal(t, fmt.Sprintf("OPS-11 the status for origin %q", origin), w.Code, want)
	}
}

// A repeated member could turn a dry run into a replay.
func TestRepeatedMembersAreRejected(t *testing.T) {
	f := start(t, nil)
	for body, name := range map[string]string{
		`{"select":{},"dryRun":true,"dryRun":false}`:       "dryRun",
		`{"select":{},"dryRun":true,"DryRun":false}`:       "DryRun",
		`{"ſelect":{"event":"a"},"select":{}}`:             "select",
		`{"select":{"event":"a","Event":"b"}}`:             "Event",
		`{"select":{},"dryRun":true,"select":{},"rate":1}`: "select",
	} {
		if raw := f.call("op", http.MethodPost, "replays", body, http.StatusBadRequest, nil); !strings.Contains(string(raw), name) {
			t.Errorf("%s: got %s, want the repeated member %s to be named", body, raw, name)
		}
	}
}

// A reason is stored in the audit trail for 400 days, so its length is limited as openapi.json says.
func TestReasonsHaveALimit(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	body := func(n int) string { return `{"reason":"` + strings.Repeat("é", n) + `"}` }
	for _, x := range []struct{ who, method, path string }{
		{"alice", http.MethodPost, "subscriptions/" + id + "/pause"},
		{"op", http.MethodPut, "switches/subscription/" + id},
		{"op", http.MethodPut, "switches/all"},
	} {
		if raw := f.call(x.who, x.method, x.path, body(501), http.StatusBadRequest, nil); !strings.Contains(string(raw), "reason has 501 characters") {
			t.Errorf("%s %s: got %s, want the reason to be named", x.method, x.path, raw)
		}
		f.call(x.who, x.method, x.path, body(500), http.StatusOK, nil)
	}
}

// OPS-09 OPS-06: an operator's pause holds against the owner, even if the owner had paused the subscription before and the operator
// gives no reason.
func TestAnOperatorsPauseReplacesTheOwners(t *testing.T) {
	f := start(t, nil)
	for _, pause := range []struct{ method, path string }{{http.MethodPost, "subscriptions/%s/pause"}, {http.MethodPut, "switches/subscription/%s"}} {
		id := f.subscribe("alice", "/a", built)
		f.call("alice", http.MethodPost, "subscriptions/"+id+"/pause", `{"reason":"moving"}`, http.StatusOK, nil)
		f.call("op", pause.method, fmt.Sprintf(pause.path, id), "", http.StatusOK, nil)
		f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusForbidden, nil)
		var got struct{ State string }
		f.call("op", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, &got)
		expect.Equal(t, "OPS-09 the state after the owner's resume", got.State, "paused")
		f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
	}
}

// OPS-09 OPS-19: an operator's pause still holds after the owner has ended the subscription and subscribed again, until an operator
// resumes it. The owner's own pause ends with the subscription.
func TestASubscriptionIsMadeAgainAfterAPause(t *testing.T) {
	for _, tc := range []struct {
		by, state, shown string
		resume           int
	}{{"op", "paused", "an operator", http.StatusForbidden}, {"alice", "active", "", http.StatusOK}} {
		t.Run("OPS-09 by "+tc.by, func(t *testing.T) {
			f := start(t, nil)
			hold := endpoint(t)
			subscribe := func() string {
				return servertest.SubscribeEvents(t, f.s.URL, "alice", hold.URL+"/200", "ci.build_finished", nil)
			}
			id := subscribe()
			f.call(tc.by, http.MethodPost, "subscriptions/"+id+"/pause", `{"reason":"maintenance"}`, http.StatusOK, nil)
			f.call("alice", http.MethodDelete, "subscriptions/"+id, "", http.StatusNoContent, nil)
			expect.Equal(t, "the id of the second subscription", subscribe(), id)
			var got struct {
				State  string
				Switch struct{ By string }
			}
			f.call("alice", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, &got)
			expect.Equal(t, "the state", got.State, tc.state)
			expect.Equal(t, "OPS-19 who paused it", got.Switch.By, tc.shown)
			f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", tc.resume, nil)
			f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
			f.sees("op", "switches", 0)
			f.call("alice", http.MethodDelete, "subscriptions/"+id, "", http.StatusNoContent, nil)
			subscribe()
			f.sees("op", "subscriptions?state=active", 1)
		})
	}
}
