package subscription

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/tally"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// use makes the fixture use a store.
func (f *fixture) use(db store.DB) {
	f.Store.DB, f.Lists.DB, f.Service.Log.DB = db, db, db
}

// partition returns the items of a partition of subscriptions.
func (f *fixture) partition(name string) []store.Item {
	f.t.Helper()
	return expect.Value(f.db.Query(f.t.Context(), store.Query{Table: store.Subscriptions, Partition: name, Limit: 1000}))(f.t).Items
}

// checkStored checks that the stored subscriptions of alice fit together, with the counters and indexes, and returns them.
func (f *fixture) checkStored(when string) (live []*Subscription) {
	f.t.Helper()
	fail := func(format string, args ...any) {
		f.t.Helper()
		f.t.Errorf(when+": "+format, args...)
	}
	shapes, patterns := map[match.Shape]int64{}, map[string]int{}
	has := func(k store.Key) bool {
		f.t.Helper()
		return expect.Value(f.db.Get(f.t.Context(), k))(f.t)[0] != nil
	}
	expect.OK(f.t, (&Lists{DB: f.db}).Each(f.t.Context(), "default", alice.ID, func(sub *Subscription) error {
		keys := []store.Key{indexKey("default", sub.ID)}
		if state := sub.EffectiveState(); state != Active {
			keys = append(keys, stateKey("default", state, sub.ID))
		}
		if sub.State != Disabled {
			live = append(live, sub)
			keys = append(append(keys, sub.listKeys()...), sub.indexKeys()...)
			if !sub.Until.IsZero() {
				keys = append(keys, sub.expiryKey())
			}
			for _, p := range sub.Patterns {
				shapes[p.Shape]++
				patterns[p.Key]++
				keys = append(keys, subscriberKey("default", p.Key, sub.ID))
			}
		}
		for _, k := range keys {
			if !has(k) {
				fail("%s has no item %v", sub.ID, k)
			}
		}
		return nil
	}))
	for shape, n := range shapes {
		it := expect.Value(f.db.Get(f.t.Context(), ShapesKey("default", shape.Scope)))(f.t)[0]
		if it == nil || it.Counts["w_"+shape.Name] < n {
			fail("the shape %v of %d subscriptions has the counts %v", shape, n, it)
		}
	}
	for _, key := range []string{build, "event://github/a/b/push", "event://gh/a/b/push", "event://github/a/*/push", "event://gh/a/*/push"} {
		found := 0
		for _, it := range f.partition(HeaderKey("default", key).Partition) {
			if it.Sort != "#" {
				found++
			}
		}
		if n := HeaderCount(f.headers(key)[0]); found != patterns[key] || n < found {
			fail("%s has %d subscribers and a count of %d, want %d subscribers", key, found, n, patterns[key])
		}
	}
	for i := range int64(2) {
		expect.Equal(f.t, when+": subscriptions that count towards the quota", expect.Value(tally.ReadCount(f.t.Context(), f.db, "default", alice.ID))(f.t), int64(len(live)))
		f.use(f.db)
		f.clock = f.clock.Add(time.Duration(i) * 25 * time.Hour)
		expect.OK(f.t, expect.ErrOf(f.Recount(f.t.Context())))
		f.clock = f.clock.Add(-time.Duration(i) * 25 * time.Hour)
	}
	expect.OK(f.t, expect.ErrOf(f.Recount(f.t.Context())))
	if n := expect.Value(tally.ReadCount(f.t.Context(), f.db, "default", ""))(f.t); n < int64(len(live)) {
		fail("the sum of the workspace is %d, want %d", n, len(live))
	}
	return live
}

