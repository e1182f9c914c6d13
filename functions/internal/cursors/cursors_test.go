package cursors

import (
	"sync"
	"testing"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

func TestTheKeyIsMadeOnceAndSharedByAll(t *testing.T) {
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if err := Create(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	two, err := Sealer(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := two.Open("w", one.Seal("w", eventlog.Cursor{At: 42})); err != nil || got.At != 42 {
		t.Errorf("got %+v, %v", got, err)
	}
}
