package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

func (f *fixture) registerOne(key, uri, target string) string {
	f.t.Helper()
	var got struct{ Subscription struct{ URI string } }
	f.stateless(key, spec.MethodRegister, `"uris":["`+uri+`"],"targetUri":"`+target+`"`).result(f.t, &got)
	if !strings.HasPrefix(got.Subscription.URI, "subscription://") {
		f.t.Fatalf("got %+v, want the URI of a subscription", got)
	}
	return got.Subscription.URI
}

func TestRegister(t *testing.T) {
	f := newFixture(t, nil)
	s := f.session(alice, spec.V20250326)
	register := func(in string) map[string]json.RawMessage {
		t.Helper()
		var got struct{ Subscription map[string]json.RawMessage }
		f.in(alice, in, spec.MethodRegister, `"uris":["event://ci/deploy","event://github/acme"],"targetUri":"https://a.example/x"`).result(t, &got)
		return got.Subscription
	}
	t.Run("EVS-08_answer", func(t *testing.T) {
		for _, in := range []string{"", s} {
			got := register(in)
			sameJSON(t, got["eventUris"], `["event://ci/deploy","event://github/acme"]`)
			sameJSON(t, got["targetUri"], `"https://a.example/x"`)
			sameJSON(t, got["webhookSecret"], `{"type":"standard","key":"whsec_generatedstandard"}`) // EVS-09
		}
	})
	t.Run("EVS-08_all_or_nothing", func(t *testing.T) {
		before := f.wholeList(t, spec.MethodResources, "", nil).names
		for _, params := range []string{
			`"targetUri":"https://a.example/"`,
			`"uris":[],"targetUri":"https://a.example/"`,
			`"uris":[1],"targetUri":"https://a.example/"`,
			`"uris":[` + strings.Repeat(`"event://ci/deploy",`, 50) + `"event://ci/deploy"],"targetUri":"https://a.example/"`,
			`"uris":["event://ci/deploy","event://nope"],"targetUri":"https://a.example/"`,
			`"uris":["event://ci/deploy"]`,
			`"uris":["event://ci/deploy"],"targetUri":"http://a.example/"`,
		} {
			f.stateless(alice, spec.MethodRegister, params).is(t, params, 400, -32602)
		}
		after := f.wholeList(t, spec.MethodResources, "", nil).names
		expect.Deep(t, "the resources", after, before)
	})
	t.Run("EVS-09_raw_and_no_secret", func(t *testing.T) {
		for kind, want := range map[subscription.SecretType]string{
			subscription.Raw:  `{"type":"raw","value":"whsec_generatedraw"}`,
			subscription.None: `{"type":"none"}`,
		} {
			f.registrar.Options.Secret = kind
			sameJSON(t, register("")["webhookSecret"], want)
		}
		f.registrar.Options.Secret = ""
	})
	t.Run("idempotency_key", func(t *testing.T) {
		body := strings.Replace(statelessBody("1", spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://i.example/"`),
			`"_meta":{`, `"_meta":{"`+spec.MetaIdempotency+`":"k1",`, 1)
		var first, second struct{ Subscription struct{ URI string } }
		f.do("POST", alice, body, statelessHeaders(spec.MethodRegister, "")...).result(t, &first)
		f.do("POST", alice, body, statelessHeaders(spec.MethodRegister, "")...).result(t, &second)
		expect.Equal(t, "the first registration", first, second)
		expect.Differ(t, "the URI", first.Subscription.URI, "")
	})
}

const callback = `"delivery":{"mode":"webhook","url":"https://a.example/hook","secret":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}`

func TestEventsSubscribe(t *testing.T) {
	f := newFixture(t, nil)
	type answer struct {
		ID            string
		RefreshBefore *string
		Cursor        *string
		Truncated     *bool
		ResultType    string
	}
	subscribe := func(t *testing.T, params string) (a answer) {
		t.Helper()
		f.stateless(alice, spec.MethodEventsSub, params).result(t, &a)
		return a
	}
	t.Run("EVX-08_answer_and_idempotency", func(t *testing.T) {
		a := subscribe(t, `"name":"ci.build","arguments":{"status":"failed"},`+callback+`,"cursor":null`)
		b := subscribe(t, callback+`, "cursor":null, "arguments":{ "status" : "failed" }, "name":"ci.build"`)
		c := subscribe(t, `"name":"ci.build",`+callback)
		if a.ID == "" || a.ID != b.ID || a.ID == c.ID || a.RefreshBefore == nil || a.Truncated == nil || *a.Truncated || a.ResultType != "complete" || a.Cursor == nil {
			t.Errorf("got %+v, %+v and %+v, want one id for the same arguments and another for others, and all members", a, b, c)
		}
		expect.Equal(t, "the zone of refreshBefore", expect.Value(time.Parse(time.RFC3339, *a.RefreshBefore))(t).Location(), time.UTC)
		s := f.session(alice, spec.V20251125)
		var old answer
		f.sessionBased(alice, s, spec.MethodEventsSub, `"name":"ci.build",`+callback).result(t, &old)
		expect.Equal(t, "the ID", old.ID, c.ID)
		expect.Equal(t, "the result type", old.ResultType, "")
	})
	t.Run("EVX-08_the_id_selects_no_subscription", func(t *testing.T) {
		id := subscribe(t, `"name":"ci.build",`+callback).ID
		f.stateless(alice, spec.MethodEventsUnsub, `"id":"`+id+`"`).is(t, "only the id", 400, -32602)
		f.stateless(alice, spec.MethodEventsUnsub, `"id":"`+id+`","name":"ci.build","delivery":{"url":"https://a.example/other"}`).is(t, "the id and another URL", 200, 0)
		f.stateless(alice, spec.MethodRead, `"uri":"subscription://`+id+`"`).is(t, "the subscription", 200, 0)
		other := subscribe(t, `"id":"`+id+`","name":"ci.deploy",`+callback).ID
		expect.Differ(t, "the id of a subscription to another event type", other, id)
	})
	t.Run("EVX-09_ttl", func(t *testing.T) {
		f.registrar.Options.AllowNoExpiry = true
		defer func() { f.registrar.Options.AllowNoExpiry = false }()
		grant := func(ttl string) time.Duration {
			a := subscribe(t, `"name":"ci.deploy",`+callback+ttl)
			if a.RefreshBefore == nil {
				return 0
			}
			return time.Until(expect.Value(time.Parse(time.RFC3339, *a.RefreshBefore))(t)).Round(10 * time.Second)
		}
		for ttl, want := range map[string]time.Duration{
			``:                   24 * time.Hour,
			`,"ttlMs":3600000`:   time.Hour,
			`,"ttlMs":3.6e6`:     time.Hour,
			`,"ttlMs":1`:         time.Minute,
			`,"ttlMs":1e300`:     7 * 24 * time.Hour,
			`,"ttlMs":null`:      0,
			`,"ttlMs":604800000`: 7 * 24 * time.Hour,
		} {
			expect.Deep(t, ttl, grant(ttl), want)
		}
	})
	webhook := func(members string) string { return `"name":"ci.build","delivery":{` + members + `}` }
	for set, profile := range codeSets {
		f := newFixture(t, func(o *Options) { o.Profile = always(profile) })
		for name, tc := range map[string]struct {
			params string
			code   numbers
			data   string
		}{
			"EVX-16_other_mode":           {webhook(`"mode":"push","url":"https://a.example/"`), unsupported, `{"feature":"deliveryMode","value":"push"}`},
			"EVX-16_endpoint":             {webhook(`"mode":"webhook","url":"https://unverified.example/","secret":"whsec_x"`), badEndpoint, `{"reason":"challenge_failed"}`},
			"EVX-08_no_mode":              {webhook(`"url":"https://a.example/","secret":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"`), invalid, ``},
			"EVX-08_no_delivery":          {`"name":"ci.build"`, invalid, ``},
			"EVX-08_http":                 {webhook(`"mode":"webhook","url":"http://a.example/","secret":"whsec_x"`), invalid, ``},
			"EVX-08_no_secret":            {webhook(`"mode":"webhook","url":"https://a.example/"`), invalid, ``},
			"EVX-08_secret_of_other_form": {webhook(`"mode":"webhook","url":"https://a.example/","secret":"hunter2"`), invalid, ``},
			"EVX-08_ttl_no_number":        {`"name":"ci.build","ttlMs":"1h",` + callback, invalid, ``},
			"EVX-08_ttl_fraction":         {`"name":"ci.build","ttlMs":1.5,` + callback, invalid, ``},
		} {
			t.Run(name+"_"+set, func(t *testing.T) {
				r := f.stateless(alice, spec.MethodEventsSub, tc.params)
				r.fails(t, tc.params, tc.code[set], tc.data)
				expect.Lacks(t, "the response", r.Body, "hunter2", "MfKQ9r")
			})
		}
		t.Run("EVX-16_limits_name_the_limit_"+set, func(t *testing.T) {
			f.service.Store.QuotaOf = func(context.Context, string, string) int64 { return 1 }
			f.stateless(alice, spec.MethodEventsSub, `"name":"ci.build",`+callback)
			f.stateless(alice, spec.MethodEventsSub, `"name":"ci.deploy",`+callback).fails(t, "the second", exhausted[set], `{"limit":"subscriptions","max":1}`)
		})
	}
	run(t, "EVX-08_a_known_principal_is_needed", func(o *Options) { o.Auth = auth.AcceptAll() }, func(t *testing.T, f *fixture) {
		for _, m := range []string{spec.MethodEventsSub, spec.MethodEventsUnsub} {
			r := f.stateless("", m, `"name":"ci.build",`+callback)
			r.is(t, m, http.StatusUnauthorized, -32012)
			r.hasHeader(t, "WWW-Authenticate", "")
		}
	})
}

// TestForward serves the methods that change subscriptions from separate endpoints. On AWS these are separate functions, and
// the stream function forwards whole requests to them.
func TestForward(t *testing.T) {
	var forwarded []string
	note := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			forwarded = append(forwarded, r.Header.Get("Authorization")+" "+r.Header.Get(spec.HeaderSession)+" "+r.Header.Get(spec.HeaderVersion))
			h.ServeHTTP(w, r)
		})
	}
	f := newFixture(t, func(o *Options) {
		register := expect.Value(New(Options{Auth: o.Auth, Catalogs: o.Catalogs, Registrar: o.Registrar, Logger: o.Logger}))(t)
		deregister := expect.Value(New(Options{Auth: o.Auth, Catalogs: o.Catalogs, Deregistrar: o.Deregistrar, Logger: o.Logger}))(t)
		o.ForwardRegistrar, o.ForwardDeregistrar = note(register), note(deregister)
		o.Registrar, o.Deregistrar = nil, nil
	})
	t.Run("EVS-08_in_every_revision", func(t *testing.T) {
		uri := f.registerOne(alice, "event://ci/deploy", "https://a.example/")
		f.stateless(alice, spec.MethodDeregister, `"uri":"`+uri+`"`).is(t, "deregister", 200, 0)
		s := f.session(alice, spec.V20250618)
		r := f.sessionBased(alice, s, spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://a.example/"`)
		r.is(t, "register", 200, 0)
		expect.Lacks(t, "the body", r.Body, "resultType")
		want := "Bearer " + alice + "  2025-06-18" // the revision of the session, but not its id
		expect.Deep(t, "forwarded", forwarded[len(forwarded)-1], want)
		f.stateless(alice, spec.MethodEventsSub, `"name":"no.such",`+callback).fails(t, "events/subscribe", -32011, "")
	})
	t.Run("EVS-01_what_is_forwarded_is_advertised", func(t *testing.T) {
		f.stateless(alice, spec.MethodDiscover, "").is(t, "discover", 200, 0, `"subscription":["notification","webhook"]`)
	})
	t.Run("a_batch_gets_each_its_answer", func(t *testing.T) {
		s := f.session(alice, spec.V20250326)
		r := f.do("POST", alice, `[{"jsonrpc":"2.0","id":1,"method":"ping"},
			{"jsonrpc":"2.0","id":2,"method":"resources/subscriptions/register","params":{"uris":["event://ci/deploy"],"targetUri":"https://a.example/"}}]`,
			"Mcp-Session-Id: "+s)
		var answers []map[string]json.RawMessage
		expect.OK(t, json.Unmarshal([]byte(r.Body), &answers))
		if len(answers) != 2 || !strings.Contains(string(answers[1]["result"]), "subscription://") {
			t.Errorf("got %s, want two answers, the second with a subscription", r.Body)
		}
	})
	t.Run("no_scope_goes_no_further", func(t *testing.T) {
		before := len(forwarded)
		if r := f.stateless(reader, spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://a.example/"`); r.Status != 403 || len(forwarded) != before {
			t.Errorf("got status %d, forwarded %d, want 403 and none", r.Status, len(forwarded)-before)
		}
	})
}

