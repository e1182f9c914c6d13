package eventlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// stampless is a store whose writers stamp, like DynamoDB, so that the test chooses the time.
type stampless struct{ store.DB }

func (stampless) Stamps() bool { return false }
func (stampless) Local() bool  { return false }

func TestSubResourcesThatPublishAllDayAreNotAllRecordedAtMidnight(t *testing.T) {
	const children = 1000
	midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	var now time.Time
	log := &eventlog.Log{DB: stampless{memory(t)}, Retention: 24 * time.Hour, Now: func() time.Time { return now }}
	recorded := map[string]int{}
	// publish appends an event of each sub-resource and returns how many of them fanout would record.
	publish := func(at time.Time) (n int) {
		now = at
		for i := range children {
			uri := fmt.Sprintf("event://many/%04d", i)
			e := event.Event{Workspace: "default", ID: fmt.Sprint(uri, at.Unix()), URI: uri, Data: []byte(`{}`), Published: at}
			done, err := log.Append(t.Context(), "default", uri, []event.Event{e}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if done.First {
				n++
				recorded[uri]++
			}
		}
		return n
	}
	if got := publish(midnight.Add(-30 * time.Second)); got != children {
		t.Errorf("%d sub-resources are recorded with their first event, want %d", got, children)
	}
	if got := publish(midnight.Add(30 * time.Second)); got > children/100 {
		t.Errorf("%d of %d sub-resources are recorded in the minute around midnight, want at most %d", got, children, children/100)
	}
	for hour := 3; hour < 24; hour += 3 {
		if got := publish(midnight.Add(time.Duration(hour) * time.Hour)); got > children/4 {
			t.Errorf("%d of %d sub-resources are recorded within three hours, want about %d", got, children, children/8)
		}
	}
	publish(midnight.Add(24*time.Hour - 30*time.Second))
	for uri, n := range recorded {
		if n != 2 {
			t.Errorf("%s is recorded %d times, want once with its first event and once within the day after", uri, n)
		}
	}
}
