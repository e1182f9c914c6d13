package sqlite

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Count returns the number of items of a table whose partitions are at least from and less than before. It reads only the
// index. DynamoDB could not do that, so it is not part of [store.DB].
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

// Contains reports whether the value of any item contains the text. That includes expired items that are not removed yet. It
// reads the whole file, so it is for commands that run while no server runs.
func (db *DB) Contains(ctx context.Context, text []byte) (found bool, err error) {
	err = db.engine.Snapshot(ctx, func(c *engine.Conn) error {
		for _, table := range store.Tables() {
			s, err := c.Stmt("SELECT 1 FROM " + string(table) + " WHERE instr(val, ?) LIMIT 1")
			if err != nil {
				return err
			}
			row, err := s.Blob(1, text).Step()
			s.Reset()
			if err != nil {
				return err
			}
			if found = row; found {
				return nil
			}
		}
		return nil
	})
	return found, fault.Wrap(engine.Kind(err), err, "search the database")
}
