package metric

import (
	"context"
	"log/slog"
)

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
