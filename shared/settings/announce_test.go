package settings_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	. "github.com/mcp-events/mcpevents/shared/settings"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
)

// EVS-14, GWN-01: what a document changes is announced when every function uses the document, once for each workspace; what
// could not be announced stays.
func TestAnnounce(t *testing.T) {
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	now := time.Now()
	write := func(text string, ops func(version int64, old []byte) []store.Op) {
		t.Helper()
		if _, _, err := Write(t.Context(), db, "d", []byte(text), ops); err != nil {
			t.Fatal(err)
		}
	}
	// The second one replaces what the first said of that catalog, and nothing of backends.
	write("one", func(v int64, _ []byte) []store.Op {
		return slices.Concat(
			Unannounced(Catalog, "a", []string{"a"}, v, now.Add(-time.Second)),
			UnannouncedOf(Backends, []string{"a", "b"}, v, now.Add(-time.Second)),
		)
	})
	write("two", func(v int64, old []byte) []store.Op {
		if string(old) != "one" {
			t.Errorf("the text before was %q", old)
		}
		return slices.Concat(
			Unannounced(Catalog, "a", []string{"a"}, v, now), UnannouncedOf(Backends, []string{"c"}, v, now), UnannouncedOf(Backends, nil, v, now),
		)
	})
	var announced []string
	down := true
	announce := func(_ context.Context, c Change) error {
		if c.Workspace == "b" && down {
			down = false
			return fault.New(fault.Unavailable, "down")
		}
		announced = append(announced, fmt.Sprint(c.Kind, " ", c.Workspace, " ", c.Version))
		return nil
	}
	for _, step := range []struct {
		at      time.Duration
		waiting int
		fails   bool
		want    []string
	}{
		{MaxAge - time.Second - time.Millisecond, 3, false, nil},
		{MaxAge - time.Millisecond, 2, true, []string{"backends a 1"}}, // AWS-16: those behind it had their turn
		{MaxAge - time.Millisecond, 2, false, []string{"backends a 1", "backends b 1"}},
		{MaxAge, 0, false, []string{"backends c 2", "catalog a 2"}},
		{MaxAge, 0, false, nil},
	} {
		waiting, err := Announce(t.Context(), db, now.Add(step.at-MaxAge), announce)
		if slices.Sort(announced); waiting != step.waiting || (err != nil) != step.fails || !slices.Equal(announced, step.want) {
			t.Errorf("after %s: %d wait, announced %q, %v; want %d, %q", step.at, waiting, announced, err, step.waiting, step.want)
		}
		announced = announced[:0]
	}
}
