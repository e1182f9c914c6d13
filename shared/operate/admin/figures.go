package admin

import (
	"cmp"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
)

const (
	// stepLength and seriesLength are the steps and the length of the series in an overview.
	stepLength   = 10 * time.Second
	seriesLength = 15 * time.Minute
	mostFailing  = 5
)

// figures are about some attempts.
type figures struct {
	Attempts int   `json:"attempts"`
	Failed   int   `json:"failed"`
	P50MS    int64 `json:"p50Ms"`
	P95MS    int64 `json:"p95Ms"`
}

func figuresOf(found []records.Record) figures {
	f := figures{Attempts: len(found)}
	took := make([]int64, 0, len(found))
	for _, r := range found {
		took = append(took, r.TookMS)
		if r.Outcome() != records.Delivered {
			f.Failed++
		}
		f.Attempts += int(r.Omitted)
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		f.P50MS, f.P95MS = took[(n-1)/2], took[(n-1)*95/100]
	}
	return f
}

// step is a part of the time.
type step struct {
	At time.Time `json:"at"` // its begin
	figures
}

// seriesOf makes the steps of records that are newest first.
func seriesOf(found []records.Record, now time.Time) []step {
	series := []step{}
	for len(found) > 0 {
		at := found[0].At.UTC().Truncate(stepLength)
		n := slices.IndexFunc(found, func(r records.Record) bool { return r.At.Before(at) })
		if n < 0 {
			n = len(found)
		}
		if at.Before(now.Add(-seriesLength)) {
			break
		}
		series = append(series, step{at, figuresOf(found[:n])})
		found = found[n:]
	}
	slices.Reverse(series)
	return series
}

// failing is an origin that failed.
type failing struct {
	Origin   string `json:"origin"`
	Attempts int    `json:"attempts"`
	Failed   int    `json:"failed"`
	// Category is that of the last failure.
	Category string `json:"category"`
}

func failingOf(found []records.Record) []failing {
	by := map[string]*failing{}
	for _, r := range found {
		f := by[r.Origin]
		if f == nil {
			f = &failing{Origin: r.Origin}
			by[r.Origin] = f
		}
		f.Attempts++
		if r.Outcome() != records.Delivered {
			f.Failed++
			f.Category = cmp.Or(f.Category, r.Category)
		}
	}
	list := []failing{}
	for _, f := range by {
		if f.Failed > 0 {
			list = append(list, *f)
		}
	}
	slices.SortFunc(list, func(a, b failing) int { return cmp.Or(b.Failed-a.Failed, cmp.Compare(a.Origin, b.Origin)) })
	return list[:min(len(list), mostFailing)]
}
