package subscription

import (
	"context"
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

// eventful publishes an event while an endpoint is verified.
type eventful struct {
	*outside
	publish func()
}

func (e eventful) Verify(context.Context, string, string, []byte) error {
	e.publish()
	return nil
}

// The log writes the partitions of a template only from the subscription on. An event that is published while the endpoint
// is verified is no gap, even if nothing was published before.
func TestAnEventPublishedWhileAnEndpointIsVerifiedLeavesNoGapBehindTheCursorOfItsSubscription(t *testing.T) {
	f := newFixture(t, Options{})
	f.Registrar.Targets = eventful{f.outside, func() {
		const uri = "event://github/acme/app/push"
		if _, err := f.Service.Log.Append(t.Context(), "default", uri, []event.Event{*newEvent(uri)}, nil); err != nil {
			t.Fatal(err)
		}
	}}
	request := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"acme"}`)}
	request.Cursor = f.subscribe(request).Cursor
	request.URL = "https://moved.example.com/hook"
	if moved := f.subscribe(request); moved.Truncated {
		t.Error("EVX-11: a client that moves to another endpoint with its first cursor is told of a gap, want none")
	}
}
