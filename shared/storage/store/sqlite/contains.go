package sqlite

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Contains reports whether the value of an item of any table contains the text, also of an item that has expired and is not
// removed yet. It reads the whole file, so it is for commands that run while no server does.
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
