package task

import (
	"reflect"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

// A handler in the process of the sender gets the page itself. It must be the page that another process decodes.
func TestAPageIsTheSameWithAndWithoutItsValue(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)
	page := Page{
		V: Version, Workspace: "default", Pattern: "event://ci/**", Range: subscription.At("00000000000000000000000000000001"), Count: 3, Hops: 2, Since: 7, Paused: "key",
		Retries: 1, Endpoint: "endpoint", Delay: time.Second,
		Events: []event.Event{
			{Workspace: "default", ID: "a", URI: "event://ci/a", Name: "ci.a", Time: at, Published: at, Data: []byte(`{"n":1}`)},
			{Workspace: "default", ID: "b", URI: "event://ci/a", Name: "ci.a", Time: at, Published: at, Data: []byte(`null`), Gap: true},
		},
	}
	out := page.Outgoing()
	direct := expect.Value(DecodePage(queue.Message{Outgoing: out}))(t)
	out.Value = nil
	decoded := expect.Value(DecodePage(queue.Message{Outgoing: out}))(t)
	if !reflect.DeepEqual(direct, decoded) {
		t.Errorf("got %+v with the value, want %+v as without", direct, decoded)
	}
}
