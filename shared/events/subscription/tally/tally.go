// Package tally counts the subscriptions of each principal and each workspace, and enforces limits for both.
//
// The transaction that writes or ends a subscription also updates the principal's count. A separate write updates the workspace's sum,
// because otherwise all registrations of the workspace would conflict with each other. If a process dies between the two writes, the sum
// stays wrong. After many crashes it could reach the limit although the workspace has few subscriptions. [Counts.Recount] therefore adds
// up the counts of the principals and corrects the sum.
package tally

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// DefaultLimit is how many subscriptions a principal may have.
const DefaultLimit = 1000

// Member is the name of the counter in an item with a key from [Key].
const Member = "n"

// Key returns the key of a principal's count. With an empty principal, which no caller has, it is the key of the workspace's sum.
func Key(workspace, principal string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "q#" + workspace + "#" + principal, Sort: "-"}
}

// Counts counts subscriptions in a store.
type Counts struct {
	DB store.DB
	// LimitOf returns how many subscriptions a principal may have. Nil means [DefaultLimit] for all principals.
	LimitOf func(ctx context.Context, workspace, principal string) int64
	// SumOf returns how many subscriptions all principals of a workspace may have together. Nil and 0 mean no limit.
	SumOf func(ctx context.Context, workspace string) int64
	// Now is the clock of [Counts.Recount].
	Now func() time.Time
	// Log receives failures; nil is [slog.Default].
	Log *slog.Logger
}

func (c Counts) log() *slog.Logger { return cmp.Or(c.Log, slog.Default()) }

// AddOp returns the operation that adds n to a principal's count. If n is positive and the principal has reached its limit, the write
// fails with a conflict.
func (c Counts) AddOp(ctx context.Context, workspace, principal string, n int64) store.Op {
	var limits map[string]int64
	if n > 0 {
		limits = map[string]int64{Member: c.limit(ctx, workspace, principal)}
	}
	return store.Add(Key(workspace, principal), map[string]int64{Member: n}, limits)
}

// AddToSum adds n to the number of subscriptions in a workspace. It returns Exhausted if the workspace's limit is reached.
func (c Counts) AddToSum(ctx context.Context, workspace string, n int64) error {
	op := store.Add(Key(workspace, ""), map[string]int64{Member: n}, nil)
	var most int64
	if n > 0 && c.SumOf != nil {
		most = c.SumOf(ctx, workspace)
	}
	if most > 0 {
		op.Limits = map[string]int64{Member: most}
	}
	err := c.DB.Write(ctx, op)
	if errors.Is(err, store.ErrConflict) {
		return fault.New(fault.Exhausted, "the limit of %d subscriptions of the workspace is reached", most).AtLimit(quota.WorkspaceSubscriptions, float64(most))
	}
	return fault.Wrap(fault.Unavailable, err, "count the subscriptions of the workspace")
}

// LowerSum subtracts one from the number of subscriptions in a workspace, even if the caller has disconnected.
func (c Counts) LowerSum(ctx context.Context, workspace string) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := c.AddToSum(undo, workspace, -1); err != nil {
		c.log().WarnContext(ctx, "subscription counters too high", "error", err)
	}
}

// Check returns an error of kind Exhausted if the principal has as many subscriptions as it may have.
func (c Counts) Check(ctx context.Context, workspace, principal string) error {
	used, err := ReadCount(ctx, c.DB, workspace, principal)
	if most := c.limit(ctx, workspace, principal); err == nil && used >= most {
		err = fault.New(fault.Exhausted, "the limit of %d subscriptions is reached", most).AtLimit(quota.Subscriptions, float64(most))
	}
	return err
}

func (c Counts) limit(ctx context.Context, workspace, principal string) int64 {
	if c.LimitOf == nil {
		return DefaultLimit
	}
	return c.LimitOf(ctx, workspace, principal)
}

// ReadCount returns how many subscriptions count towards a principal's limit or, if principal is empty, towards the workspace's limit.
func ReadCount(ctx context.Context, db store.DB, workspace, principal string) (int64, error) {
	it, err := store.One(ctx, db, Key(workspace, principal), "read a quota")
	if err != nil || it == nil {
		return 0, err
	}
	return max(0, it.Counts[Member]), nil
}

const (
	recountEvery = 24 * time.Hour
	// recountFull is the time between two recounts of a workspace that has reached its limit.
	recountFull = 10 * time.Minute
)

// recounted is the result of a workspace's last recount.
type recounted struct {
	V  int       `json:"v"`
	At time.Time `json:"at"`
	// Wrong is by how much the workspace's sum exceeded the total of its principals' counts. The sum is corrected only if the next
	// recount finds it wrong too, because a registration in progress makes it wrong for a moment.
	Wrong int64 `json:"wrong,omitempty"`
}

func recountKey(workspace string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "x#sums", Sort: workspace}
}

// Recount compares each workspace's sum with its principals' counts, once per day, or every ten minutes if the workspace has reached its
// limit. It corrects the sums that were wrong in two recounts in a row, and returns the number of corrected workspaces. The function
// principals must return all principals of a workspace that have subscriptions.
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
			c.log().WarnContext(ctx, "subscription sum corrected", "workspace", workspace, "by", by)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return corrected, errors.Join(errs...)
}

// recount recounts a workspace's subscriptions if a recount is due, and returns by how much it changed the sum.
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
			last = recounted{} // forget a result that cannot be decoded, so that a recount is due
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
	total, err := c.sumCounts(ctx, workspace, all)
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
	value, _ := json.Marshal(next) // cannot fail for numbers and a time
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

// commonPart returns the difference that two recounts have in common: the smaller one of a and b if both have the same sign, and otherwise
// 0. For example, if one recount found a sum too high by 5 and the next by 3, only 3 are certainly wrong.
func commonPart(a, b int64) int64 {
	switch {
	case a > 0 && b > 0:
		return min(a, b)
	case a < 0 && b < 0:
		return max(a, b)
	}
	return 0
}

func (c Counts) sumCounts(ctx context.Context, workspace string, principals []string) (total int64, err error) {
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
