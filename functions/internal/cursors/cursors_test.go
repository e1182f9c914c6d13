package cursors

import (
	"sync"
	"testing"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTheKeyIsMadeOnceAndSharedByAll(t *testing.T) {
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	expect.OK(t, err)
	defer db.Close()
	if _, err := Sealer(t.Context(), db); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got error %v before there is a key", err)
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := Create(t.Context(), db); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	one, err := Sealer(t.Context(), db)
	expect.OK(t, err)
	expect.OK(t, Create(t.Context(), db))
	two, err := Sealer(t.Context(), db)
	expect.OK(t, err)
	if got, err := two.Open("w", one.Seal("w", eventlog.Cursor{At: 42})); err != nil || got.At != 42 {
		t.Errorf("got %+v, %v", got, err)
	}
}
