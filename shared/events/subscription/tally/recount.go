package tally

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

// Recount corrects the sums of the workspaces that two recounts in a row find wrong, and reports how many. It recounts a
// workspace once per day, or every ten minutes while the workspace is at its limit. principals returns all principals of a workspace
// that have subscriptions.
func (c Counts) Recount(
	ctx context.Context, workspaces []string, principals func(ctx context.Context, workspace string) ([]string, error),
) (corrected int, err error) {
	var errs []error
	for _, workspace := range workspaces {
		by, err := c.recount(ctx, workspace, principals)
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
func (c Counts) recount(
	ctx context.Context, workspace string, principals func(ctx context.Context, workspace string) ([]string, error),
) (by int64, err error) {
	items, err := c.DB.Get(ctx, recountKey(workspace), Key(workspace, ""))
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
		sum = items[1].Counts[Member]
	}
	if c.SumOf != nil {
		limit = c.SumOf(ctx, workspace)
	}
	wait := recountEvery
	if limit > 0 && sum >= limit {
		wait = recountFull
	}
	now := c.Now()
	if last.Wrong == 0 && now.Sub(last.At) < wait {
		return 0, nil
	}
	all, err := principals(ctx, workspace)
	if err != nil {
		return 0, err
	}
	total, err := c.total(ctx, workspace, all)
	if err != nil {
		return 0, err
	}
	next := recounted{V: 1, At: now.UTC()}
	wrong := sum - total
	if last.Wrong == 0 {
		next.Wrong = wrong
	} else {
		by = -commonPart(last.Wrong, wrong)
	}
	value, _ := json.Marshal(next) // numbers and a time
	ops := []store.Op{store.Put(store.Item{Key: recountKey(workspace), Value: value, Version: now.UnixNano()}, cond)}
	if by != 0 {
		ops = append(ops, store.Add(Key(workspace, ""), map[string]int64{Member: by}, nil))
	}
	if err := c.DB.Write(ctx, ops...); errors.Is(err, store.ErrConflict) {
		return 0, nil // another process recounts
	} else if err != nil {
		return 0, err
	}
	return by, nil
}

// commonPart returns the part of two differences on which both agree.
func commonPart(a, b int64) int64 {
	switch {
	case a > 0 && b > 0:
		return min(a, b)
	case a < 0 && b < 0:
		return max(a, b)
	}
	return 0
}

// total adds up the counts of principals.
func (c Counts) total(ctx context.Context, workspace string, principals []string) (total int64, err error) {
	keys := make([]store.Key, len(principals))
	for i, principal := range principals {
		keys[i] = Key(workspace, principal)
	}
	for part := range slices.Chunk(keys, store.MaxGet) {
		items, err := c.DB.Get(ctx, part...)
		if err != nil {
			return 0, err
		}
		for _, it := range items {
			if it != nil {
				total += it.Counts[Member]
			}
		}
	}
	return total, nil
}
