package task

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

// A handler in the process of the sender gets the page itself. It must be the page that another process decodes.
func TestAPageIsTheSameWithAndWithoutItsValue(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)
	page := Page{
		V: Version, Workspace: "default", Pattern: "event://ci/**", Range: subscription.RangeOf("00000000000000000000000000000001"), Count: 3, Hops: 2, Since: 7, Paused: "key",
		Retries: 1, Late: true, Endpoint: "endpoint", Delay: time.Second,
		Events: []event.Event{
			{Workspace: "default", ID: "a", URI: "event://ci/a", Name: "ci.a", Time: at, Published: at, Data: []byte(`{"n":1}`)},
			{Workspace: "default", ID: "b", URI: "event://ci/a", Name: "ci.a", Time: at, Published: at, Data: []byte(`null`), Gap: true},
		},
	}
	out := page.Outgoing()
	direct := expect.Value(DecodePage(queue.Message{Outgoing: out}))(t)
	out.Value = nil
	decoded := expect.Value(DecodePage(queue.Message{Outgoing: out}))(t)
	expect.Deep(t, "the page with the value", direct, decoded)
}

func TestTasksFitIntoMessages(t *testing.T) {
	const many, uri = 100, "event://ci/x"
	var events []event.Event
	for i := range many {
		events = append(events, event.Event{
			Workspace: "production", ID: fmt.Sprintf("%0128d", i), URI: uri, Name: strings.Repeat("n", 128),
			Data:  []byte(`"` + strings.Repeat("d", 1200) + `"`),
			Trace: trace.Context{Parent: strings.Repeat("0", 55), State: "a=" + strings.Repeat(`"`, 250) + ",b=" + strings.Repeat(`"`, 250)},
		})
	}
	found := 0
	for _, p := range Pages("production", uri, subscription.Range{}, 1, events) {
		found += len(p.Events)
		expect.AtMost(t, fmt.Sprintf("the bytes of a task of %d events", len(p.Events)), len(p.Encode()), queue.MaxBody)
	}
	expect.Equal(t, "events in the tasks", found, many)
}
