package settings_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	. "github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// frozenStore fails one read after it is thawed, and the following reads with the error later.
type frozenStore struct {
	*settingstest.Store
	freezes bool // the next read
	thawed  chan struct{}
	later   error
}

func (s *frozenStore) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	if s.freezes {
		s.freezes = false
		<-s.thawed
		return nil, fault.New(fault.Unavailable, "the connection was closed")
	}
	if s.later != nil {
		return nil, s.later
	}
	return s.Store.Get(ctx, keys...)
}

// TestAProcessThatWasFrozenDuringARead shows what happens when Lambda freezes a process while a read is under way and thaws it an
// hour later, when the store has closed the connection.
func TestAProcessThatWasFrozenDuringARead(t *testing.T) {
	for _, tc := range []struct {
		name  string
		later error
		want  string
	}{
		{"serves the document as it is now if the store answers again", nil, "new"},
		{"serves no document of an hour ago if the store does not answer", fault.New(fault.Unavailable, "no answer"), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &frozenStore{Store: settingstest.New(), thawed: make(chan struct{})}
				var frozen time.Duration
				now := func() time.Time { return time.Now().Add(frozen) }
				c := NewCache(db, "", func(src []byte) (string, error) { return string(src), nil }, now, slog.New(slog.DiscardHandler))
				write(t, db, "old")
				if got, _, err := c.Get(t.Context(), "d"); got != "old" || err != nil {
					t.Fatalf("got %q, %v", got, err)
				}
				write(t, db, "new")
				time.Sleep(RecheckAfter)
				db.freezes, db.later = true, tc.later
				var got string
				var err error
				before, cancel := context.WithCancel(t.Context())
				go func() { _, _, _ = c.Get(before, "d") }()
				synctest.Wait()
				cancel() // the invocation that began the read is over
				frozen = time.Hour
				go func() { got, _, err = c.Get(t.Context(), "d") }()
				synctest.Wait()
				close(db.thawed)
				synctest.Wait()
				if got != tc.want || (err != nil) != (tc.want == "") {
					t.Errorf("got %q, %v; want %q", got, err, tc.want)
				}
			})
		})
	}
}
