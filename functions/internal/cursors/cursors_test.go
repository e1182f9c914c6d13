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
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	defer db.Close()
	expect.Fault(t, "the call before there is a key", expect.ErrOf(Sealer(t.Context(), db)), fault.Unavailable)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := Create(t.Context(), db); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	one := expect.Value(Sealer(t.Context(), db))(t)
	expect.OK(t, Create(t.Context(), db))
	two := expect.Value(Sealer(t.Context(), db))(t)
	expect.Equal(t, "the position of the cursor", expect.Value(two.Open("w", one.Seal("w", eventlog.Cursor{At: 42})))(t).At, 42)
}
