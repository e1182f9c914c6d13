package metric

import (
	"context"
	"log/slog"
)

// MetricUndecodable is the name under which items of the store that cannot be decoded are counted.
const MetricUndecodable = "ItemsUndecodable"

// Undecodable counts items of the store that cannot be decoded, and are treated as absent. A nil one counts nothing.
type Undecodable struct{ tally Tally }

// NewUndecodable makes one that tells the log.
func NewUndecodable(log *slog.Logger) *Undecodable {
	return &Undecodable{Tally{Name: MetricUndecodable, Text: "stored item undecodable", Log: log}}
}

// Add counts one more of its kind, of which there are few.
func (u *Undecodable) Add(ctx context.Context, kind string) {
	if u == nil {
		return
	}
	u.tally.Add(ctx, slog.String("item", kind))
}

// Count is how many of the kind there were since the process began.
func (u *Undecodable) Count(kind string) (n int64) {
	u.tally.Each(func(values []string, all int64) {
		if values[0] == kind {
			n = all
		}
	})
	return n
}