// repeatable are requests that a client or the server repeats after an error. prepare brings the subscription into the state before
// the request. The request reports an error until it has succeeded.
var repeatable = map[string]struct {
	prepare, request func(f *fixture) error
	check            func(f *fixture, live []*Subscription) string
}{
	"register": {
		request: func(f *fixture) error { return f.tryRegister("k") },
		check:   lives(Active, build),
	},
	"repeat a registration": {
		prepare: func(f *fixture) error { return f.tryRegister("k") },
		request: func(f *fixture) error { return f.tryRegister("k") },
		check:   lives(Active, build),
	},
	"deregister": {
		prepare: func(f *fixture) error { return f.tryRegister("k") },
		request: func(f *fixture) error { return f.endAll() },
		check:   lives(""),
	},
	"disable": {
		prepare: func(f *fixture) error { return f.tryRegister("k") },
		request: func(f *fixture) error {
			_, err := f.Disable(f.t.Context(), "default", alice.ID, f.only(), ReasonGone, f.resumed())
			return err
		},
		check: lives(""),
	},
	"enable": {
		prepare: func(f *fixture) error {
			expect.OK(f.t, f.tryRegister("k"))
			_, err := f.Disable(f.t.Context(), "default", alice.ID, f.only(), "x", f.resumed())
			return err
		},
		request: func(f *fixture) error {
			_, err := f.Enable(f.t.Context(), "default", alice.ID, f.only())
			return err
		},
		check: lives(Active, build),
	},
	"pause": {
		prepare: func(f *fixture) error { return f.tryRegister("k") },
		request: func(f *fixture) error {
			_, err := f.SetPaused(f.t.Context(), "default", alice.ID, f.only(), true)
			return err
		},
		check: lives(Paused, build),
	},
	"subscribe": {
		request: func(f *fixture) error { return f.tryArguments(`{"owner":"a"}`, "") },
		check:   lives(Active, "event://github/a/*/push"),
	},
	"refresh": {
		prepare: func(f *fixture) error { return f.tryArguments(`{"owner":"a"}`, "") },
		request: func(f *fixture) error { return f.tryArguments(`{"owner":"a"}`, "whsec_two") },
		check:   lives(Active, "event://github/a/*/push"),
	},
	"refresh after a change of the URI template": {
		prepare: func(f *fixture) error {
			err := f.tryArguments(`{"owner":"a"}`, "")
			f.Service.Catalog.(*catalog.Static).Replace(parse(f.t, strings.ReplaceAll(patternCatalog, "event://github/", "event://gh/")))
			return err
		},
		request: func(f *fixture) error { return f.tryArguments(`{"owner":"a"}`, "") },
		check:   lives(Active, "event://gh/a/*/push"),
	},
	"unsubscribe": {
		prepare: func(f *fixture) error { return f.tryArguments(`{"owner":"a","repo":"b"}`, "") },
		request: func(f *fixture) error { return f.endAll() },
		check:   lives(""),
	},
	"suspend": {
		prepare: func(f *fixture) error { return f.tryArguments(`{"owner":"a"}`, "") },
		request: func(f *fixture) error {
			return f.Suspend(f.t.Context(), "default", alice.ID, f.only(), f.resumed())
		},
		check: lives(Suspended, "event://github/a/*/push"),
	},
	"refresh a suspended subscription": {
		prepare: func(f *fixture) error {
			expect.OK(f.t, f.tryArguments(`{"owner":"a"}`, ""))
			return f.Suspend(f.t.Context(), "default", alice.ID, f.only(), f.resumed())
		},
		request: func(f *fixture) error { return f.tryArguments(`{"owner":"a"}`, "") },
		check: func(f *fixture, live []*Subscription) string {
			if r := f.Replay.(*replays); len(r.after) == 0 || r.resumed == 0 {
				return fmt.Sprintf("the replays are %+v, want at least one", r)
			}
			return lives(Active, "event://github/a/*/push")(f, live)
		},
	},
	"subscribe after the subscription was disabled": {
		prepare: func(f *fixture) error {
			expect.OK(f.t, f.tryArguments(`{"owner":"a"}`, ""))
			_, err := f.Disable(f.t.Context(), "default", alice.ID, f.only(), "x", f.resumed())
			return err
		},
		request: func(f *fixture) error { return f.tryArguments(`{"owner":"a"}`, "") },
		check:   lives(Active, "event://github/a/*/push"),
	},
	"sweep": {
		prepare: func(f *fixture) error {
			_, until := f.subscribeFor(time.Minute, 1)
			f.clock = until.Add(time.Minute)
			return nil
		},
		request: func(f *fixture) error { _, err := f.Sweep(f.t.Context()); return err },
		check:   lives(""),
	},
}

// lives returns a check that one subscription is left with the state and pattern, and that no replay is owed; or, with an empty state,
// that no subscription is left.
func lives(state State, pattern ...string) func(*fixture, []*Subscription) string {
	return func(f *fixture, live []*Subscription) string {
		switch {
		case state == "" && len(live) == 0:
			return ""
		case state == "" || len(live) != 1:
			return fmt.Sprintf("%d subscriptions live", len(live))
		case live[0].EffectiveState() != state || live[0].Patterns[0].Key != pattern[0]:
			return fmt.Sprintf("the subscription is %s under %v", live[0].EffectiveState(), live[0].Patterns)
		}
		return ""
	}
}

