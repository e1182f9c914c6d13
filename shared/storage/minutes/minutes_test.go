package minutes_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/minutes"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

var key = store.Key{Table: store.Deliveries, Partition: "position", Sort: "-"}

type walk struct {
	*testing.T
	db  store.DB
	now time.Time
}

func newWalk(t *testing.T) *walk {
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return &walk{t, db, time.Date(2026, 11, 22, 12, 0, 30, 0, time.UTC)}
}

// visit walks, and returns the visited minutes in their order, as distances from now.
func (w *walk) visit(fails ...int) (visited []int, ahead time.Duration, err error) {
	w.Helper()
	m := minutes.Position{DB: w.db, Key: key, CatchUp: 7 * 24 * time.Hour, Ahead: func(_ context.Context, was time.Time) error {
		ahead = was.Sub(w.now)
		return nil
	}}
	err = m.Walk(w.Context(), w.now, func(_ context.Context, minute time.Time) error {
		n := int(minute.Sub(w.now.Truncate(time.Minute)) / time.Minute)
		visited = append(visited, n)
		if slices.Contains(fails, n) {
			return errors.New("this minute fails")
		}
		return nil
	})
	return visited, ahead, err
}

func through(from, to int) (visited []int) {
	for n := from; n <= to; n++ {
		visited = append(visited, n)
	}
	return visited
}

func TestMinutes(t *testing.T) {
	w := newWalk(t)
	step := func(name string, later time.Duration, want []int, fails ...int) {
		t.Helper()
		w.now = w.now.Add(later)
		got, _, err := w.visit(fails...)
		if !slices.Equal(got, want) || (err != nil) != (len(fails) > 0) {
			t.Errorf("%s: visited %v, %v; want %v", name, got, err, want)
		}
	}
	step("the first time", 0, slices.Concat(through(-5, 0), through(-65, -6)))
	step("a minute later", time.Minute, slices.Concat(through(-5, 0), through(-6, -6)))
	step("after an hour: what is due now goes first", time.Hour, slices.Concat(through(-5, 0), through(-65, -6)))
	step("a minute fails", 10*time.Minute, slices.Concat(through(-5, 0), through(-15, -6)), -12)
	step("it is visited again", time.Minute, slices.Concat(through(-5, 0), through(-16, -6)))
	step("and then no more", time.Minute, slices.Concat(through(-5, 0), through(-6, -6)))
	step("all fail: the store is down", time.Minute, through(-5, -1), through(-5, 0)...)
	w.now = w.now.Add(10 * 24 * time.Hour)
	if got, _, err := w.visit(); err != nil || len(got) != 7*24*60+1 {
		t.Errorf("after ten days %d minutes were visited, %v; want the minutes of the last seven days", len(got), err)
	}
	w.now = w.now.Add(-24 * time.Hour)
	if got, ahead, err := w.visit(); err != nil || !slices.Equal(got, through(-5, 0)) || ahead < 23*time.Hour {
		t.Errorf("the clock was set back: visited %v, told %v, %v", got, ahead, err)
	}
	w.now = w.now.Add(time.Minute)
	if got, ahead, err := w.visit(); err != nil || ahead != 0 || len(got) != 7 {
		t.Errorf("a minute later: visited %v, told %v, %v", got, ahead, err)
	}
}

func TestAWalkThatIsCutOffContinues(t *testing.T) {
	w := newWalk(t)
	_, _, err := w.visit()
	expect.OK(t, err)
	w.now = w.now.Add(24 * time.Hour)
	m := minutes.Position{DB: w.db, Key: key, CatchUp: 7 * 24 * time.Hour}
	visits, rounds := 0, 0
	for done := false; !done && rounds < 100; rounds++ {
		ctx, cancel := context.WithCancel(t.Context())
		left := 100
		err := m.Walk(ctx, w.now, func(context.Context, time.Time) error {
			visits++
			if left--; left == 0 {
				cancel()
			}
			return nil
		})
		cancel()
		if done = err == nil; !done && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	expect.AtMost(t, "the rounds", rounds, 20)
	expect.AtLeast(t, "the visits", visits, 24*60)
}

func TestTwoConcurrentWalks(t *testing.T) {
	w := newWalk(t)
	_, _, err := w.visit()
	expect.OK(t, err)
	w.now = w.now.Add(time.Hour)
	visits := 0
	err = (minutes.Position{DB: w.db, Key: key, CatchUp: time.Hour}).Walk(t.Context(), w.now, func(context.Context, time.Time) error {
		if visits++; visits == 1 {
			_, _, err := w.visit()
			expect.OK(t, err)
		}
		return nil
	})
	expect.OK(t, err)
	expect.AtMost(t, "the visits", visits, 16)
	down := minutes.Position{DB: broken{w.db}, Key: key, CatchUp: time.Hour}
	expect.Fault(t, "the walk", down.Walk(t.Context(), w.now, func(context.Context, time.Time) error { return nil }), fault.Unavailable, "position")
}

// broken reads nothing.
type broken struct{ store.DB }

func (broken) Get(context.Context, ...store.Key) ([]*store.Item, error) {
	return nil, errors.New("down")
}

func TestAWalkThatFoundNothingWritesItsPositionOnceInAWhile(t *testing.T) {
	w := newWalk(t)
	m := minutes.Position{DB: w.db, Key: key, CatchUp: 7 * 24 * time.Hour, SaveEvery: time.Hour}
	writes, had := 0, int64(0)
	visited := map[time.Time]bool{}
	began := w.now
	for range 150 {
		err := m.Walk(t.Context(), w.now, func(_ context.Context, minute time.Time) error {
			visited[minute] = true
			return nil
		})
		expect.OK(t, err)
		items := expect.Value(w.db.Get(t.Context(), key))(t)
		if items[0] != nil && items[0].Version != had {
			had = items[0].Version
			writes++
		}
		w.now = w.now.Add(time.Minute)
	}
	expect.Equal(t, "writes in two and a half hours", writes, 3)
	for minute := began.Truncate(time.Minute); minute.Before(w.now.Truncate(time.Minute)); minute = minute.Add(time.Minute) {
		expect.True(t, "a minute was visited, "+minute.String(), visited[minute])
	}
}
