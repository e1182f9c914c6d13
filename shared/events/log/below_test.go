package eventlog_test

import (
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
)

// A parent with more than a page of sub-resources has the sub-resources of all pages.
func TestAParentOfManySubResources(t *testing.T) {
	db := memory(t)
	log := &eventlog.Log{DB: db}
	const n = 2500
	child := func(i int) string { return fmt.Sprintf("event://many/%04d", i) }
	for i := range n {
		if err := log.RecordChild(t.Context(), "default", child(i)); err != nil {
			t.Fatal(err)
		}
	}
	last := child(n - 1)
	if _, err := log.Append(t.Context(), "default", last, []event.Event{{Workspace: "default", ID: "e", URI: last, Data: []byte(`{}`)}}, nil); err != nil {
		t.Fatal(err)
	}
	latest, err := log.LatestBelow(t.Context(), "default", "event://many", 5, func(uri string) (bool, bool) { return uri >= child(n-40), false })
	if err != nil || len(latest) != 1 || latest[0].ID != "e" {
		t.Errorf("latest: %v, %v", latest, err)
	}
	for _, want := range []int{10, 1000, 1001, n} {
		uris, err := log.Below(t.Context(), "default", "event://many", want)
		if err != nil || len(uris) != want {
			t.Errorf("%d sub-resources, %v, want %d", len(uris), err, want)
		}
	}
}
