package admin

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
)

func init() { recheckEvery = 0 } // so that no test waits for it

func TestEveryOperationHasAHandler(t *testing.T) {
	serve := handlers(Options{})
	for _, o := range operations.All {
		if serve[o.ID] == nil {
			t.Errorf("%s has no handler, want one", o.ID)
		}
		delete(serve, o.ID)
	}
	for id := range serve {
		t.Errorf("the handler %s serves no operation of the table", id)
	}
}