// TestNoLeak calls every method that accepts or returns a subscription's URI as other principals who know the URI of
// alice's subscription.
func TestNoLeak(t *testing.T) {
	f := newFixture(t, nil)
	uri := f.registerOne(alice, "event://ci/deploy", "https://alice.example/")
	f.stateless(alice, spec.MethodEventsSub, `"name":"ci.build",`+callback)
	f.publish("event://ci/deploy", `{"of":"alice"}`)
	for _, key := range []string{bob, foreign} {
		s := f.session(key, spec.V20251125)
		listened := f.listen(key, "1", `{"resourceSubscriptions":["`+uri+`"]}`).next()
		for name, got := range map[string]string{
			spec.MethodResources:   f.stateless(key, spec.MethodResources, "").Body,
			spec.MethodRead:        f.stateless(key, spec.MethodRead, `"uri":"`+uri+`"`).Body,
			spec.MethodDeregister:  f.stateless(key, spec.MethodDeregister, `"uri":"`+uri+`"`).Body,
			spec.MethodEventsUnsub: f.stateless(key, spec.MethodEventsUnsub, `"name":"ci.build",`+callback).Body,
			spec.MethodSubscribe:   f.sessionBased(key, s, spec.MethodSubscribe, `"uri":"`+uri+`"`).Body,
			spec.MethodListen:      string(listened.sse.Data),
		} {
			t.Run("AUT-05_"+strings.ReplaceAll(name, "/", "_")+"_by_"+key, func(t *testing.T) {
				// Answers may repeat the URI from the request, but must not contain other data of alice's subscription.
				for _, secret := range []string{"alice.example", `"state"`, `"of"`} {
					expect.Lacks(t, "the response", got, secret)
				}
				if (name == spec.MethodResources || name == spec.MethodListen) && strings.Contains(got, uri) {
					t.Errorf("got %s, want no %s in it", got, uri)
				}
			})
		}
	}
	names := f.wholeList(t, spec.MethodResources, "", nil).names
	expect.Deep(t, "resources of alice", len(names), 6)
}
