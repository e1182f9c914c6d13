package subscription

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/tally"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func (f *fixture) subscribe(r SubscribeRequest) *SubscribeResult {
	f.t.Helper()
	return expect.Value(f.trySubscribe(r))(f.t)
}

func (f *fixture) trySubscribe(r SubscribeRequest) (*SubscribeResult, error) {
	if r.Name == "" {
		r.Name = "github.push"
	}
	if r.URL == "" {
		r.URL = "https://chat.example/cb"
	}
	if r.Secret == "" {
		r.Secret = "whsec_one"
	}
	return f.Subscribe(f.t.Context(), alice, r)
}

func TestSubscribe(t *testing.T) {
	args := func(s string) json.RawMessage { return json.RawMessage(s) }
	t.Run("EVX-08 one identity, whatever the order of the arguments", func(t *testing.T) {
		f := newFixture(t, Options{})
		a := f.subscribe(SubscribeRequest{Arguments: args(`{"owner":"acme","repo":"app"}`)})
		b := f.subscribe(SubscribeRequest{Arguments: args(`{ "repo":"app", "owner":"acme" }`)})
		if a.ID != b.ID || !b.Refreshed || a.Refreshed {
			t.Errorf("first %+v, second %+v", a, b)
		}
		other := expect.Value(f.Subscribe(t.Context(), bob, SubscribeRequest{
			Name: "github.push", Arguments: args(`{"owner":"acme","repo":"app"}`), URL: "https://chat.example/cb", Secret: "whsec_one",
		}))(t)
		expect.Differ(t, "the id of another principal's subscription", other.ID, a.ID)
		expect.Equal(t, "subscribers", len(f.subscribers("event://github/acme/app/push")), 2)
		elsewhere := f.subscribe(SubscribeRequest{Arguments: args(`{"owner":"acme","repo":"app"}`), URL: "https://chat.example/cb2"})
		expect.Differ(t, "the id with another URL", elsewhere.ID, a.ID)
	})
	t.Run("EVX-03 an omitted variable matches all, an unknown argument is refused", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.subscribe(SubscribeRequest{Arguments: args(`{"owner":"acme"}`)})
		expect.Equal(t, "subscribers", len(f.subscribers("event://github/acme/*/push")), 1)
		expect.Fault(t, "the call", expect.ErrOf(f.trySubscribe(SubscribeRequest{Arguments: args(`{"nope":1}`)})), fault.Invalid)
	})
	t.Run("EVX-08 an authenticated principal is required", func(t *testing.T) {
		f := newFixture(t, Options{})
		anonymous := expect.Value(auth.AcceptAll().Authenticate(t.Context(), nil))(t)
		request := SubscribeRequest{Name: "github.push", URL: "https://x.example/", Secret: "whsec_x"}
		expect.Fault(t, "an anonymous subscription", expect.ErrOf(f.Subscribe(t.Context(), anonymous, request)), fault.Unauthenticated, "--allow-insecure-targets")
	})
	t.Run("EVX-09 the grant", func(t *testing.T) {
		f := newFixture(t, Options{DefaultTTL: time.Hour, MinTTL: time.Minute, MaxTTL: 2 * time.Hour})
		for _, tc := range []struct {
			name string
			ttl  TTL
			want time.Duration
		}{
			{"the default", TTL{}, time.Hour},
			{"as asked", TTL{Asked: true, For: 10 * time.Minute}, 10 * time.Minute},
			{"the floor", TTL{Asked: true, For: time.Millisecond}, time.Minute},
			{"the cap", TTL{Asked: true, For: 100 * time.Hour}, 2 * time.Hour},
			{"null where it is not allowed", TTL{Asked: true, Forever: true}, 2 * time.Hour},
		} {
			got := f.subscribe(SubscribeRequest{TTL: tc.ttl})
			expect.Equal(t, "the granted time of "+tc.name, got.RefreshBefore.Sub(f.clock), tc.want)
		}
		f.Options.AllowNoExpiry = true
		expect.True(t, "null is granted where it is allowed", f.subscribe(SubscribeRequest{TTL: TTL{Asked: true, Forever: true}}).RefreshBefore.IsZero())
		expect.True(t, "the time of the refresh is set", !f.subscribe(SubscribeRequest{}).RefreshBefore.IsZero())
	})
	t.Run("EVX-09 expiry stops delivery to the second and is swept", func(t *testing.T) {
		f := newFixture(t, Options{MinTTL: time.Minute})
		got := f.subscribe(SubscribeRequest{Arguments: args(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, For: time.Minute}})
		key := "event://github/a/b/push"
		sub, e := f.subscribers(key)[0], newEvent(key)
		if !sub.Wants(&match.Payload{Event: e}, got.RefreshBefore.Add(-time.Millisecond)) || sub.Wants(&match.Payload{Event: e}, got.RefreshBefore) {
			t.Error("the end is not where it was granted")
		}
		f.clock = got.RefreshBefore
		expect.MustEqual(t, "the swept subscriptions", expect.Value(f.Sweep(t.Context()))(t), 1)
		expect.Equal(t, "subscribers that are left", len(f.subscribers(key)), 0)
	})
	t.Run("EVX-09 a refreshed subscription survives the sweep of its first end", func(t *testing.T) {
		f := newFixture(t, Options{MinTTL: time.Minute})
		r := SubscribeRequest{Arguments: args(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, For: time.Minute}}
		first := f.subscribe(r)
		f.clock = f.clock.Add(50 * time.Second)
		f.subscribe(r)
		f.clock = first.RefreshBefore
		expect.Equal(t, "swept subscriptions", expect.Value(f.Sweep(t.Context()))(t), 0)
	})
	t.Run("EVX-10 a replaced secret signs on for the grace", func(t *testing.T) {
		f := newFixture(t, Options{})
		r := SubscribeRequest{Arguments: args(`{"owner":"a","repo":"b"}`)}
		f.subscribe(r)
		f.subscribe(r)
		target := f.subscribers("event://github/a/b/push")[0].Target
		expect.Equal(t, "a refresh with the same secret does not rotate", target.Previous == nil, true)
		r.Secret = "whsec_two"
		f.subscribe(r)
		f.subscribe(r) // a refresh with the new secret keeps the previous one
		rotated := f.subscribers("event://github/a/b/push")[0].Target
		if !bytes.Equal(rotated.Previous, target.Secret) || !rotated.PreviousUntil.Time().Equal(f.clock.Add(24*time.Hour).Truncate(time.Second)) {
			t.Errorf("the previous secret is %q until %v, want the first one until a day later", rotated.Previous, rotated.PreviousUntil.Time())
		}
	})
	t.Run("EVX-12 verified once per principal and URL, and not without", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.outside.refuse = fault.New(fault.Unavailable, "no echo")
		expect.Error(t, "a subscription for an endpoint that refused", expect.ErrOf(f.trySubscribe(SubscribeRequest{})))
		expect.Equal(t, "subscribers after a failed verification", len(f.subscribers("event://github/*/*/push")), 0)
		f.outside.refuse = nil
		for _, owner := range []string{"a", "b", "a"} {
			f.subscribe(SubscribeRequest{Arguments: args(fmt.Sprintf(`{"owner":%q}`, owner))})
		}
		expect.Equal(t, "challenges", len(f.outside.verified), 2)
	})
	t.Run("SRF-07 a registration is verified where the operator asks for it", func(t *testing.T) {
		r := RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}
		f := newFixture(t, Options{})
		f.register(alice, r)
		expect.Equal(t, "challenges", len(f.outside.verified), 0)
		f = newFixture(t, Options{VerifyRegistrations: true, VerifiedTargets: []string{"https://listed.example/"}})
		f.outside.refuse = fault.New(fault.Unavailable, "not verified: timeout").With(map[string]any{"reason": "timeout"})
		_, err := f.Register(t.Context(), alice, r)
		if data, _ := fault.DataOf(err).(map[string]any); !fault.Is(err, fault.Invalid) || data["reason"] != "timeout" {
			t.Errorf("an endpoint that refuses: %v with %v", err, data)
		}
		if used, err := tally.ReadCount(t.Context(), f.db, "default", "alice"); used != 0 || err != nil || len(f.subscribers(build)) != 0 {
			t.Errorf("it left something: %d, %v", used, err)
		}
		f.outside.refuse = fault.New(fault.Exhausted, "too many verifications")
		expect.Fault(t, "over the limit of a host", expect.ErrOf(f.Register(t.Context(), alice, r)), fault.Exhausted)
		f.outside.refuse = nil
		f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://listed.example/hook"})
		f.register(alice, r)
		f.register(alice, r)
		if len(f.outside.verified) != 3 { // two that failed
			t.Errorf("%d challenges, want one for principal and URL that was answered: %v", len(f.outside.verified), f.outside.verified)
		}
	})
	t.Run("EVX-12 a path that may lead out of a prefix that the operator trusts is challenged", func(t *testing.T) {
		f := newFixture(t, Options{VerifiedTargets: []string{"https://listed.example/hooks/"}})
		for _, path := range []string{"a", "a?next=../b", ".hidden"} {
			f.subscribe(SubscribeRequest{URL: "https://listed.example/hooks/" + path})
		}
		expect.Equal(t, "challenges of trusted endpoints", len(f.outside.verified), 0)
		for _, path := range []string{"../admin", "..%2fadmin", "a/%2E%2e/../admin", ".%2e/admin"} {
			f.subscribe(SubscribeRequest{URL: "https://listed.example/hooks/" + path})
		}
		expect.Equal(t, "challenges of other endpoints", len(f.outside.verified), 4)
	})
	t.Run("SRF-07 an endpoint that answered 410 is verified again", func(t *testing.T) {
		f := newFixture(t, Options{VerifyRegistrations: true})
		r := RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}
		first := f.register(alice, r)
		expect.MustEqual(t, "it is disabled", expect.Value(f.Disable(t.Context(), "default", "alice", first.Subscription.ID, ReasonGone, 0))(t), true)
		f.register(alice, r)
		expect.Equal(t, "challenges", len(f.outside.verified), 2)
	})
	t.Run("EVX-12 a malformed secret is refused where the endpoint is verified already", func(t *testing.T) {
		f := newFixture(t, Options{})
		r := SubscribeRequest{Arguments: args(`{"owner":"a"}`)}
		f.subscribe(r)
		r.Secret = "hunter2"
		expect.Fault(t, "a refresh", expect.ErrOf(f.trySubscribe(r)), fault.Invalid)
		r.Arguments = args(`{"owner":"b"}`)
		expect.Fault(t, "another subscription", expect.ErrOf(f.trySubscribe(r)), fault.Invalid)
	})
	t.Run("EVX-12 a verification lapses in its time", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.subscribe(SubscribeRequest{Arguments: args(`{"owner":"a"}`)})
		page, err := f.db.Query(t.Context(), store.Query{Table: store.Subscriptions, Partition: "v#default#alice"})
		if err != nil || len(page.Items) != 1 || !page.Items[0].Expires.Equal(f.clock.Add(24*time.Hour)) {
			t.Errorf("%+v, %v; want one that expires after a day", page.Items, err)
		}
	})
	t.Run("EVX-15 unsubscribe by the same key", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.subscribe(SubscribeRequest{Arguments: args(`{"owner":"a","repo":"b"}`)})
		unsubscribe := func() error {
			return f.Unsubscribe(t.Context(), alice, "github.push", args(`{"repo":"b","owner":"a"}`), "https://chat.example/cb")
		}
		expect.OK(t, unsubscribe())
		expect.Equal(t, "subscribers", len(f.subscribers("event://github/a/b/push")), 0)
		expect.Fault(t, "a second unsubscribe", unsubscribe(), fault.NotFound)
	})
	t.Run("EVX-15 unsubscribe with arguments that the event type refuses by now", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.subscribe(SubscribeRequest{Arguments: args(`{"owner":"a"}`)})
		f.Catalog = catalog.NewStatic(parse(t, strings.ReplaceAll(patternCatalog, "owner", "org")))
		expect.OK(t, f.Unsubscribe(t.Context(), alice, "github.push", args(`{"owner":"a"}`), "https://chat.example/cb"))
		expect.Equal(t, "subscribers", len(f.subscribers("event://github/a/*/push")), 0)
	})
}

