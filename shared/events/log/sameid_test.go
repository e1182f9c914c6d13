package eventlog_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// payloads returns the payloads of the events of [uri] in the log, oldest first.
func payloads(t *testing.T, log *eventlog.Log) (out []string) {
	t.Helper()
	for more, after := true, int64(0); more; {
		var entries []eventlog.Entry
		var err error
		if entries, more, after, err = log.Read(t.Context(), eventlog.Own("default", uri), after, 100); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, string(e.Event.Data))
		}
	}
	return out
}

// An id that is published again after the deduplication period is another event: the log keeps both, also if they
// arrive in one batch, and it still writes each only once if the batch is repeated.
func TestTheLogKeepsAnEventWhoseIDIsPublishedAgain(t *testing.T) {
	first := time.UnixMicro(1_700_000_000_000_000)
	nightly := func(data string, at time.Time) event.Event {
		return event.Event{Workspace: "default", ID: "nightly", URI: uri, Data: []byte(data), Published: at}
	}
	one, two := nightly(`1`, first), nightly(`2`, first.Add(6*time.Minute))
	large := nightly(`"`+strings.Repeat("x", 360<<10)+`"`, first.Add(time.Minute)) // fills a segment
	large.ID = "large"
	for name, batches := range map[string][][]event.Event{
		"in two batches":                  {{one}, {two}, {two}},
		"in one batch":                    {{one, two}, {one, two}},
		"after a segment named the first": {{one, large}, {two}, {two}},
	} {
		t.Run(name, func(t *testing.T) {
			log := &eventlog.Log{DB: memory(t)}
			for _, batch := range batches {
				if _, err := log.Append(t.Context(), "default", uri, batch, nil); err != nil {
					t.Fatal(err)
				}
			}
			got := slices.DeleteFunc(payloads(t, log), func(s string) bool { return len(s) > 1 })
			if want := []string{"1", "2"}; !slices.Equal(got, want) {
				t.Errorf("the log holds the payloads %v, want %v", got, want)
			}
			latest, err := log.Latest(t.Context(), "default", uri, false, 10)
			if err != nil || len(latest) < 2 {
				t.Errorf("Latest returned %d events and %v, want both", len(latest), err)
			}
			e, _, err := log.ByID(t.Context(), "default", "nightly", uri)
			if err != nil || e == nil || string(e.Data) != "2" {
				t.Errorf("ByID returned %+v and %v, want the newer event", e, err)
			}
		})
	}
}

// The previous release did not keep the publication times of events that are in earlier segments of their batch.
func TestARepeatedBatchOfThePreviousReleaseIsWrittenOnce(t *testing.T) {
	log := &eventlog.Log{DB: memory(t)}
	segment := store.Item{
		Key:   store.Key{Table: store.Log, Partition: eventlog.Own("default", uri).Name(), Sort: store.AtCommit},
		Value: []byte(`{"v":1,"b":["nightly"],"e":[]}`),
	}
	if err := log.DB.Write(t.Context(), store.Put(segment)); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, e := range []event.Event{
		{Workspace: "default", ID: "nightly", URI: uri, Data: []byte(`1`), Published: now.Add(-time.Second)},
		{Workspace: "default", ID: "nightly", URI: uri, Data: []byte(`2`), Published: now.Add(6 * time.Minute)},
	} {
		if _, err := log.Append(t.Context(), "default", uri, []event.Event{e}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := payloads(t, log), []string{"2"}; !slices.Equal(got, want) {
		t.Errorf("the log holds the payloads %v, want %v", got, want)
	}
}
