package metric

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// emfDocument is a line as CloudWatch reads it.
type emfDocument struct {
	Stack   string `json:"stack"`
	Outcome string `json:"outcome"`
	Queue   string `json:"queue"`
	Backend string `json:"backend"`
	AWS     struct {
		CloudWatchMetrics []struct {
			Namespace  string
			Dimensions [][]string
			Metrics    []struct{ Name, Unit string }
		}
	} `json:"_aws"`
	members map[string]json.RawMessage
}

func documents(t *testing.T, out *bytes.Buffer) (all []emfDocument) {
	t.Helper()
	for line := range bytes.Lines(out.Bytes()) {
		var d emfDocument
		expect.OK(t, json.Unmarshal(line, &d))
		expect.OK(t, json.Unmarshal(line, &d.members))
		all = append(all, d)
	}
	return all
}

// values returns the sum and number of a metric's values. Unless by is empty, it counts only lines with that attribute.
func values(t *testing.T, all []emfDocument, name, by string) (sum float64, n int) {
	t.Helper()
	for _, d := range all {
		raw, ok := d.members[name]
		if !ok || by != "" && d.Outcome != by && d.Queue != by {
			continue
		}
		var v []float64
		expect.OK(t, json.Unmarshal(raw, &v))
		if len(v) > maxValues {
			t.Errorf("got %d values of %s in one line, want at most %d", len(v), name, maxValues)
		}
		for _, x := range v {
			sum += x
		}
		n += len(v)
	}
	return sum, n
}

// OPS-12, GWN-25: each measurement is in the log once, however attempts and writes interleave.
func TestEMFWritesEachMeasurementOnce(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1_800_000_000, 0)
	e := NewEMF(slog.New(slog.NewJSONHandler(&out, nil)), "stack-1", func() time.Time { return now })
	s := expect.Value(NewSet(e.Provider()))(t)
	expect.OK(t, s.Watch(QueueDepth, func(context.Context) ([]Reading, error) { return []Reading{{"events", 3}, {"slow", 4}}, nil }))
	for round := range 3 {
		var wg sync.WaitGroup
		for i := range 110 {
			wg.Go(func() {
				s.Published(2)
				s.Attempt("", 1, 10*time.Millisecond, 20*time.Millisecond)
				if i < 10 {
					s.Attempt("timeout", 2, 3*time.Second, 4*time.Second)
					s.DeadLettered("webhook", 1)
					s.GatewayCalled("github", "ok", 10*time.Millisecond)
					s.GatewayCalled("", "unknown", 10*time.Millisecond)
				}
			})
		}
		wg.Wait()
		now = now.Add(EMFEvery)
		e.Flush(t.Context())
		if round == 0 {
			s.Published(7)
			e.Flush(t.Context()) // too soon
		}
	}
	e.Close(t.Context())
	all := documents(t, &out)
	for _, want := range []struct {
		name, by string
		sum      float64
		n        int
	}{
		{EventsPublished, "", 3*220 + 7, 3},
		{DeliveryAttempts, Success, 330, 3},
		{DeliveryAttempts, "timeout", 30, 3},
		{DeadLetters, "webhook", 30, 3},
		{GatewayCalls, "ok", 30 * .01, 30},
		{GatewayCalls, "unknown", 30 * .01, 30},
		{FirstAttemptLag, "", 330 * .02, 330},
		{DeliveryLag, "", 330 * .02, 330},
		{AttemptDuration, "", 330*.01 + 30*3, 360},
		{QueueDepth, "slow", 4 * 4, 4},
	} {
		sum, n := values(t, all, want.name, want.by)
		expect.Equal(t, fmt.Sprintf("%s by %q: values", want.name, want.by), n, want.n)
		if wrong := math.Abs(sum - want.sum); wrong > .5*want.sum && want.n > 100 || wrong > .001 && want.n <= 100 {
			t.Errorf("%s by %q: got %v in all, want %v", want.name, want.by, sum, want.sum)
		}
	}
	for _, d := range all {
		expect.Equal(t, fmt.Sprintf("the backend for the outcome %q", d.Outcome), d.Backend, map[string]string{"ok": "github", "unknown": NoBackend}[d.Outcome])
		about := d.AWS.CloudWatchMetrics[0]
		if d.Stack != "stack-1" || about.Namespace != Namespace || !slices.Equal(about.Dimensions[0], []string{"stack"}) {
			t.Errorf("got %+v, want the stack stack-1 in the namespace %s", d, Namespace)
		}
		for _, m := range about.Metrics {
			if _, ok := d.members[m.Name]; !ok || m.Unit != "Count" && m.Unit != "Seconds" {
				t.Errorf("got the metric %+v in the directive, want a member of the line with a unit", m)
			}
		}
		for _, name := range about.Dimensions[len(about.Dimensions)-1] {
			if d.members[name] == nil {
				t.Errorf("got no member for the dimension %s", name)
			}
		}
	}
}

func TestNilRecordsNothing(t *testing.T) {
	var s *Set
	s.Published(1)
	s.Attempt("timeout", 1, time.Second, time.Second)
	s.DeadLettered("events", 1)
	if err := s.Watch(QueueDepth, nil); err != nil {
		t.Error(err)
	}
	var e *EMF
	e.Flush(t.Context())
	e.Close(t.Context())
}
