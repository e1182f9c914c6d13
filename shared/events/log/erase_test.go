package eventlog_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/test/expect"
)

// OPS-07: if two erasures change the same segment concurrently, no erasure restores the events that the other one has erased.
func TestConcurrentErasuresOfOneSegment(t *testing.T) {
	_, stamped := logOf(t)
	for name, log := range map[string]*eventlog.Log{"the store makes the keys": {DB: memory(t)}, "writers make the keys": stamped} {
		t.Run(name, func(t *testing.T) {
			var events []event.Event
			for i, who := range []string{"alice", "bob", "carol"} {
				events = append(events, event.Event{Workspace: "default", ID: fmt.Sprintf("e%d", i), URI: uri, Data: fmt.Appendf(nil, "%q", who)})
			}
			expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, events, nil)))
			erase := func(who string, visit func([]event.Event) error) error {
				by := func(e *event.Event) bool { return bytes.Contains(e.Data, []byte(who)) }
				return log.Erase(t.Context(), eventlog.OwnPartition("default", uri), false, by, visit)
			}
			visits := 0
			expect.OK(t, erase("alice", func([]event.Event) error {
				visits++
				return erase("bob", func([]event.Event) error { return nil })
			}))
			expect.Equal(t, "the visits", visits, 1)
			var left []string
			entries, _, _, err := log.Read(t.Context(), eventlog.OwnPartition("default", uri), 0, 10)
			expect.OK(t, err)
			for _, e := range entries {
				if e.Event != nil {
					left = append(left, e.Event.ID)
				}
			}
			expect.List(t, "the events that are left", left, []string{"e2"})
			expect.Equal(t, "the entries", len(entries), 3)
		})
	}
}
