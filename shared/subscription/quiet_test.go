package subscription

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
)

// The first cursor of a subscription is the end of the log. It is not old only because nothing was published for days.
func TestAfterDaysWithoutEventsTheCursorOfANewSubscriptionLeadsToNoGap(t *testing.T) {
	f := newFixture(t, Options{})
	const uri = "event://github/acme/app/push"
	if _, err := f.Service.Log.Append(t.Context(), "default", uri, []event.Event{*newEvent(uri)}, nil); err != nil {
		t.Fatal(err)
	}
	f.Service.Log.Now = func() time.Time { return time.Now().Add(48 * time.Hour) }
	made := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"acme","repo":"app"}`)})
	c, err := f.Registrar.Sealer.Open("default", made.Cursor)
	if err != nil {
		t.Fatal(err)
	}
	if _, truncated := f.Service.Log.Reach(c, c.At, f.Service.Log.Oldest()); truncated {
		t.Errorf("EVX-11: a reader with the new cursor %+v is told of a gap", c)
	}
}
