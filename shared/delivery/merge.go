package delivery

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mcp-events/mcpevents/shared/store"
)

// What was delivered to several subscriptions is one list, merged from that of each: one query for each of them, and
// nothing of others is looked at.

// MergeRecords is [ListRecords] for several subscriptions.
func MergeRecords(ctx context.Context, db store.DB, workspace string, subs []string, ask RecordQuery, before string, limit int) ([]Record, string, error) {
	return merge(subs, limit, func(id string) ([]Record, string, error) {
		ask.Subscription = id
		return ListRecords(ctx, db, workspace, ask, before, limit)
	}, func(r Record) string { return fmt.Sprintf("%016d#%s#%d", r.At.UnixMicro(), r.Event, r.Attempt) })
}

// MergeLetters is [Operations.Letters] for several subscriptions.
func (o *Operations) MergeLetters(ctx context.Context, workspace string, subs []string, ask LetterQuery, before string, limit int) ([]Letter, string, error) {
	return merge(subs, limit, func(id string) ([]Letter, string, error) {
		ask.Subscription = id
		return o.Letters(ctx, workspace, ask, before, limit)
	}, func(l Letter) string {
		_, sort, _ := parseLetterID(l.ID)
		return sort
	})
}

// merge takes the newest of all lists. What has the same key in several of them comes in one page. A list that goes
// on, maybe behind items that were passed over, is only known down to where it stands: nothing older is taken.
func merge[T any](subs []string, limit int, list func(id string) ([]T, string, error), keyOf func(T) string) (all []T, next string, err error) {
	for _, id := range subs {
		items, more, err := list(id)
		if err != nil {
			return nil, "", err
		}
		all, next = append(all, items...), max(next, more)
	}
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(keyOf(b), keyOf(a)) })
	n := 0
	for n < len(all) && keyOf(all[n]) >= next && (n < limit || keyOf(all[n]) == keyOf(all[n-1])) {
		n++
	}
	if n < len(all) && n > 0 && n >= limit {
		next = keyOf(all[n-1])
	}
	return all[:n], next, nil
}
