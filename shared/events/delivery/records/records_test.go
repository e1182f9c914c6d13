package records

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/storage/store"
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
		t.Errorf("got %v, %d omitted, want %d in r, %d in re, ro and ra, and 5 omitted", lists, omitted, many+1, burst*successRate+1)
	}
}

// OPS-19: a filter that leaves out most records does not make List read all records for one page, because each read costs money on AWS.
func TestAFilterThatLeavesOutMostRecords(t *testing.T) {
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1}))(t)
	defer db.Close()
	var ops []store.Op
	for i := range 2*MaxRead + 1 {
		r := Record{Event: "accepted"}
		if i == 0 { // the oldest record
			r.Category = "timeout"
		}
		ops = append(ops, store.Put(store.Item{Key: store.Key{Table: store.Deliveries, Partition: OfAll("w"), Sort: fmt.Sprintf("%016d#", i+1)}, Value: r.encode()}))
	}
	expect.OK(t, db.WriteAll(t.Context(), ops...))
	next := ""
	for page := range 3 {
		var list []Record
		var err error
		list, next, err = List(t.Context(), db, "w", Query{Outcome: Failed}, next, 1)
		expect.OK(t, err)
		expect.Equal(t, fmt.Sprintf("OPS-19 the records on page %d", page+1), len(list), page/2)
	}
	expect.Equal(t, "OPS-19 the position after the last page", next, "")
}

// A member that Record.encode forgets would be lost without an error, so every field is filled by reflection.
func TestRecordsAreEncodedAsTheirTagsSay(t *testing.T) {
	var full Record
	fillFields(t, reflect.ValueOf(&full).Elem())
	for name, r := range map[string]Record{
		"empty": {},
		"full":  full,
		"special characters and a local time": {
			Event: "\u2028\"\\\n\x01<&>", Result: state.Result{At: time.Date(2026, 11, 29, 1, 2, 3, 456_000, time.FixedZone("", 3600))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got, want map[string]any
			expect.OK(t, json.Unmarshal(r.encode(), &got))
			expect.OK(t, json.Unmarshal(expect.Value(json.Marshal(r))(t), &want))
			expect.Deep(t, "the record", got, want)
		})
	}
}

func fillFields(t *testing.T, to reflect.Value) {
	t.Helper()
	for field, value := range to.Fields() {
		switch {
		case field.Type == reflect.TypeFor[time.Time]():
			value.Set(reflect.ValueOf(time.Unix(1_800_000_000, 123_456_789).UTC()))
		case value.Kind() == reflect.Struct:
			fillFields(t, value)
		case value.Kind() == reflect.String:
			value.SetString(field.Name)
		case value.CanInt():
			value.SetInt(-42)
		case value.Kind() == reflect.Bool:
			value.SetBool(true)
		default:
			t.Fatalf("field %s has a type that this test cannot fill: %v", field.Name, field.Type)
		}
	}
}
