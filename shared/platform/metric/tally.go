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

// Tally counts what may happen very often, by a few dimensions, and logs it in few
// lines: at once, and then at most once per Every, with the count since the last line. Its zero value
// needs Name, Text and Log. It may be used concurrently.
type Tally struct {
	// Name is that of the metric, Text of the line.
	Name, Text string
	Log        *slog.Logger
	// Every is the least time between two lines of the same; 0 is [LogEvery].
	Every time.Duration

	mu     sync.Mutex
	counts map[string]*tallied
}

// tallied is how many were counted, how many of them are in a line, and whether one is
// due.
type tallied struct {
	by          []slog.Attr
	all, logged int64
	due         bool
}

// Add counts one more. The values of the dimensions are texts, of which there are few.
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

// write writes a line, and another one later if more were counted by then. The lock is held.
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

// Each calls yield with the values of the dimensions and the count of each, since the
// process began.
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

// ByThird are the counts of a tally of three dimensions by the third, for each pair "first/second" of the others.
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
