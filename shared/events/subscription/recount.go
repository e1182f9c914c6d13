package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The sum of a workspace is not part of the transaction that writes a subscription, because all registrations of the
// workspace would conflict there. A process that dies in between leaves it wrong, in the end so high that the workspace gets
// no more subscriptions. The counts of principals are in the transactions, so their total is the true sum.

const (
	recountEvery = 24 * time.Hour
	// recountFull is the time between recounts of a workspace that has reached its limit.
	recountFull = 10 * time.Minute
)

// recounted is the state of the recounts of a workspace.
type recounted struct {
	V  int       `json:"v"`
	At time.Time `json:"at"`
	// Wrong is how much too high the sum was, if the next recount is to confirm it. Registrations and ends that are under
	// way make a sum look wrong for a moment.
	Wrong int64 `json:"wrong,omitempty"`
}

func recountKey(workspace string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "x#sums", Sort: workspace}
}

// Recount corrects the sums of workspaces that two recounts in a row find wrong, and reports how many. It recounts a
// workspace once per day, or every ten minutes while the workspace is at its limit.
func (s *Sweeper) Recount(ctx context.Context) (corrected int, err error) {
	workspaces, err := (&Lists{DB: s.Service.Records.DB}).Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, workspace := range workspaces {
		by, err := s.recount(ctx, workspace)
		if err != nil {
			errs = append(errs, fault.Wrap(fault.Unavailable, err, "recount the subscriptions of workspace %s", workspace))
		} else if by != 0 {
			corrected++
			slog.WarnContext(ctx, "subscription sum corrected", "workspace", workspace, "by", by)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return corrected, errors.Join(errs...)
}

// recount recounts a workspace if a recount is due, and returns by how much it changed the sum.
func (s *Sweeper) recount(ctx context.Context, workspace string) (by int64, err error) {
	r := &s.Service.Records
	items, err := r.DB.Get(ctx, recountKey(workspace), sumKey(workspace))
	if err != nil {
		return 0, err
	}
	var last recounted
	cond := store.Absent()
	if items[0] != nil {
		cond = store.VersionIs(items[0].Version)
		if err := json.Unmarshal(items[0].Value, &last); err != nil {
			last = recounted{} // recount again
		}
	}
	var sum, limit int64
	if items[1] != nil {
		sum = items[1].Counts[quotaCount]
	}
	if r.SumOf != nil {
		limit = r.SumOf(ctx, workspace)
	}
	wait := recountEvery
	if limit > 0 && sum >= limit {
		wait = recountFull
	}
	now := r.now()
	if last.Wrong == 0 && now.Sub(last.At) < wait {
		return 0, nil
	}
	total, err := s.total(ctx, workspace)
	if err != nil {
		return 0, err
	}
	next := recounted{V: 1, At: now.UTC()}
	wrong := sum - total
	if last.Wrong == 0 {
		next.Wrong = wrong
	} else {
		by = -agreed(last.Wrong, wrong)
	}
	value, _ := json.Marshal(next) // numbers and a time
	ops := []store.Op{store.Put(store.Item{Key: recountKey(workspace), Value: value, Version: now.UnixNano()}, cond)}
	if by != 0 {
		ops = append(ops, store.Add(sumKey(workspace), map[string]int64{quotaCount: by}, nil))
	}
	if err := r.DB.Write(ctx, ops...); errors.Is(err, store.ErrConflict) {
		return 0, nil // another process recounts
	} else if err != nil {
		return 0, err
	}
	return by, nil
}

// agreed returns the part of two differences on which both agree.
func agreed(a, b int64) int64 {
	switch {
	case a > 0 && b > 0:
		return min(a, b)
	case a < 0 && b < 0:
		return max(a, b)
	}
	return 0
}

// total adds up the counts of all principals that have a subscription in the workspace.
func (s *Sweeper) total(ctx context.Context, workspace string) (total int64, err error) {
	r := &s.Service.Records
	principals := map[string]bool{}
	err = store.Each(ctx, r.DB, indexKey(workspace, "-"), "list the subscriptions of a workspace", func(it *store.Item) error {
		principals[string(it.Value)] = true
		return nil
	})
	if err != nil {
		return 0, err
	}
	keys := make([]store.Key, 0, len(principals))
	for principal := range principals {
		keys = append(keys, quotaKey(workspace, principal))
	}
	for part := range slices.Chunk(keys, store.MaxGet) {
		items, err := r.DB.Get(ctx, part...)
		if err != nil {
			return 0, err
		}
		for _, it := range items {
			if it != nil {
				total += it.Counts[quotaCount]
			}
		}
	}
	return total, nil
}
