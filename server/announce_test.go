package server

import (
	"context"
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
)

// counted is a store that counts what is written, or tried to be.
type counted struct {
	store.DB
	writes int
}

func (c *counted) Write(ctx context.Context, ops ...store.Op) error {
	c.writes++
	return c.DB.Write(ctx, ops...)
}

// Of ever other workspaces those in use are remembered, and the others are not; each of them is told of a change all the same, once, also
// by a process that began after it followed.
func TestWorkspacesOutOfUseAreForgotten(t *testing.T) {
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	parse := func(name string) *catalog.Catalog {
		c, err := catalog.Parse([]byte("events:\n  - {name: " + name + ", uri: 'event://a/b'}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	types, counts := catalog.NewStatic(parse("a.b")), &counted{DB: db}
	told := map[string]int{}
	begin := func() *announcer {
		a, err := newAnnouncer(t.Context(), counts, &eventlog.Log{DB: db}, types, config.NewReplaceable(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range a.kinds {
			k.tell = func(_ context.Context, _ *eventlog.Log, workspace, _ string) error {
				told[k.partition+" "+workspace]++
				return nil
			}
		}
		return a
	}
	a := begin()
	follow := func(from, to int) (writes int) {
		before := counts.writes
		for i := from; i < to; i++ {
			if err := a.follow(t.Context(), fmt.Sprint("w", i)); err != nil {
				t.Fatal(err)
			}
		}
		return counts.writes - before
	}
	const n = maxKept + maxKept/2
	if got := follow(0, n); got != 2*n {
		t.Errorf("%d writes for %d workspaces", got, n)
	}
	if got := follow(n-maxKept/4, n); got != 0 {
		t.Errorf("the last workspaces were forgotten: %d writes", got)
	}
	if got := follow(0, maxKept/4); got != maxKept/2 {
		t.Errorf("the first workspaces were not forgotten: %d writes", got)
	}
	types.Replace(parse("a.c"))
	for range 2 {
		if err := a.Changed(t.Context()); err != nil {
			t.Fatal(err)
		}
		a = begin()
	}
	if len(told) != n {
		t.Errorf("%d workspaces were told, want %d", len(told), n)
	}
	for what, times := range told {
		if times != 1 {
			t.Errorf("%s was told %d times", what, times)
		}
	}
}
