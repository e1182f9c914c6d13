package sqlite

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

func TestContainsFindsATextInTheValuesOfEveryTable(t *testing.T) {
	for _, table := range store.Tables() {
		db := open(t, Memory, Options{})
		item := store.Item{Key: store.Key{Table: table, Partition: "AQpartition", Sort: "AQsort"}, Value: []byte(`{"sec":"AQvalue"}`)}
		if err := db.Write(t.Context(), store.Put(item)); err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{"AQval": true, "aqval": false, "AQpart": false, "AQsort": false} {
			if got, err := db.Contains(t.Context(), []byte(text)); err != nil || got != want {
				t.Errorf("%s: contains %q: %v, %v; want %v", table, text, got, err, want)
			}
		}
	}
}
