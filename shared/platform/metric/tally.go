package metric

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// LogEvery is the default of [Tally.Every].
const LogEvery = 10 * time.Second

// Tally counts occurrences that may be very frequent, by a few dimensions, and logs them in few lines. The first occurrence is logged
// immediately. Further ones are counted, and logged at most once per Every. Name, Text and Log must be set. A Tally may be used
// concurrently.
type Tally struct {
	// Name is the name of the metric, and Text the message of the line.
	Name, Text string
	Log        *slog.Logger
	// Every is the shortest time between two lines with the same dimensions. 0 means [LogEvery].
	Every time.Duration

	mu     sync.Mutex
	counts map[string]*tallied
}

// tallied is the count of one combination of dimensions.
type tallied struct {
	by          []slog.Attr
	all, logged int64
	due         bool // whether a timer will write the next line
}

// Add counts an occurrence. The dimensions must have few values.
func (t *Tally) Add(ctx context.Context, by ...slog.Attr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var key strings.Builder
	for _, d := range by {
		key.WriteString(d.Value.String())
		key.WriteByte(0)
	}
	c := t.counts[key.String()]
	if c == nil {
		c = &tallied{by: by}
		if t.counts == nil {
			t.counts = map[string]*tallied{}
		}
		t.counts[key.String()] = c
	}
	if c.all++; !c.due {
		t.write(ctx, c)
	}
}

// write logs the count since the last line, and schedules the next line. The lock is held.
func (t *Tally) write(ctx context.Context, c *tallied) {
	n := c.all - c.logged
	if c.due = n > 0; !c.due {
		return
	}
	c.logged = c.all
	t.Log.WarnContext(ctx, t.Text, Count(t.Name, n, c.by...))
	every := t.Every
	if every == 0 {
		every = LogEvery
	}
	time.AfterFunc(every, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.write(context.Background(), c)
	})
}

// Each calls yield for each combination of dimensions with the count since the process started.
func (t *Tally) Each(yield func(values []string, n int64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.counts {
		var values []string
		for _, d := range c.by {
			values = append(values, d.Value.String())
		}
		yield(values, c.all)
	}
}

// ByThird returns the counts of a tally of three dimensions as a map from "first/second" to the third dimension to the count.
func (t *Tally) ByThird() map[string]map[string]int64 {
	out := map[string]map[string]int64{}
	t.Each(func(by []string, n int64) {
		pair := by[0] + "/" + by[1]
		if out[pair] == nil {
			out[pair] = map[string]int64{}
		}
		out[pair][by[2]] = n
	})
	return out
}

// MetricUndecodable is the metric of [Undecodable].
const MetricUndecodable = "ItemsUndecodable"

// Undecodable counts stored items that cannot be decoded and are therefore treated as absent. A nil Undecodable counts nothing.
type Undecodable struct{ tally Tally }

// NewUndecodable returns an Undecodable that also logs.
func NewUndecodable(log *slog.Logger) *Undecodable {
	return &Undecodable{Tally{Name: MetricUndecodable, Text: "stored item undecodable", Log: log}}
}

// Add counts an item of a kind. There must be few kinds.
func (u *Undecodable) Add(ctx context.Context, kind string) {
	if u == nil {
		return
	}
	u.tally.Add(ctx, slog.String("item", kind))
}

// Count returns the number of items of a kind since the process started.
func (u *Undecodable) Count(kind string) (n int64) {
	u.tally.Each(func(values []string, all int64) {
		if values[0] == kind {
			n = all
		}
	})
	return n
}
