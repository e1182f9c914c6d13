package subscription

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// outside stands for the targets: it seals by reversing, and verifies as told.
type outside struct {
	verified []string
	refuse   error
	secrets  atomic.Int64
}

func (o *outside) Check(url string) error {
	if !strings.HasPrefix(url, "https://") {
		return fault.New(fault.Invalid, "the target must be https")
	}
	return nil
}

func (o *outside) Verify(_ context.Context, url, _ string, _ []byte) error {
	o.verified = append(o.verified, url)
	return o.refuse
}

func (o *outside) ParseSecret(s string) ([]byte, error) {
	if !strings.HasPrefix(s, "whsec_") {
		return nil, fault.New(fault.Invalid, "not a whsec_ secret")
	}
	return []byte(s), nil
}

func (o *outside) NewSecret(SecretType) (string, []byte) {
	s := fmt.Sprintf("whsec_made_here_%d", o.secrets.Add(1))
	return s, []byte(s)
}

func (o *outside) Seal(_ context.Context, key []byte, _ Binding) ([]byte, error) {
	sealed := bytes.Clone(key)
	for i := range sealed {
		sealed[i] ^= 0xff
	}
	return sealed, nil
}

type fixture struct {
	*Service
	*Registrar
	*Lists
	*Sweeper
	t       *testing.T
	db      *sqlite.DB
	outside *outside
	clock   time.Time
	ended   []string
}

var (
	alice = auth.Principal{ID: "alice", Workspace: "default", Scopes: auth.Scopes()}
	bob   = auth.Principal{ID: "bob", Workspace: "default", Scopes: auth.Scopes()}
)

func newFixture(t *testing.T, o Options) *fixture {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	sealer := expect.Value(eventlog.NewSealer(make([]byte, 32)))(t)
	f := &fixture{t: t, db: db, outside: &outside{}, clock: time.Now().Truncate(time.Second)}
	f.Lists = &Lists{DB: db, Now: func() time.Time { return f.clock }}
	f.Service = &Service{
		Store:   Store{DB: db, Now: f.Now, Ended: func(id string) { f.ended = append(f.ended, id) }},
		Catalog: catalog.NewStatic(parse(t, patternCatalog)), Log: &eventlog.Log{DB: db},
	}
	f.Registrar = &Registrar{Service: f.Service, Sealer: sealer, Targets: f.outside, Options: o}
	f.Sweeper = &Sweeper{Service: f.Service}
	return f
}

func (f *fixture) register(p auth.Principal, r RegisterRequest) *Registered {
	f.t.Helper()
	return expect.Value(f.Register(f.t.Context(), p, r))(f.t)
}

func (f *fixture) subscribers(key string) []Subscriber {
	f.t.Helper()
	subs := expect.Value(ReadSubscribers(f.t.Context(), f.db, "default", key, Range{}, 100))(f.t).List
	expect.Equal(f.t, "the count in the header of "+key, HeaderCount(f.headers(key)[0]), len(subs))
	return subs
}

const patternCatalog = `events:
  - name: ci.build_finished
    uri: event://ci/build-finished
  - name: github.push
    uriTemplate: event://github/{owner}/{repo}/push
`

func parse(t testing.TB, src string) *catalog.Catalog {
	t.Helper()
	return expect.Value(catalog.Parse([]byte(src)))(t)
}

const build = "event://ci/build-finished"

