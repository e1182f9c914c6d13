package records

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// OPS-03: in a file every failure is in every list, and of very many successes some are only in the subscription's
// own. The next record there says how many.
func TestManySuccessesAreInTheirOwnListOnly(t *testing.T) {
	const many = burst*successRate + 5
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1}))(t)
	defer db.Close()
	log := NewLog(db, All)
	now := time.Unix(1_800_000_000, 0)
	lists := map[string]int{}
	var omitted int64
	write := func(made state.Result) {
		made.At = now
		for _, op := range log.Add(nil, &state.Delivery{Workspace: "w", Subscription: "s", Event: "e", Target: "https://a.example/x", Attempts: []state.Result{made}}, made, "") {
			kind, _, _ := strings.Cut(op.Item.Partition, "#")
			lists[kind]++
			var r Record
			expect.OK(t, json.Unmarshal(op.Item.Value, &r))
			if kind == "re" {
				omitted += r.Omitted
			}
		}
	}
	for range many {
		write(state.Result{})
	}
	write(state.Result{Category: "timeout"})
	if lists["r"] != many+1 || lists["re"] != burst*successRate+1 || lists["ro"] != lists["re"] || lists["ra"] != lists["re"] || omitted != 5 {
		t.Errorf("got %v, %d omitted", lists, omitted)
	}
}
