package subscription

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// refusing is a store that takes no record of a subscription.
type refusing struct {
	store.DB
	err error
}

func (r *refusing) Write(ctx context.Context, ops ...store.Op) error {
	if r.err != nil && slices.ContainsFunc(ops, func(op store.Op) bool { return op.Item.Key == quotaKey("default", alice.ID) }) {
		return r.err
	}
	return r.DB.Write(ctx, ops...)
}

// TestTheSumOfAWorkspace: OPS-15. The store's side of it, counts with a limit, is in the suite of both stores.
func TestTheSumOfAWorkspace(t *testing.T) {
	request := RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}
	limited := func(t *testing.T, quota int64, sum *int64) *fixture {
		f := newFixture(t, Options{})
		f.Records.QuotaOf, f.Records.SumOf = quotaOf(quota), func(_ context.Context, workspace string) int64 {
			if workspace == "default" {
				return *sum
			}
			return 0
		}
		return f
	}
	used := func(t *testing.T, f *fixture, want int64) {
		t.Helper()
		if got, err := Used(t.Context(), f.db, "default", ""); err != nil || got != want {
			t.Errorf("the sum is %d, %v; want %d", got, err, want)
		}
	}
	t.Run("OPS-15 a workspace has as many as it may, whoever they are of", func(t *testing.T) {
		sum := int64(10)
		f := limited(t, 100, &sum)
		var won atomic.Int64
		var all sync.WaitGroup
		for i := range 4 {
			who := auth.Principal{ID: fmt.Sprintf("p%d", i), Workspace: "default", Scopes: auth.Scopes()}
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
		if n := len(f.subscribers(build)); won.Load() != sum || n != int(sum) {
			t.Errorf("%d were registered, there are %d", won.Load(), n)
		}
		used(t, f, sum)
		found, _, err := f.Select(t.Context(), "default", Choice{}, "", 100)
		if err != nil || len(found) != int(sum) {
			t.Errorf("%d are listed, %v", len(found), err)
		}
		f.register(auth.Principal{ID: "p0", Workspace: "other", Scopes: auth.Scopes()}, request)
		sum = 11
		f.register(alice, request)
		sum = 0 // which is any number
		f.register(alice, request)
		used(t, f, 12)
	})
	t.Run("OPS-15 what ended makes room, whichever way it ended", func(t *testing.T) {
		sum := int64(1)
		f := limited(t, 100, &sum)
		first := f.register(alice, request).Subscription
		if err := f.Deregister(t.Context(), alice, URI(first.ID)); err != nil {
			t.Fatal(err)
		}
		used(t, f, 0)
		second := f.register(alice, request).Subscription
		end := func(*Subscription) error { return &Terminated{} }
		if _, err := f.Terminate(t.Context(), "default", alice.ID, second.ID, end, func(*Subscription, error) []store.Op { return nil }); err != nil {
			t.Fatal(err)
		}
		used(t, f, 0)
		if _, err := f.Enable(t.Context(), "default", alice.ID, second.ID); err != nil {
			t.Fatal(err)
		}
		used(t, f, 1)
		if err := f.End(t.Context(), "default", alice.ID, second.ID); err != nil {
			t.Fatal(err)
		}
		f.clock = f.clock.Truncate(time.Minute).Add(30 * time.Second)
		third := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, For: time.Minute}})
		if _, err := f.trySubscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"c"}`)}); fault.LimitOf(err) != "workspaceSubscriptions" {
			t.Errorf("one more: %v", err)
		}
		f.clock = third.RefreshBefore.Add(2 * time.Minute)
		if _, err := f.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		used(t, f, 0)
	})
	t.Run("OPS-15 what was refused does not count, and what may have been written does", func(t *testing.T) {
		sum := int64(5)
		f := limited(t, 1, &sum)
		f.register(alice, request)
		if _, err := f.Register(t.Context(), alice, request); fault.LimitOf(err) != "subscriptions" {
			t.Errorf("over the quota of a principal: %v", err)
		}
		used(t, f, 1)
		if n, err := f.CountStates(t.Context(), "default", 100); err != nil || n[Active] != 1 {
			t.Errorf("the lists have %v, %v", n, err)
		}
		f.Records.QuotaOf = quotaOf(5)
		db := &refusing{DB: f.db, err: fault.New(fault.Invalid, "no")}
		f.Records.DB = db
		if _, err := f.Register(t.Context(), alice, request); err == nil {
			t.Error("registered without a record")
		}
		used(t, f, 1)
		db.err = fault.New(fault.Unavailable, "no answer")
		if _, err := f.Register(t.Context(), alice, request); err == nil {
			t.Error("registered without a record")
		}
		used(t, f, 2)
	})
}