func TestRegister(t *testing.T) {
	t.Run("EVS-08 one subscription under each of its URIs, all or nothing", func(t *testing.T) {
		f := newFixture(t, Options{})
		got := f.register(alice, RegisterRequest{URIs: []string{build, "event://github/acme"}, Target: "https://a.example/hook"})
		_, ok := ParseURI(URI(got.Subscription.ID))
		expect.True(t, "the id "+got.Subscription.ID+" is valid", ok)
		for _, key := range []string{build, "event://github/acme/**"} {
			if subs := f.subscribers(key); len(subs) != 1 || subs[0].ID != got.Subscription.ID {
				t.Errorf("under %s: %v", key, subs)
			}
		}
		partial := RegisterRequest{URIs: []string{build, "event://unknown/x"}, Target: "https://a.example/hook"}
		expect.Fault(t, "the registration", expect.ErrOf(f.Register(t.Context(), alice, partial)), fault.Invalid)
		expect.Equal(t, "subscribers after a refused registration", len(f.subscribers(build)), 1)
	})
	t.Run("EVS-08 one to fifty URIs", func(t *testing.T) {
		f := newFixture(t, Options{})
		uris := make([]string, 51)
		for i := range uris {
			uris[i] = fmt.Sprintf("event://github/acme/r%d/push", i)
		}
		for _, n := range []int{0, 51} {
			request := RegisterRequest{URIs: uris[:n], Target: "https://a.example/"}
			expect.Fault(t, fmt.Sprint(n, " URIs"), expect.ErrOf(f.Register(t.Context(), alice, request)), fault.Invalid)
		}
		f.register(alice, RegisterRequest{URIs: uris[:50], Target: "https://a.example/"})
	})
	t.Run("EVS-10 the secret is in the answer and nowhere in clear", func(t *testing.T) {
		f := newFixture(t, Options{})
		got := f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"})
		expect.Differ(t, "the secret", got.Secret, "")
		for _, part := range []string{"o#default#alice", "p#default#" + build} {
			page := expect.Value(f.db.Query(t.Context(), store.Query{Table: store.Subscriptions, Partition: part}))(t)
			expect.AtLeast(t, "the items of "+part, len(page.Items), 1)
			for _, it := range page.Items {
				expect.Lacks(t, part, string(it.Value), got.Secret)
			}
		}
		view := expect.Value(json.Marshal(expect.Value(f.Read(t.Context(), alice, URI(got.Subscription.ID)))(t)))(t)
		expect.Lacks(t, "the view", string(view), got.Secret)
	})
	t.Run("a repetition with the same key answers with the same subscription and a fresh secret", func(t *testing.T) {
		f := newFixture(t, Options{})
		r := RegisterRequest{URIs: []string{build}, Target: "https://a.example/", IdempotencyKey: "k1"}
		first, second := f.register(alice, r), f.register(alice, r)
		expect.Equal(t, "the ID", first.Subscription.ID, second.Subscription.ID)
		expect.Differ(t, "the secret", first.Secret, second.Secret)
		expect.Equal(t, "subscribers", len(f.subscribers(build)), 1)
		r.Target = "https://b.example/"
		expect.Fault(t, "other parameters under the same key", expect.ErrOf(f.Register(t.Context(), alice, r)), fault.Invalid)
	})
	t.Run("a long key is refused with its length", func(t *testing.T) {
		_, err := newFixture(t, Options{}).Register(t.Context(), alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/", IdempotencyKey: strings.Repeat("k", 129)})
		expect.Equal(t, "the error", fault.Public(err), "the idempotency key has 129 bytes (allowed: up to 128)")
	})
	t.Run("the quota is kept and named", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.Store.QuotaOf = quotaOf(2)
		r := RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}
		first := f.register(alice, r)
		f.register(alice, r)
		expect.Fault(t, "one more", expect.ErrOf(f.Register(t.Context(), alice, r)), fault.Exhausted, "2")
		expect.Equal(t, "subscribers", len(f.subscribers(build)), 2)
		expect.OK(t, f.Deregister(t.Context(), alice, URI(first.Subscription.ID)))
		f.register(alice, r)
	})
}

func TestDeregister(t *testing.T) {
	f := newFixture(t, Options{})
	got := f.register(alice, RegisterRequest{URIs: []string{build, "event://ci"}, Target: "https://a.example/"})
	uri := URI(got.Subscription.ID)
	t.Run("EVS-11 another principal's, an unknown and a malformed one are answered alike", func(t *testing.T) {
		foreign := f.Deregister(t.Context(), bob, uri)
		expect.Fault(t, "another principal's", foreign, fault.NotFound)
		for _, missing := range []string{URI("sub_00000000000000000000000000000000"), "subscription://x"} {
			expect.Equal(t, "the answer for "+missing, fault.Public(f.Deregister(t.Context(), alice, missing)), fault.Public(foreign))
		}
	})
	t.Run("EVS-11 the owner ends it, and it leaves nothing to look up", func(t *testing.T) {
		expect.OK(t, f.Deregister(t.Context(), alice, uri))
		expect.Equal(t, "subscribers that are left", len(f.subscribers(build))+len(f.subscribers("event://ci/**")), 0)
		expect.List(t, "the ends that were notified", f.ended, []string{got.Subscription.ID})
		items := expect.Value(f.db.Get(t.Context(), ShapesKey("default", "entry:ci.build_finished"), ShapesKey("default", match.ScopeOf(""))))(t)
		for _, it := range items {
			webhooks, _ := InUse(it, "", f.clock)
			expect.Len(t, "the shapes in use", webhooks, 0)
		}
	})
}

