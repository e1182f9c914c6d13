package subscription

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/subscription/tally"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// refusing returns the store, which answers with an error where a subscription is counted.
func refusing(db store.DB, err error) store.DB {
	return storetest.Hooked{DB: db, OnWrite: func(_ context.Context, ops []store.Op) error {
		if slices.ContainsFunc(ops, func(op store.Op) bool { return op.Item.Key == tally.Key("default", alice.ID) }) {
			return err
		}
		return nil
	}}
}

// wantSum checks the sum of the default workspace.
func (f *fixture) wantSum(want int64) {
	f.t.Helper()
	expect.Equal(f.t, "the sum", expect.Value(tally.ReadCount(f.t.Context(), f.db, "default", ""))(f.t), want)
}

// TestTheSumOfAWorkspace: OPS-15. The store's side of it, counts with a limit, is in the suite of both stores.
func TestTheSumOfAWorkspace(t *testing.T) {
	request := RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}
	limited := func(t *testing.T, quota int64, sum *int64) *fixture {
		f := newFixture(t, Options{})
		f.Store.QuotaOf, f.Store.SumOf = quotaOf(quota), func(_ context.Context, workspace string) int64 {
			if workspace == "default" {
				return *sum
			}
			return 0
		}
		return f
	}
	t.Run("OPS-15 a workspace has as many as it may, whoever they are of", func(t *testing.T) {
		sum := int64(10)
		f := limited(t, 100, &sum)
		var won atomic.Int64
		var all sync.WaitGroup
		for i := range 4 {
			who := principal("p%d", i)
			all.Go(func() {
				for range 5 {
					switch _, err := f.Register(t.Context(), who, request); {
					case err == nil:
						won.Add(1)
					case !fault.Is(err, fault.Exhausted) || fault.LimitOf(err) != "workspaceSubscriptions" || !strings.Contains(fault.Public(err), "10 subscriptions of the workspace"):
						t.Errorf("got %v of the limit %q", err, fault.LimitOf(err))
					}
				}
			})
		}
		all.Wait()
		expect.Equal(t, "the registrations", won.Load(), sum)
		expect.Equal(t, "the number of subscribers", len(f.subscribers(build)), int(sum))
		f.wantSum(sum)
		found, _, err := f.Select(t.Context(), "default", Choice{}, "", 100)
		expect.OK(t, err)
		expect.Equal(t, "the listed subscriptions", len(found), int(sum))
		f.register(auth.Principal{ID: "p0", Workspace: "other", Scopes: auth.Scopes()}, request)
		sum = 11
		f.register(alice, request)
		sum = 0 // which is any number
		f.register(alice, request)
		f.wantSum(12)
	})
	t.Run("OPS-15 what ended makes room, whichever way it ended", func(t *testing.T) {
		sum := int64(1)
		f := limited(t, 100, &sum)
		first := f.register(alice, request).Subscription
		expect.OK(t, f.Deregister(t.Context(), alice, URI(first.ID)))
		f.wantSum(0)
		second := f.register(alice, request).Subscription
		end := func(*Subscription) error { return &Terminated{} }
		expect.OK(t, expect.ErrOf(f.Terminate(t.Context(), "default", alice.ID, second.ID, end, func(*Subscription, error) []store.Op { return nil })))
		f.wantSum(0)
		expect.OK(t, expect.ErrOf(f.Enable(t.Context(), "default", alice.ID, second.ID)))
		f.wantSum(1)
		expect.OK(t, f.End(t.Context(), "default", alice.ID, second.ID))
		f.clock = f.clock.Truncate(time.Minute).Add(30 * time.Second)
		third := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, For: time.Minute}})
		expect.Equal(t, "the limit of one more", fault.LimitOf(expect.ErrOf(f.trySubscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"c"}`)}))), "workspaceSubscriptions")
		f.clock = third.RefreshBefore.Add(2 * time.Minute)
		expect.OK(t, expect.ErrOf(f.Sweep(t.Context())))
		f.wantSum(0)
	})
	t.Run("OPS-15 what was refused does not count, and what may have been written does", func(t *testing.T) {
		sum := int64(5)
		f := limited(t, 1, &sum)
		f.register(alice, request)
		expect.Equal(t, "the limit", fault.LimitOf(expect.ErrOf(f.Register(t.Context(), alice, request))), "subscriptions")
		f.wantSum(1)
		expect.Equal(t, "active subscriptions in the lists", expect.Value(f.CountStates(t.Context(), "default", 100))(t)[Active], 1)
		f.Store.QuotaOf = quotaOf(5)
		f.Store.DB = refusing(f.db, fault.New(fault.Invalid, "no"))
		expect.Error(t, "a registration without a record", expect.ErrOf(f.Register(t.Context(), alice, request)))
		f.wantSum(1)
		f.Store.DB = refusing(f.db, fault.New(fault.Unavailable, "no answer"))
		expect.Error(t, "a registration without a record", expect.ErrOf(f.Register(t.Context(), alice, request)))
		f.wantSum(2)
	})
}

// TestTheSumOfAWorkspaceIsCorrected: OPS-15, after processes that died between counting and writing a subscription.
func TestTheSumOfAWorkspaceIsCorrected(t *testing.T) {
	request := RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}
	const limit = 5
	start := func(t *testing.T) *fixture {
		f := newFixture(t, Options{})
		f.Store.SumOf = func(context.Context, string) int64 { return limit }
		f.register(alice, request)
		f.register(bob, request)
		return f
	}
	// drift changes the sum as such a process leaves it.
	drift := func(t *testing.T, f *fixture, by int64) {
		t.Helper()
		expect.OK(t, f.db.Write(t.Context(), store.Add(tally.Key("default", ""), map[string]int64{tally.Member: by}, nil)))
	}
	recount := func(t *testing.T, f *fixture, rounds int) (corrected int) {
		t.Helper()
		for range rounds {
			f.clock = f.clock.Add(time.Minute)
			corrected += expect.Value(f.Recount(t.Context()))(t)
		}
		return corrected
	}
	t.Run("OPS-15 a workspace that is locked out is let in again", func(t *testing.T) {
		f := start(t)
		expect.Equal(t, "corrected right sums", recount(t, f, 2), 0)
		drift(t, f, limit-2)
		expect.MustEqual(t, "the limit of the workspace", fault.LimitOf(expect.ErrOf(f.Register(t.Context(), alice, request))), "workspaceSubscriptions")
		expect.Equal(t, "corrected sums", recount(t, f, 12), 1)
		f.register(alice, request)
		f.wantSum(3)
	})
	for _, by := range []int64{-2, -1, 1, 2} {
		f := start(t)
		drift(t, f, by)
		recount(t, f, 2)
		f.wantSum(2)
	}
	t.Run("OPS-15 a registration that is under way during one recount changes nothing", func(t *testing.T) {
		f := start(t)
		drift(t, f, 1)
		recount(t, f, 1)
		drift(t, f, -1)
		expect.Equal(t, "corrected sums", recount(t, f, 3), 0)
		f.wantSum(2)
	})
}

// TestShapeCountersBelowZero: earlier releases counted subscriptions down that they had not counted up.
func TestShapeCountersBelowZero(t *testing.T) {
	f := newFixture(t, Options{})
	const pattern = "event://github/acme/app/push"
	request := RegisterRequest{URIs: []string{pattern}, Target: "https://a.example/"}
	sub := f.register(alice, request).Subscription
	shapes, shape := ShapesKey("default", sub.Patterns[0].Shape.Scope), sub.Patterns[0].Shape
	expect.OK(t, f.db.Write(t.Context(), store.Add(shapes, map[string]int64{"w_" + shape.Name: -2}, nil)))
	f.register(alice, request)
	it := expect.Value(store.One(t.Context(), f.db, shapes, "read the shapes"))(t)
	if webhooks, _ := InUse(it, shape.Scope, f.clock); !slices.Contains(webhooks, shape) {
		t.Errorf("EVS-08 the shapes in use are %v, want %v among them", webhooks, shape)
	}
}

// subscribeFor makes subscriptions that end together.
func (f *fixture) subscribeFor(ttl time.Duration, n int) (ids []string, until time.Time) {
	f.t.Helper()
	for i := range n {
		got := f.subscribe(SubscribeRequest{
			Arguments: json.RawMessage(fmt.Sprintf(`{"owner":"a","repo":"r%d"}`, i)), TTL: TTL{Asked: true, For: ttl},
		})
		ids, until = append(ids, got.ID), got.RefreshBefore
	}
	return ids, until
}

// TestWhatCannotBeDecodedDoesNotStopTheSweep: AWS-16.
func TestWhatCannotBeDecodedDoesNotStopTheSweep(t *testing.T) {
	f := newFixture(t, Options{})
	var aside []string
	f.DeadLetter = func(ctx context.Context, it *store.Item, reason error) error {
		aside = append(aside, it.Sort)
		return f.db.Write(ctx, store.Delete(it.Key))
	}
	const all = 12
	ids, until := f.subscribeFor(time.Minute, all)
	// One entry and one record are broken, wherever they come among the others.
	var entry, record store.Key
	for shard := range sweepShards {
		page := expect.Value(f.db.Query(t.Context(), store.Query{Table: store.Subscriptions, Partition: expiryPartition(shard, until)}))(t)
		if len(page.Items) > 0 {
			entry = page.Items[0].Key
		}
	}
	for _, id := range ids {
		if id != entry.Sort {
			record = recordKey("default", "alice", id)
		}
	}
	for _, k := range []store.Key{entry, record} {
		expect.OK(t, f.db.Write(t.Context(), store.Put(store.Item{Key: k, Value: []byte("{broken")})))
	}
	f.clock = until
	expect.Equal(t, "AWS-16 the swept subscriptions", expect.Value(f.Sweep(t.Context()))(t), all-2)
	slices.Sort(aside)
	expect.List(t, "the items that were set aside", aside, slices.Sorted(slices.Values([]string{entry.Sort, record.Sort})))
	f.clock = f.clock.Add(time.Minute)
	expect.Equal(t, "the swept subscriptions of the next round", expect.Value(f.Sweep(t.Context()))(t), 0)
	expect.Equal(t, "the number of subscriptions put aside", len(aside), 2)
}

// FuzzOriginOf compares the fast path of OriginOf with [url.Parse].
func FuzzOriginOf(f *testing.F) {
	for _, target := range []string{
		"https://example.com/hook", "http://127.0.0.1:8080/a/b?c=d#e", "https://example.com", "https://Example.COM:443/", "https://user@example.com/",
		"https://[::1]:80/x", "https://a:b/", "https://a:/", "https:///x", "https://a/%zz", "https://a/b%20c", "https://a b/", "HTTPS://a/", "x", "",
		"https://a:1:2/", "https://\u00e4.example/",
	} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		want := target
		if u, err := url.Parse(target); err == nil {
			want = u.Scheme + "://" + u.Host
		}
		expect.Equal(t, "OriginOf of "+target, OriginOf(target), want)
	})
}
