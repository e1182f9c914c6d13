package tools

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
)

func TestInbox(t *testing.T) {
	all := eventtools.Query{Limit: eventtools.MaxEvents}
	newInbox := func() *inbox {
		return &inbox{changed: make(chan struct{}), waiting: map[*string]struct{}{}}
	}
	event := func(i int) client.Event {
		return client.Event{ID: fmt.Sprint(i), Name: "ci.build", Data: json.RawMessage(`{}`)}
	}
	t.Run("RCH-04 a result is bounded by its size, and the rest stays unread", func(t *testing.T) {
		b := newInbox()
		for i := range 3 {
			e := event(i)
			e.Data = json.RawMessage(`"` + strings.Repeat("x", eventtools.MaxBytes*2/5) + `"`)
			b.add("s1", e)
		}
		first, rest := b.readUnread(all), b.readUnread(all)
		if len(first.Events) != 2 || !first.More || len(rest.Events) != 1 || rest.More || rest.Events[0].ID != "2" {
			t.Errorf("got %d events, more %v, then %d, more %v; want 2 and more, then event 2", len(first.Events), first.More, len(rest.Events), rest.More)
		}
	})
	t.Run("RCH-04 a gap is reported once", func(t *testing.T) {
		b := newInbox()
		b.addGap("s1", "ci.build")
		b.add("s1", event(1))
		if got := b.readUnread(all); !got.Gap || len(got.Events) != 1 || got.Events[0].ID != "1" {
			t.Errorf("got %+v, want a gap and event 1", got)
		}
		if got := b.readUnread(all); !got.Empty() {
			t.Errorf("second read: got %+v, want nothing", got)
		}
	})
	t.Run("RCH-04 dropped unread events are a gap", func(t *testing.T) {
		b := newInbox()
		for i := range maxKept + 1 {
			b.add("s1", event(i))
		}
		if got := b.readUnread(all); !got.Gap || !got.More || len(got.Events) != eventtools.MaxEvents || got.Events[0].ID != "1" {
			t.Errorf("got %d events, gap %v, more %v, want %d from event 1 on, a gap and more", len(got.Events), got.Gap, got.More, eventtools.MaxEvents)
		}
		if got := b.readUnread(all); got.Gap {
			t.Errorf("second read: got gap true, want false")
		}
	})
	t.Run("RCH-04 dropped read events are no gap", func(t *testing.T) {
		b := newInbox()
		b.add("s1", event(0))
		b.readUnread(all)
		for i := range maxKept {
			b.add("s1", event(i+1))
		}
		if got := b.readUnread(all); got.Gap || len(got.Events) == 0 {
			t.Errorf("got %d events, gap %v, want events without a gap", len(got.Events), got.Gap)
		}
	})
}