// TestOwnersAreNotified counts the notices for a principal's lists and for the state of one subscription (EVS-12).
func TestOwnersAreNotified(t *testing.T) {
	f := newFixture(t, Options{MinTTL: time.Minute})
	f.Replay = &replays{}
	f.PrincipalTopic = func(id string) string { return "principal-" + id }
	f.SubscriptionTopic = func(id string) string { return "subscription-" + id }
	request := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, For: time.Minute}}
	var id string
	for _, step := range []struct {
		name   string
		change func()
		lists  int    // the notices that lists have changed, so far
		state  string // the last notice of the state
	}{
		{"subscribe", func() { id = f.subscribe(request).ID }, 1, ""},
		{"refresh", func() { f.subscribe(request) }, 1, ""},
		{"suspend", func() {
			sub := expect.Value(f.Lookup(t.Context(), "default", "alice", id))(t)
			expect.OK(t, f.Suspend(t.Context(), "default", "alice", id, sub.Resumed))
		}, 1, "suspended"},
		{"refresh of a suspended subscription", func() { f.subscribe(request) }, 1, "active"},
		{"expire", func() {
			f.clock = f.clock.Add(2 * time.Minute)
			expect.Equal(t, "swept subscriptions", expect.Value(f.Sweep(t.Context()))(t), 1)
		}, 2, "active"},
	} {
		step.change()
		notices := func(topic string) []store.Item {
			return expect.Value(f.db.Query(t.Context(), store.Query{Table: store.Log, Partition: "n#default#" + topic}))(t).Items
		}
		expect.Len(t, "EVS-12 the notices of changed lists after "+step.name, notices("principal-alice"), step.lists)
		state := notices("subscription-" + id)
		if step.state == "" {
			expect.Len(t, "EVS-12 the notices of the state after "+step.name, state, 0)
		} else {
			expect.Contains(t, "EVS-12 the last notice of the state after "+step.name, string(state[len(state)-1].Value), `"`+step.state+`"`)
		}
	}
}

