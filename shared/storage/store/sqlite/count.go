package sqlite

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Count is how many items of a table are in partitions from one name to before another. It reads the
// index only; a store elsewhere could not, so it is not of [store.DB].
func (db *DB) Count(ctx context.Context, table store.Table, from, before string) (n int64, err error) {
	err = db.engine.Read(ctx, func(c *engine.Conn) error {
		s, err := c.Stmt(tables[table].count)
		if err != nil {
			return err
		}
		defer s.Reset()
		if _, err := s.Text(1, from).Text(2, before).Step(); err != nil {
			return err
		}
		n = s.ColumnInt(0)
		return nil
	})
	return n, fault.Wrap(engine.Kind(err), err, "count items of %s", table)
}
