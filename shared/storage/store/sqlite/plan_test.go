package sqlite

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// TestPlans: OPS-03 and OPS-04. Each list of the admin API is a query of one partition, so each is as fast as its index.
func TestPlans(t *testing.T) {
	db, err := Open(Memory, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, table := range store.Tables() {
		for name, sql := range map[string]string{
			"get": tables[table].get, "asc": tables[table].asc, "desc": tables[table].desc, "delete": tables[table].delete, "sweep": tables[table].sweep,
		} {
			t.Run("OPS-03 OPS-04 an index answers "+name+" of "+string(table), func(t *testing.T) {
				err := db.engine.Read(t.Context(), func(c *engine.Conn) error {
					s, err := c.Stmt("EXPLAIN QUERY PLAN " + sql)
					if err != nil {
						return err
					}
					defer s.Reset()
					steps := 0
					for row, err := s.Step(); row || err != nil; row, err = s.Step() {
						if err != nil {
							return err
						}
						steps++
						if step := s.ColumnText(3); strings.HasPrefix(step, "SCAN") || strings.Contains(step, "TEMP B-TREE") {
							t.Errorf("%s: %s", sql, step)
						}
					}
					if steps == 0 {
						t.Error("there is no plan")
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
