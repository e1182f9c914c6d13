package subscription

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// TestTheSumOfAWorkspaceIsCorrected: OPS-15, after processes that died between counting and writing a subscription.
func TestTheSumOfAWorkspaceIsCorrected(t *testing.T) {
	request := RegisterRequest{URIs: []string{build}, Target: "https://a.example/"}
	const limit = 5
	start := func(t *testing.T) *fixture {
		f := newFixture(t, Options{})
		f.Records.SumOf = func(context.Context, string) int64 { return limit }
		f.register(alice, request)
		f.register(auth.Principal{ID: "bob", Workspace: "default", Scopes: auth.Scopes()}, request)
		return f
	}
	// drift changes the sum as such a process leaves it.
	drift := func(t *testing.T, f *fixture, by int64) {
		t.Helper()
		if err := f.db.Write(t.Context(), store.Add(sumKey("default"), map[string]int64{quotaCount: by}, nil)); err != nil {
			t.Fatal(err)
		}
	}
	recount := func(t *testing.T, f *fixture, rounds int) (corrected int) {
		t.Helper()
		for range rounds {
			f.clock = f.clock.Add(time.Minute)
			n, err := f.Recount(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			corrected += n
		}
		return corrected
	}
	used := func(t *testing.T, f *fixture, want int64) {
		t.Helper()
		it, err := store.One(t.Context(), f.db, sumKey("default"), "read the sum")
		if err != nil || it == nil || it.Counts[quotaCount] != want {
			t.Errorf("the sum is %+v, %v, want %d", it, err, want)
		}
	}
	t.Run("OPS-15 a workspace that is locked out is let in again", func(t *testing.T) {
		f := start(t)
		if n := recount(t, f, 2); n != 0 { // today's recount was before
			t.Errorf("corrected %d right sums", n)
		}
		drift(t, f, limit-2)
		if _, err := f.Register(t.Context(), alice, request); fault.LimitOf(err) != "workspaceSubscriptions" {
			t.Fatalf("got %v, want a workspace that is locked out", err)
		}
		if n := recount(t, f, 12); n != 1 {
			t.Errorf("corrected %d sums, want 1", n)
		}
		f.register(alice, request)
		used(t, f, 3)
	})
	for _, by := range []int64{-2, -1, 1, 2} {
		f := start(t)
		drift(t, f, by)
		recount(t, f, 2)
		used(t, f, 2)
	}
	t.Run("OPS-15 a registration that is under way during one recount changes nothing", func(t *testing.T) {
		f := start(t)
		drift(t, f, 1)
		recount(t, f, 1)
		drift(t, f, -1)
		if n := recount(t, f, 3); n != 0 {
			t.Errorf("corrected %d sums, want none", n)
		}
		used(t, f, 2)
	})
}

// TestShapeCountersBelowZero: earlier releases counted subscriptions down that they had not counted up.
func TestShapeCountersBelowZero(t *testing.T) {
	f := newFixture(t, Options{})
	const pattern = "event://github/acme/app/push"
	request := RegisterRequest{URIs: []string{pattern}, Target: "https://a.example/"}
	sub := f.register(alice, request).Subscription
	shapes, shape := ShapesKey("default", sub.Patterns[0].Shape.Scope), sub.Patterns[0].Shape
	if err := f.db.Write(t.Context(), store.Add(shapes, map[string]int64{"w_" + shape.Name: -2}, nil)); err != nil {
		t.Fatal(err)
	}
	f.register(alice, request)
	it, err := store.One(t.Context(), f.db, shapes, "read the shapes")
	if err != nil {
		t.Fatal(err)
	}
	if webhooks, _ := InUse(it, shape.Scope, f.clock); !slices.Contains(webhooks, shape) {
		t.Errorf("EVS-08 the shapes in use are %v, want %v among them", webhooks, shape)
	}
}
