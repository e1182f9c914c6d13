package subscription

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The first cursor of a subscription is the end of the log. It stays valid although the log was quiet for days.
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

// slowEndpoint is verified while something else happens.
type slowEndpoint struct {
	*outside
	meanwhile func()
}

func (e slowEndpoint) Verify(context.Context, string, string, []byte) error {
	e.meanwhile()
	return nil
}

// stampedByWriters is a store that does not order commits.
type stampedByWriters struct{ store.DB }

func (stampedByWriters) Stamps() bool { return false }
func (stampedByWriters) Local() bool  { return false }
func (stampedByWriters) End() int64   { return 0 }

// The log writes the partitions of a template only from the subscription on. The time in which the endpoint is verified is
// no gap, however long it is and whatever is published then.
func TestAfterAnEndpointWasVerifiedSlowlyTheCursorOfItsSubscriptionLeadsToNoGap(t *testing.T) {
	const uri = "event://github/acme/app/push"
	for name, use := range map[string]func(*fixture, *eventlog.Log){
		"EVX-11 an event on an ordered log": func(f *fixture, log *eventlog.Log) {
			f.Registrar.Targets = slowEndpoint{f.outside, func() {
				if _, err := log.Append(t.Context(), "default", uri, []event.Event{*newEvent(uri)}, nil); err != nil {
					t.Fatal(err)
				}
			}}
		},
		"EVX-11 ten seconds where writers stamp": func(f *fixture, log *eventlog.Log) {
			log.DB = stampedByWriters{log.DB}
			var late time.Duration
			log.Now = func() time.Time { return time.Now().Add(late) }
			f.Registrar.Targets = slowEndpoint{f.outside, func() { late += 10 * time.Second }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{})
			use(f, f.Service.Log)
			request := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"acme"}`)}
			request.Cursor = f.subscribe(request).Cursor
			request.URL = "https://moved.example.com/hook"
			if moved := f.subscribe(request); moved.Truncated {
				t.Error("a client that moves to another endpoint with its first cursor is told of a gap, want none")
			}
		})
	}
}