func TestOverlappingPatternsDeliverOnce(t *testing.T) {
	f := newFixture(t, Options{})
	f.register(alice, RegisterRequest{URIs: []string{"event://ci", build}, Target: "https://a.example/"})
	e := newEvent(build)
	wants := 0
	for _, key := range []string{build, "event://ci/**"} {
		for _, s := range f.subscribers(key) {
			if s.Wants(&match.Payload{Event: e}, f.clock) {
				wants++
			}
		}
	}
	expect.Equal(t, "EVS-13: subscriptions that want the event", wants, 1)
}

func TestDisabledSubscriptionIsShownToItsOwner(t *testing.T) {
	f := newFixture(t, Options{})
	got := f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"})
	expect.OK(t, expect.ErrOf(f.Disable(t.Context(), "default", "alice", got.Subscription.ID, "the endpoint is gone", 0)))
	expect.Equal(t, "WHK-08: subscribers that are left", len(f.subscribers(build)), 0)
	v, err := f.Read(t.Context(), alice, URI(got.Subscription.ID))
	if err != nil || v.State != Disabled || v.Reason == "" {
		t.Errorf("EVS-12: %+v %v", v, err)
	}
	expect.OK(t, f.Deregister(t.Context(), alice, URI(got.Subscription.ID))) // also a disabled one
}

func TestListShowsOnesOwn(t *testing.T) {
	f := newFixture(t, Options{})
	for range 3 {
		f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"})
	}
	f.register(bob, RegisterRequest{URIs: []string{build}, Target: "https://b.example/"})
	var all []View
	after := ""
	for {
		page, next, err := f.List(t.Context(), alice, after, 2)
		expect.OK(t, err)
		all = append(all, page...)
		if after = next; after == "" {
			break
		}
	}
	expect.Equal(t, "EVS-12: alice's subscriptions", len(all), 3)
}

func newEvent(uri string) *event.Event {
	return &event.Event{Workspace: "default", ID: "evt_1", URI: uri, Data: []byte(`{}`)}
}

