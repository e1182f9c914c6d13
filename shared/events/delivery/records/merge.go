package records

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The records of several subscriptions are one list, which is merged from the list of each. That takes one query per
// subscription, and at most as many again. It does not read the records of other subscriptions.

// Merge lists the records of several subscriptions as [List] does. If subs is nil, it lists the records of all subscriptions.
func Merge(ctx context.Context, db store.DB, workspace string, subs []string, ask Query, before string, limit int) ([]Record, string, error) {
	if subs == nil {
		return List(ctx, db, workspace, ask, before, limit)
	}
	return MergeLists(subs, before, limit, func(id, before string, limit int) ([]Record, string, error) {
		ask.Subscription = id
		return List(ctx, db, workspace, ask, before, limit)
	}, func(r Record) string { return fmt.Sprintf("%016d#%s#%d", r.At.UnixMicro(), r.Event, r.Attempt) })
}

// minStep is the minimum number of entries that one query reads of a list.
const minStep = 4

// MergeLists returns the newest entries of all lists. Entries with the same key are on the same page. A list that has more
// entries is known only down to its position, so MergeLists returns no entries that are older than the newest position. It
// reads more of the list at that position until it has enough entries, or has done so once for each list.
func MergeLists[T any](subs []string, before string, limit int, list func(id, before string, limit int) ([]T, string, error), keyOf func(T) string) (page []T, next string, err error) {
	type keyed struct {
		key string
		T   T
	}
	var all []keyed
	stands := make([]string, len(subs))
	read := func(i int, before string, limit int) error {
		items, stand, err := list(subs[i], before, limit)
		for _, item := range items {
			all = append(all, keyed{keyOf(item), item})
		}
		stands[i] = stand
		return err
	}
	step := min(limit, max(minStep, 2*limit/max(len(subs), 1)))
	for i := range subs {
		if err := read(i, before, step); err != nil {
			return nil, "", err
		}
	}
	highest := func() int {
		at := 0
		for i := range stands {
			if stands[i] > stands[at] {
				at = i
			}
		}
		return at
	}
	for range subs {
		i := highest()
		next, known := stands[i], 0
		for _, it := range all {
			if it.key >= next {
				known++
			}
		}
		if next == "" || known >= limit {
			break
		}
		if err := read(i, next, step); err != nil {
			return nil, "", err
		}
	}
	if len(subs) > 0 {
		next = stands[highest()]
	}
	slices.SortStableFunc(all, func(a, b keyed) int { return cmp.Compare(b.key, a.key) })
	n := 0
	for n < len(all) && all[n].key >= next && (n < limit || all[n].key == all[n-1].key) {
		page = append(page, all[n].T)
		n++
	}
	if n < len(all) && n > 0 && n >= limit {
		next = all[n-1].key
	}
	return page, next, nil
}