func (f *fixture) tryRegister(key string) error {
	_, err := f.Register(f.t.Context(), alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/", IdempotencyKey: key})
	return err
}

func (f *fixture) tryArguments(arguments, secret string) error {
	_, err := f.trySubscribe(SubscribeRequest{Arguments: json.RawMessage(arguments), Secret: secret})
	return err
}

// only returns the id of alice's subscription.
func (f *fixture) only() (id string) {
	f.t.Helper()
	id = "none"
	for _, it := range f.partition("o#default#" + alice.ID) {
		id = it.Sort
	}
	return id
}

func (f *fixture) resumed() Seconds {
	f.t.Helper()
	sub := expect.Value((&Store{DB: f.db}).load(f.t.Context(), "default", alice.ID, f.only()))(f.t)
	if sub == nil {
		return 0
	}
	return sub.Resumed
}

func (f *fixture) endAll() error {
	id := f.only()
	err := f.End(f.t.Context(), "default", alice.ID, id)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// newPreparedFixture returns a fixture in the state before the request of [repeatable] with this name. It calls change before the first
// request.
func newPreparedFixture(t *testing.T, name string, o Options, change func(*fixture)) *fixture {
	t.Helper()
	f := newFixture(t, o)
	f.Replay = &replays{}
	f.Sweeper.DeadLetter = func(context.Context, *store.Item, error) error { return nil }
	change(f)
	if name == "sweep" {
		expect.OK(t, expect.ErrOf(f.Sweep(t.Context())))
	}
	if prepare := repeatable[name].prepare; prepare != nil {
		expect.OK(t, prepare(f))
	}
	return f
}

// TestRepeatedRequests: each call of the store fails once, before or after its writes, or another instance makes the same request before
// the call. After the request was repeated, the subscription is as if nothing had happened.
func TestRepeatedRequests(t *testing.T) {
	for name, tc := range repeatable {
		for _, how := range []string{"before the writes", "after the writes", "another instance is faster"} {
			t.Run(name+" "+how, func(t *testing.T) {
				for at := 1; ; at++ {
					f := newPreparedFixture(t, name, Options{VerifyRegistrations: true}, func(f *fixture) {
						f.Store.SumOf = func(context.Context, string) int64 { return 100 }
						f.Store.QuotaOf = quotaOf(2)
					})
					db := &storetest.Faulty{DB: f.db, At: at, Late: how == "after the writes"}
					if how == "another instance is faster" {
						db.Meanwhile = func() {
							f.use(f.db)
							expect.OK(t, tc.request(f))
							f.use(db)
						}
					}
					f.use(db)
					when := fmt.Sprintf("%s, %s, call %d", name, how, at)
					err := tc.request(f)
					calls := db.Calls
					if err != nil {
						for range 3 {
							if err = tc.request(f); err == nil {
								break
							}
						}
					}
					expect.OK(t, err)
					f.use(f.db)
					live := f.checkStored(when)
					if problem := tc.check(f, live); problem != "" {
						t.Errorf("%s: %s", when, problem)
					}
					_ = f.db.Close()
					if calls < at {
						break
					}
				}
			})
		}
	}
}

// OPS-07: the process dies before or after the writes of each call of the store. After the principal's subscriptions were ended and
// forgotten, as an erasure does it, the indexes have no entry of the principal.
func TestAnEraseFindsWhatADeadProcessLeft(t *testing.T) {
	for name, tc := range repeatable {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("OPS-07 %s, late %v", name, late), func(t *testing.T) {
				for at := 1; ; at++ {
					f := newPreparedFixture(t, name, Options{}, func(*fixture) {})
					db := &storetest.Faulty{DB: f.db, At: at, Late: late, Dies: true}
					f.use(db)
					_ = tc.request(f)
					f.use(f.db)
					var ids []string
					expect.OK(t, (&Lists{DB: f.db}).Each(t.Context(), "default", alice.ID, func(sub *Subscription) error {
						return f.End(t.Context(), "default", alice.ID, sub.ID)
					}))
					expect.OK(t, f.EachEnded(t.Context(), "default", alice.ID, func(id string) error {
						ids = append(ids, id)
						return nil
					}))
					for _, id := range ids {
						expect.OK(t, f.ForgetEnded(t.Context(), "default", alice.ID, id))
					}
					for _, part := range []string{
						"e#default#alice", "o#default#alice", "i#default", "k#default#entry:ci.build_finished", "k#default#entry:github.push",
						"t#default#https://a.example", "t#default#https://chat.example", "z#default#disabled", "z#default#paused", "z#default#suspended",
					} {
						for _, it := range f.partition(part) {
							t.Errorf("call %d: %s has %s of %s", at, part, it.Sort, it.Value)
						}
					}
					_ = f.db.Close()
					if db.Calls < at {
						break
					}
				}
			})
		}
	}
}

