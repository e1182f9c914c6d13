package delivery

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// A page decodes the payload of an event once, however many of its subscribers filter.
func TestAPageDecodesAPayloadOnce(t *testing.T) {
	const all = 20
	// allocated returns the memory that a page of n subscribers allocates for a payload of many members.
	allocated := func(n int) uint64 {
		r := newRig(t)
		for i := range n {
			r.subscribe(func(s *subscription.SubscribeRequest) {
				s.Name, s.Arguments = "github.push", json.RawMessage(`{"owner":"acme","repo":"app","branch":["x","main*"]}`)
				s.URL = fmt.Sprintf("https://hooks.example.com/%d", i)
			})
		}
		const uri = "event://github/acme/app/push"
		e := event.Event{
			Workspace: "default", ID: "evt_1", URI: uri, Name: "github.push", Time: r.now, Published: r.now,
			Data: []byte(`{"branch":"other","commits":[` + strings.TrimSuffix(strings.Repeat(`{"id":"0123456789"},`, 9000), ",") + `]}`),
		}
		body := task.Encode(task.Page{V: task.Version, Workspace: "default", Pattern: uri, Count: n, Events: []event.Event{e}})
		_, d, _ := r.process()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		failed, err := d.Pages(t.Context(), []queue.Message{message("1", string(body))})
		runtime.ReadMemStats(&after)
		if err != nil || len(failed) > 0 || len(r.posts) > 0 {
			t.Fatalf("failed %v, %v, %d posts of what no filter lets through", failed, err, len(r.posts))
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	one := allocated(1)
	if many := allocated(all); many > 2*one {
		t.Errorf("a page of %d subscribers allocates %d bytes, one of a single subscriber %d", all, many, one)
	}
}