// TestSubscribeThatRacesWithAnEnd: a refresh finds the subscription, which ends
// before the refresh is written; so it is a new one, and owes its replay.
func TestSubscribeThatRacesWithAnEnd(t *testing.T) {
	f := newFixture(t, Options{})
	r := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`)}
	first := f.subscribe(r)
	f.clock = f.clock.Add(time.Minute)
	f.Store.DB = storetest.Hooked{DB: f.db, OnWrite: func(_ context.Context, ops []store.Op) error {
		if len(ops) == 1 || !strings.HasPrefix(ops[0].Item.Partition, "o#") {
			return nil
		}
		f.Store.DB = f.db // before the first transaction that replaces the record
		return f.Unsubscribe(t.Context(), alice, "github.push", r.Arguments, "https://chat.example/cb")
	}}
	r.Secret = "whsec_two"
	second := f.subscribe(r)
	if second.ID != first.ID || second.Refreshed {
		t.Errorf("EVX-08: got %+v, want a new subscription under the same id", second)
	}
	subs := f.subscribers("event://github/a/b/push")
	if len(subs) != 1 || subs[0].Target.Previous != nil {
		t.Errorf("EVX-10: %d subscribers, with the secret of the one that ended", len(subs))
	}
}

func quotaOf(n int64) func(context.Context, string, string) int64 {
	return func(context.Context, string, string) int64 { return n }
}

func TestOriginsInOneSpelling(t *testing.T) {
	for text, want := range map[string]string{
		"https://hooks.example.com":          "https://hooks.example.com",
		"HTTPS://Hooks.Example.COM:443":      "https://hooks.example.com",
		"http://hooks.example.com:80/":       "http://hooks.example.com",
		"http://hooks.example.com:443":       "http://hooks.example.com:443",
		"https://[2001:DB8::1]:8443":         "https://[2001:db8::1]:8443",
		"https://[2001:db8::443]":            "https://[2001:db8::443]",
		"hooks.example.com":                  "hooks.example.com",
		"":                                   "",
		"https://hooks.example.com:4430/a?b": "https://hooks.example.com:4430",
	} {
		expect.Equal(t, fmt.Sprintf("OPS-01 %q", text), SameOrigin(text), want)
	}
}

func TestDecodeSubscriber(t *testing.T) {
	text := func(n int) []byte {
		b, _ := json.Marshal(Subscriber{V: recordVersion, ID: fmt.Sprint("sub_", n), Principal: "p", Skip: []string{"a"}, Filters: []match.Filter{{Pointer: "/a"}}})
		return b
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 12_000 { // more than are kept, and each text twice in turn
				b := text(i / 2)
				got, err := decodeSubscriber(b)
				var want Subscriber
				_ = json.Unmarshal(b, &want)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("got %+v, %v", got, err)
					return
				}
				clear(b) // the text is the caller's
			}
		})
	}
	wg.Wait()
	for range 2 {
		expect.Error(t, "an invalid subscriber", expect.ErrOf(decodeSubscriber([]byte(`{"v":"x"}`))))
	}
}

// resealAll seals all secrets again, by adding a prefix to secrets without one, and returns how many pages it took.
func (f *fixture) resealAll(prefix string, before func(b Binding)) (pages int) {
	f.t.Helper()
	var at Position
	for more := true; more; pages++ {
		var err error
		at, more, err = f.Store.Reseal(f.t.Context(), at, func(_ context.Context, sealed []byte, b Binding) ([]byte, error) {
			if before != nil {
				before(b)
			}
			if bytes.HasPrefix(sealed, []byte(prefix)) {
				return nil, nil
			}
			return append([]byte(prefix), sealed...), nil
		})
		expect.OK(f.t, err)
	}
	return pages
}

// secrets returns the sealed secrets of the default workspace, from the records and from the items under the pattern.
func (f *fixture) secrets(p auth.Principal, pattern string) (all [][]byte) {
	f.t.Helper()
	expect.OK(f.t, f.Lists.Each(f.t.Context(), p.Workspace, p.ID, func(s *Subscription) error {
		all = append(all, s.Target.Secret)
		return nil
	}))
	for _, s := range expect.Value(ReadSubscribers(f.t.Context(), f.db, p.Workspace, pattern, Range{}, 1000))(f.t).List {
		all = append(all, s.Target.Secret)
	}
	return all
}

func TestReseal(t *testing.T) {
	t.Run("given subscriptions of several workspaces and pages, when they are sealed again, then records and pattern items have the new secret", func(t *testing.T) {
		f := newFixture(t, Options{})
		const n = resealPage + 1
		for i := range n {
			f.register(alice, RegisterRequest{URIs: []string{build}, Target: fmt.Sprintf("https://a.example/%d", i)})
		}
		f.register(auth.Principal{ID: "carol", Workspace: "other", Scopes: auth.Scopes()}, RegisterRequest{URIs: []string{build}, Target: "https://c.example/"})
		expect.Equal(t, "pages", f.resealAll("new:", nil), 3)
		secrets := f.secrets(alice, build)
		expect.Equal(t, "secrets", len(secrets), 2*n)
		for _, s := range secrets {
			if !bytes.HasPrefix(s, []byte("new:")) || bytes.HasPrefix(s, []byte("new:new:")) {
				t.Fatalf("got the secret %q, want one that was sealed again once", s)
			}
		}
	})
	t.Run("given a subscription that changes at the same time, when it is sealed again, then the change stays", func(t *testing.T) {
		f := newFixture(t, Options{})
		id := f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}).Subscription.ID
		pause := sync.OnceFunc(func() { expect.OK(t, expect.ErrOf(f.SetPaused(t.Context(), "default", "alice", id, true))) })
		f.resealAll("new:", func(Binding) { pause() })
		sub, err := f.Lookup(t.Context(), "default", "alice", id)
		if err != nil || sub.Paused == 0 || !bytes.HasPrefix(sub.Target.Secret, []byte("new:")) {
			t.Errorf("got %+v, %v; want a paused subscription with the new secret", sub, err)
		}
	})
	t.Run("given a disabled subscription, when it is visited, then it stays disabled", func(t *testing.T) {
		f := newFixture(t, Options{})
		sub := f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}).Subscription
		expect.MustEqual(t, "it is disabled", expect.Value(f.Disable(t.Context(), "default", "alice", sub.ID, "because", sub.Resumed))(t), true)
		visits := 0
		f.resealAll("new:", func(Binding) { visits++ })
		expect.Equal(t, "the visits", visits, 1)
		expect.Equal(t, "the number of subscribers", len(f.subscribers(build)), 0)
	})
	t.Run("given a secret that cannot be sealed again, then the error is returned and the position stays", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.register(alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/"})
		broken := errors.New("broken")
		next, more, err := f.Store.Reseal(t.Context(), Position{}, func(context.Context, []byte, Binding) ([]byte, error) { return nil, broken })
		if !errors.Is(err, broken) || more || next != (Position{}) {
			t.Errorf("got %v, %v, %v; want the beginning and the error", next, more, err)
		}
	})
}