// TestForgottenEntriesOfAnEarlierRelease: OPS-07, the index entries of a subscription have no version, so its end does not remove them.
func TestForgottenEntriesOfAnEarlierRelease(t *testing.T) {
	f := newFixture(t, Options{})
	expect.OK(t, f.tryArguments(`{"owner":"a"}`, ""))
	id := f.only()
	entries := []string{"i#default", "k#default#entry:github.push", "t#default#https://chat.example"}
	for _, part := range entries {
		it := f.partition(part)[0]
		it.Version = 0
		expect.OK(t, f.db.Write(t.Context(), store.Put(it)))
	}
	expect.OK(t, f.endAll())
	expect.OK(t, f.ForgetEnded(t.Context(), "default", alice.ID, id))
	for _, part := range entries {
		expect.Equal(t, "the entries in "+part, len(f.partition(part)), 0)
	}
}

// TestForgottenWhileMadeAgain: OPS-07, a subscription that is made again during the erasure stays in the indexes.
func TestForgottenWhileMadeAgain(t *testing.T) {
	f := newFixture(t, Options{})
	f.Store.SumOf = func(context.Context, string) int64 { return 100 }
	expect.OK(t, f.tryArguments(`{"owner":"a"}`, ""))
	id := f.only()
	for at := 1; at <= 3; at++ {
		expect.OK(t, f.endAll())
		db := &storetest.Faulty{DB: f.db, At: at}
		db.Meanwhile = func() {
			f.use(f.db)
			f.clock = f.clock.Add(time.Second)
			expect.OK(t, f.tryArguments(`{"owner":"a"}`, ""))
			f.use(db)
		}
		f.use(db)
		expect.OK(t, f.ForgetEnded(t.Context(), "default", alice.ID, id))
		f.use(f.db)
		expect.Equal(t, "live subscriptions", len(f.checkStored(fmt.Sprintf("call %d", at))), 1)
	}
}

// TestRequestsThatRace: another instance ends, enables or makes the subscription before each single call of a request. Afterwards the
// stored items fit together.
func TestRequestsThatRace(t *testing.T) {
	rivals := map[string]func(f *fixture) error{
		"end":     (*fixture).endAll,
		"disable": repeatable["disable"].request,
		"enable":  repeatable["enable"].request,
		"disable and enable": func(f *fixture) error {
			return cmp.Or(repeatable["disable"].request(f), repeatable["enable"].request(f))
		},
		"end and subscribe": func(f *fixture) error {
			return cmp.Or(f.endAll(), f.tryArguments(`{"owner":"a"}`, ""))
		},
		"register":  repeatable["register"].request,
		"subscribe": repeatable["subscribe"].request,
		"suspend":   repeatable["suspend"].request,
	}
	for name, tc := range repeatable {
		for rival, meanwhile := range rivals {
			t.Run(name+" and "+rival, func(t *testing.T) {
				for at := 1; ; at++ {
					f := newPreparedFixture(t, name, Options{}, func(f *fixture) {
						f.Store.SumOf = func(context.Context, string) int64 { return 100 }
					})
					db := &storetest.Faulty{DB: f.db, At: at}
					db.Meanwhile = func() {
						f.use(f.db)
						f.clock = f.clock.Add(time.Second)
						_ = meanwhile(f)
						f.use(db)
					}
					f.use(db)
					_ = tc.request(f)
					f.use(f.db)
					f.checkStored(fmt.Sprintf("%s, %s before call %d", name, rival, at))
					_ = f.db.Close()
					if db.Calls < at {
						break
					}
				}
			})
		}
	}
}
