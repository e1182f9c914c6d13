package subscription

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

const (
	// resealPage is how many subscriptions one call of [Records.Reseal] visits.
	resealPage = 200
	// resealConcurrency is how many of them it visits concurrently.
	resealConcurrency = 16
)

// Position is how far [Records.Reseal] has come. The zero value is the beginning.
type Position struct {
	Workspace string `json:"ws,omitempty"`
	ID        string `json:"id,omitempty"`
}

// Reseal passes the sealed secrets of up to 200 subscriptions to reseal, and stores what it returns. A result of nil keeps the
// secret. It returns the position for the next call, and whether more subscriptions follow.
//
// A caller can repeat a page after a crash. A subscription that begins during the walk may be missed. Disabled subscriptions
// are visited but keep their secrets, because writing them would bring them back under their patterns.
func (r *Records) Reseal(ctx context.Context, from Position, reseal func(ctx context.Context, sealed []byte, b Binding) ([]byte, error)) (next Position, more bool, err error) {
	workspaces, err := (&Lists{DB: r.DB}).Workspaces(ctx)
	if err != nil {
		return from, false, err
	}
	i, _ := slices.BinarySearch(workspaces, from.Workspace)
	if i == len(workspaces) {
		return from, false, nil
	}
	workspace, after := workspaces[i], from.ID
	if workspace != from.Workspace {
		after = ""
	}
	page, err := r.DB.Query(ctx, store.Query{Table: store.Subscriptions, Partition: indexKey(workspace, "-").Partition, After: after, Limit: resealPage})
	if err != nil {
		return from, false, fault.Wrap(fault.Unavailable, err, "list the subscriptions of workspace %s", workspace)
	}
	work, limited := errgroup.WithContext(ctx)
	work.SetLimit(resealConcurrency)
	for _, it := range page.Items {
		work.Go(func() (err error) {
			defer fault.Recovered(&err)
			return r.resealOne(limited, workspace, string(it.Value), it.Sort, reseal)
		})
	}
	switch err := work.Wait(); {
	case err != nil:
		return from, false, err
	case page.More:
		return Position{workspace, page.Last}, true, nil
	case i+1 < len(workspaces):
		return Position{Workspace: workspaces[i+1]}, true, nil
	}
	return from, false, nil
}

func (r *Records) resealOne(ctx context.Context, workspace, principal, id string, reseal func(ctx context.Context, sealed []byte, b Binding) ([]byte, error)) error {
	return r.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil {
			return nil
		}
		changed := false
		for _, secret := range []*[]byte{&sub.Target.Secret, &sub.Target.Previous} {
			if len(*secret) == 0 {
				continue
			}
			sealed, err := reseal(ctx, *secret, sub.Binding())
			if err != nil {
				return err
			}
			if sealed != nil {
				*secret, changed = sealed, true
			}
		}
		if !changed || sub.State == Disabled {
			return nil
		}
		was := sub.Revision
		sub.Revision++
		ops := []store.Op{store.Put(sub.encode(), store.VersionIs(was))}
		for _, it := range sub.subscribers() {
			ops = append(ops, store.Put(it))
		}
		return fault.Wrap(fault.Unavailable, r.DB.Write(ctx, ops...), "seal the secret of subscription %s again", id)
	})
}