// TestADisabledSubscriptionIsCreatedAgain replaces the record of a disabled subscription, which stays if the new one cannot be written.
func TestADisabledSubscriptionIsCreatedAgain(t *testing.T) {
	f := newFixture(t, Options{})
	request := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`)}
	id := f.subscribe(request).ID
	expect.MustEqual(t, "it is disabled", expect.Value(f.Disable(t.Context(), "default", "alice", id, "all deliveries of five days failed", f.resumed()))(t), true)
	f.Store.DB = refusing(f.db, fault.New(fault.Unavailable, "the process dies"))
	expect.Error(t, "a subscription without a write of the record", expect.ErrOf(f.trySubscribe(request)))
	f.Store.DB = f.db
	expect.Equal(t, "the state of the record", expect.Value(f.Find(t.Context(), "default", id))(t).State, Disabled)
	if again := f.subscribe(request); again.ID != id || again.Refreshed {
		t.Errorf("got %+v, want a new subscription with the id %s", again, id)
	}
	expect.Map(t, "the subscriptions by state", expect.Value(f.CountStates(t.Context(), "default", 10))(t), map[State]int{Active: 1, Disabled: 0, Paused: 0, Suspended: 0})
}

// The limit of a count applies to each state, so the other states do not take away from the active ones.
func TestActiveSubscriptionsAreCountedUpToTheLimit(t *testing.T) {
	f := newFixture(t, Options{})
	for i := range 5 {
		id := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(fmt.Sprintf(`{"owner":"a","repo":"%d"}`, i))}).ID
		if resumed := expect.Value(f.Lookup(t.Context(), "default", "alice", id))(t).Resumed; i < 2 {
			expect.OK(t, f.Suspend(t.Context(), "default", "alice", id, resumed))
		}
	}
	counts := expect.Value(f.CountStates(t.Context(), "default", 3))(t)
	expect.Equal(t, "suspended subscriptions", counts[Suspended], 2)
	expect.Equal(t, "active subscriptions", counts[Active], 3)
}

// The first cursor of a subscription is the end of the log. It stays valid although the log was quiet for days.
func TestAfterDaysWithoutEventsTheCursorOfANewSubscriptionLeadsToNoGap(t *testing.T) {
	f := newFixture(t, Options{})
	const uri = "event://github/acme/app/push"
	expect.OK(t, expect.ErrOf(f.Service.Log.Append(t.Context(), "default", uri, []event.Event{*newEvent(uri)}, nil)))
	f.Service.Log.Now = func() time.Time { return time.Now().Add(48 * time.Hour) }
	made := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"acme","repo":"app"}`)})
	c := expect.Value(f.Registrar.Sealer.Open("default", made.Cursor))(t)
	_, truncated := f.Service.Log.StartPosition(c, c.At, f.Service.Log.Oldest())
	expect.True(t, "EVX-11: a reader with the new cursor is told of no gap", !truncated)
}

