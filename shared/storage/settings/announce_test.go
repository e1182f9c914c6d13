package settings_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	. "github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

// EVS-14, GWN-01: a change of a document is announced when every function uses the document, once for each workspace. A
// change that could not be announced stays.
func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		version := int64(0)
		write := func(text string, ops func(version int64) []store.Op) {
			old := Stored{Name: "d", Version: version}
			version++
			if err := Write(context.Background(), db, Edit{Old: old, Text: []byte(text), Also: ops(version)}); err != nil {
				t.Error(err)
			}
		}
		// The second one replaces the first one's change of that catalog, and no change of backends.
		write("one", func(v int64) []store.Op {
			return slices.Concat(Unannounced(Catalog, "a", []string{"a"}, v), UnannouncedOf(Backends, []string{"a", "b"}, v))
		})
		write("two", func(v int64) []store.Op {
			return slices.Concat(
				Unannounced(Catalog, "a", []string{"a"}, v), UnannouncedOf(Backends, []string{"c"}, v), UnannouncedOf(Backends, nil, v),
			)
		})
		began := time.Now()
		// A version that is stored while the announcer waits is announced by its next round, in place of the one before.
		time.AfterFunc(MaxAge/2, func() {
			write("three", func(v int64) []store.Op { return Unannounced(Catalog, "a", []string{"a"}, v) })
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
		for _, round := range []struct {
			took  time.Duration
			fails bool
			want  []string
		}{
			{MaxAge, true, []string{"backends a 1", "backends c 2"}}, // AWS-16: those behind the failed one had their turn
			{2 * MaxAge, false, []string{"backends a 1", "backends b 1", "catalog a 3"}},
			{2 * MaxAge, false, nil},
		} {
			err := Announce(t.Context(), db, MaxAge, announce)
			slices.Sort(announced)
			if took := time.Since(began); took != round.took || (err != nil) != round.fails || !slices.Equal(announced, round.want) {
				t.Errorf("after %s: announced %q, %v; want %q after %s", took, announced, err, round.want, round.took)
			}
			announced = announced[:0]
		}
	})
}
