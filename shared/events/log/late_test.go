package eventlog_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// unordered is a store that does not stamp: like DynamoDB.
type unordered struct{ store.DB }

func (unordered) Stamps() bool { return false }
func (unordered) Local() bool  { return false }

// A writer may die over an append that took longer than the bound. Its batch
// comes again, and must get a key that readers have not passed.
func TestABatchThatComesAgainLateGetsANewKey(t *testing.T) {
	now := time.Now()
	log := &eventlog.Log{DB: unordered{memory(t)}, Now: func() time.Time { return now }}
	const uri = "event://ci/build-finished"
	events := []event.Event{{Workspace: "default", ID: "evt_1", URI: uri, Data: []byte(`{}`)}}
	write := func() {
		if _, err := log.Append(t.Context(), "default", uri, events, nil); err != nil {
			t.Fatal(err)
		}
	}
	read := func(after int64) []eventlog.Entry {
		entries, _, _, err := log.Read(t.Context(), eventlog.Own("default", uri), after, 100)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	write()
	write()
	if n := len(read(0)); n != 1 {
		t.Fatalf("SUB-08: a batch that came again at once is there %d times", n)
	}
	now = now.Add(eventlog.Window + time.Second)
	passed := now.Add(-eventlog.Window).UnixMicro() // by a reader that saw nothing
	write()
	if n := len(read(passed)); n != 1 {
		t.Errorf("SUB-08: a reader that passed the first key finds %d events, want the one", n)
	}
	latest, err := log.Latest(t.Context(), "default", uri, false, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(latest) != 1 {
		t.Errorf("EVS-04: %d latest events, want the one", len(latest))
	}
}

// Several writers may stamp the same microsecond. A page that ends between two
// such events must not make the next one begin behind both.
func TestAPageEndsAfterAWholeStamp(t *testing.T) {
	now := time.Now()
	log := &eventlog.Log{DB: unordered{memory(t)}, Now: func() time.Time { return now }}
	const many = 250
	for i := range many {
		e := event.Event{Workspace: "default", ID: fmt.Sprint(i), URI: "event://ci/x", Data: []byte(`{}`)}
		if err := log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{e}, []string{"event://ci/**"}, false); err != nil {
			t.Fatal(err)
		}
		if i == many/2 {
			now = now.Add(time.Microsecond)
		}
	}
	got := slices.Compact(read(t, log, eventlog.Pattern("default", "event://ci/**"))) // by pages of three
	if len(got) != many {
		t.Errorf("SUB-08 EVX-07: %d of %d events were read", len(got), many)
	}
}