// The log writes the partitions of a template only from the subscription on. The time in which the endpoint is verified is
// no gap, however long it is and whatever is published then.
func TestAfterAnEndpointWasVerifiedSlowlyTheCursorOfItsSubscriptionLeadsToNoGap(t *testing.T) {
	const uri = "event://github/acme/app/push"
	for name, use := range map[string]func(*fixture, *eventlog.Log){
		"EVX-11 an event on an ordered log": func(f *fixture, log *eventlog.Log) {
			f.Registrar.Targets = &endpoints{outside: f.outside, answer: func(context.Context, string) error {
				return expect.ErrOf(log.Append(t.Context(), "default", uri, []event.Event{*newEvent(uri)}, nil))
			}}
		},
		"EVX-11 ten seconds where writers stamp": func(f *fixture, log *eventlog.Log) {
			log.DB = storetest.Unordered{DB: log.DB}
			var late time.Duration
			log.Now = func() time.Time { return time.Now().Add(late) }
			f.Registrar.Targets = &endpoints{outside: f.outside, answer: func(context.Context, string) error { late += 10 * time.Second; return nil }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{})
			use(f, f.Service.Log)
			request := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"acme"}`)}
			request.Cursor = f.subscribe(request).Cursor
			request.URL = "https://moved.example.com/hook"
			expect.True(t, "a client that moves to another endpoint with its first cursor is told of no gap", !f.subscribe(request).Truncated)
		})
	}
}

// endpoints answer challenges as a function says.
type endpoints struct {
	*outside
	answer     func(ctx context.Context, url string) error
	challenges atomic.Int64
}

func (e *endpoints) Verify(ctx context.Context, url, _ string, _ []byte) error {
	e.challenges.Add(1)
	return e.answer(ctx, url)
}

var errNoEcho = fault.New(fault.Unavailable, "no echo").With(map[string]any{"reason": "challenge_failed"})

func principal(format string, args ...any) auth.Principal {
	return auth.Principal{ID: fmt.Sprintf(format, args...), Workspace: "default", Scopes: auth.Scopes()}
}

// verifier subscribes principals to URLs, with the clock at the start of a window of all limits.
type verifier struct {
	*fixture
	*endpoints
}

func newVerifier(t *testing.T, answer func(ctx context.Context, url string) error) *verifier {
	f := newFixture(t, Options{})
	f.clock = f.clock.Truncate(time.Hour).Add(time.Hour) // the store, which has a clock of its own, must not count items as expired
	v := &verifier{f, &endpoints{outside: f.outside, answer: answer}}
	f.Targets = v.endpoints
	return v
}

func (v *verifier) ask(p auth.Principal, format string, args ...any) error {
	return v.askIn(v.t.Context(), p, fmt.Sprintf(format, args...))
}

func (v *verifier) askIn(ctx context.Context, p auth.Principal, url string) error {
	_, err := v.Subscribe(ctx, p, SubscribeRequest{Name: "github.push", URL: url, Secret: "whsec_one"})
	return err
}

// askTimes asks n times, each time for another URL, and each answer must be want.
func (v *verifier) askTimes(n int, p auth.Principal, format string, want error) {
	v.t.Helper()
	for i := range n {
		if err := v.ask(p, format, i); !errors.Is(err, want) {
			v.t.Fatalf("challenge %d: got %v, want %v", i, err, want)
		}
	}
}

func (v *verifier) wantLimit(err error, limit string) {
	v.t.Helper()
	if !fault.Is(err, fault.Exhausted) || fault.LimitOf(err) != limit {
		v.t.Errorf("got %v of the limit %q, want the limit %q", err, fault.LimitOf(err), limit)
	}
	data, _ := json.Marshal(fault.DataOf(err))
	most := map[string]int{"verifications": 60, "pendingVerifications": 1}[limit]
	var wait struct {
		Seconds int `json:"retryAfterSeconds"`
	}
	if err := json.Unmarshal(data, &wait); err != nil || wait.Seconds < 1 || wait.Seconds > cmp.Or(most, int(failureWindow/time.Second)) {
		v.t.Errorf("EVX-12 the data of the limit %q is %s, want a time within the window", limit, data)
	}
}

func echo(context.Context, string) error   { return nil }
func silent(context.Context, string) error { return errNoEcho }

// The limits of package challenge, as docs/reference promises them.
const (
	maxPending     = 20
	maxFailed      = 20
	maxFailedByAll = 100
	failureWindow  = 5 * time.Minute
)

// TestLimitsOnVerifications shows that one caller's challenges do not block another caller's challenges to the same host.
func TestLimitsOnVerifications(t *testing.T) {
	t.Run("EVX-12 a principal has so many challenges a minute, and another at the same host has its own", func(t *testing.T) {
		v := newVerifier(t, echo)
		v.askTimes(quota.DefaultVerifications, alice, "https://chat.example/a/%d", nil)
		for range maxFailed { // do not count as failures
			v.wantLimit(v.ask(alice, "https://chat.example/more"), "verifications")
		}
		v.wantLimit(v.ask(alice, "https://another.example/"), "verifications")
		expect.OK(t, v.ask(alice, "https://chat.example/a/0")) // a verified endpoint
		expect.OK(t, v.ask(bob, "https://chat.example/b"))     // another principal
		v.clock = v.clock.Add(time.Minute)
		expect.OK(t, v.ask(alice, "https://chat.example/more")) // a minute later
		expect.Equal(t, "challenges", v.challenges.Load(), int64(quota.DefaultVerifications+2))
	})
	t.Run("EVX-12 a principal may be given another number", func(t *testing.T) {
		v := newVerifier(t, echo)
		v.Options.Verifications = func(_ context.Context, workspace, principal string) int64 {
			return map[string]int64{"default alice": 3}[workspace+" "+principal]
		}
		v.askTimes(3, alice, "https://chat.example/a/%d", nil)
		v.wantLimit(v.ask(alice, "https://chat.example/more"), "verifications")
	})
	t.Run("EVX-12 SRF-07 a principal that fails at a host is stopped there, and nowhere else", func(t *testing.T) {
		v := newVerifier(t, silent)
		v.askTimes(maxFailed, alice, "https://host.example/%d", errNoEcho)
		for n := range 100 {
			v.wantLimit(v.ask(alice, []string{"https://host.example/more/%d", "https://HOST.example:8443/%d", "https://host.example./%d"}[n%3], n), "failedVerifications")
		}
		expect.Equal(t, "challenges", v.challenges.Load(), maxFailed)
		v.answer = echo
		expect.OK(t, v.ask(bob, "https://host.example/b")) // another principal
		// Refused attempts were not counted, so the principal has the rest of its minute.
		v.askTimes(quota.DefaultVerifications-maxFailed, alice, "https://other.example/%d", nil)
		v.clock = v.clock.Add(failureWindow)
		expect.OK(t, v.ask(alice, "https://host.example/a")) // in the next window
	})
	t.Run("EVX-12 SRF-07 many principals that fail at a host stop each other, but not one that has not failed", func(t *testing.T) {
		v := newVerifier(t, silent)
		attackers := maxFailedByAll / 10
		for n := range maxFailedByAll {
			expect.Is(t, "a challenge", v.ask(principal("attacker%d", n%attackers), "https://host.example/%d", n), errNoEcho)
		}
		for n := range attackers {
			v.wantLimit(v.ask(principal("attacker%d", n), "https://host.example/more"), "failedVerificationsPerHost")
		}
		// A principal more is a challenge more, and not ten.
		expect.Is(t, "the challenge", v.ask(principal("newcomer"), "https://host.example/1"), errNoEcho)
		v.wantLimit(v.ask(principal("newcomer"), "https://host.example/2"), "failedVerificationsPerHost")
		expect.Equal(t, "challenges", v.challenges.Load(), maxFailedByAll+1)
		v.answer = echo
		v.askTimes(50, bob, "https://host.example/b/%d", nil) // an honest principal at the same host
	})
	t.Run("SRF-07 challenges that are waiting for an answer are bounded, and end with it", func(t *testing.T) {
		arrived, answer := make(chan struct{}), make(chan struct{})
		v := newVerifier(t, func(context.Context, string) error { arrived <- struct{}{}; <-answer; return nil })
		results := make(chan error)
		for n := range maxPending {
			go func() { results <- v.ask(alice, "https://host.example/%d", n) }()
			<-arrived
		}
		v.wantLimit(v.ask(alice, "https://host.example/more"), "pendingVerifications")
		close(answer)
		for range maxPending {
			expect.OK(t, <-results)
		}
		v.answer = echo
		expect.OK(t, v.ask(alice, "https://host.example/more")) // after the answers
	})
	t.Run("SRF-07 a caller that hangs up has failed", func(t *testing.T) {
		v := newVerifier(t, func(ctx context.Context, _ string) error {
			return fault.Wrap(fault.Unavailable, ctx.Err(), "verify the target")
		})
		for n := range maxFailed {
			ctx, hangUp := context.WithCancel(t.Context())
			v.answer = func(context.Context, string) error {
				hangUp()
				return fault.Wrap(fault.Unavailable, ctx.Err(), "verify the target")
			}
			expect.Fault(t, "a challenge", v.askIn(ctx, alice, fmt.Sprintf("https://host.example/%d", n)), fault.Unavailable)
		}
		v.wantLimit(v.ask(alice, "https://host.example/more"), "failedVerifications")
	})
	t.Run("SRF-07 all processes together have the limits", func(t *testing.T) {
		v := newVerifier(t, silent)
		other := *v.fixture
		registrar := *v.Registrar
		registrar.Service = &Service{Store: Store{DB: v.db, Now: v.Now}, Catalog: v.Catalog, Log: v.Log}
		other.Registrar = &registrar
		for n := range maxFailed {
			expect.Is(t, "a challenge", []*verifier{v, {&other, v.endpoints}}[n%2].ask(alice, "https://host.example/%d", n), errNoEcho)
		}
		v.wantLimit(v.ask(alice, "https://host.example/more"), "failedVerifications")
	})
}
