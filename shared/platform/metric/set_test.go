package metric

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
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
		expect.AtMost(t, "the values of "+name+" in one line", len(v), maxValues)
		for _, x := range v {
			sum += x
		}
		n += len(v)
	}
	return sum, n
}

// OPS-12, GWN-25: each measurement is in the log once, however attempts and writes interleave.
func TestEMFIsWrittenAfterAFreeze(t *testing.T) {
	var out bytes.Buffer
	now := time.Now()
	e := NewEMF(slog.New(slog.NewJSONHandler(&out, nil)), "stack-1", func() time.Time { return now })
	s := expect.Value(NewSet(e.Provider()))(t)
	e.Flush(t.Context())
	s.Published(1)
	now = periodictest.AfterFreeze(now, time.Minute)
	e.Flush(t.Context())
	expect.Equal(t, "the documents", len(documents(t, &out)), 1)
}

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
				s.Attempt("", true, 10*time.Millisecond, 20*time.Millisecond)
				if i < 10 {
					s.Attempt("timeout", false, 3*time.Second, 4*time.Second)
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
	s.Attempt("timeout", true, time.Second, time.Second)
	s.DeadLettered("events", 1)
	expect.OK(t, s.Watch(QueueDepth, nil))
	var e *EMF
	e.Flush(t.Context())
	e.Close(t.Context())
}

// GWN-05, OPS-12: a tally counts each occurrence in its metric, whose attributes may have commas in their values.
func TestTallyCountsInItsMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		e := NewEMF(slog.New(slog.NewJSONHandler(&out, nil)), "stack-1", nil)
		tally := Tally{Name: BackendDropped, Text: "dropped", Log: slog.New(slog.DiscardHandler), Set: expect.Value(NewSet(e.Provider()))(t)}
		for range 3 {
			tally.Add(t.Context(), slog.String("workspace", "w"), slog.String("backend", "b"), slog.String("reason", "too long, or malformed"))
		}
		e.Close(t.Context())
		all := documents(t, &out)
		expect.MustEqual(t, "the documents", len(all), 1)
		for name, want := range map[string]string{
			"stack": `"stack-1"`, "workspace": `"w"`, "backend": `"b"`, "reason": `"too long, or malformed"`, BackendDropped: "[3]",
		} {
			expect.Equal(t, name, string(all[0].members[name]), want)
		}
		expect.List(t, "the dimensions", all[0].AWS.CloudWatchMetrics[0].Dimensions[1], []string{"stack", "backend", "reason", "workspace"})
		time.Sleep(time.Minute) // lets the timer end
	})
}

func TestTally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		tally := Tally{Name: BackendDropped, Text: "milk was spilt", Log: slog.New(slog.NewTextHandler(&out, nil))}
		spill := func(n int, where, why string) {
			for range n {
				tally.Add(t.Context(), slog.String("where", where), slog.String("why", why))
			}
		}
		lines := func() (got []string) {
			synctest.Wait()
			tally.mu.Lock() // stops writers
			defer tally.mu.Unlock()
			for line := range strings.Lines(out.String()) {
				_, rest, _ := strings.Cut(strings.TrimSpace(line), `msg="milk was spilt" `)
				got = append(got, rest)
			}
			out.Reset()
			return got
		}
		wants := func(want ...string) {
			t.Helper()
			expect.List(t, "the lines", lines(), want)
		}
		spill(100, "kitchen", "cat")
		spill(1, "kitchen", "dog")
		wants("where=kitchen why=cat count=1", "where=kitchen why=dog count=1")
		time.Sleep(LogEvery - time.Second)
		spill(1, "kitchen", "cat")
		wants()
		time.Sleep(2 * time.Second)
		wants("where=kitchen why=cat count=100")
		time.Sleep(time.Minute)
		wants()
		spill(1, "kitchen", "cat")
		wants("where=kitchen why=cat count=1")
		var all []string
		tally.Each(func(values []string, n int64) { all = append(all, fmt.Sprint(values, n)) })
		slices.Sort(all)
		expect.List(t, "the counts", all, []string{"[kitchen cat] 102", "[kitchen dog] 1"})
		time.Sleep(time.Minute) // lets the last timer end
	})
}
