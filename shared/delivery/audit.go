package delivery

import (
	"context"
	"encoding/json"
	"time"

	"mcpevents/shared/catalog"
	"mcpevents/shared/fault"
	"mcpevents/shared/store"
	"mcpevents/shared/subscription"
)

// A subscription to an event type of which nothing is published any more would wait
// for its end for ever: dispatch never comes by. So, once a minute, the catalog of
// every workspace with subscriptions is compared with the one that was last looked at, and
// where an event type is gone or has other terms, all its subscriptions are looked at.
//
// A change is looked at twice, some time apart: others may go by the old catalog for
// [versioned.MaxAge], and subscribe somebody to what is gone.

// settleAfter is how long a catalog must have been seen before it is the one to compare
// with.
const settleAfter = 20 * time.Second

// looked is what a workspace's catalog was when its subscriptions were last looked at.
type looked struct {
	V int `json:"v"`
	// Settled is the fingerprint of the catalog with these Terms by event type.
	Settled string            `json:"f"`
	Terms   map[string]string `json:"t"`
	// Seen is a newer catalog, first looked at in the second Since (since 1970).
	Seen  string `json:"n,omitempty"`
	Since int64  `json:"at,omitempty"`
}

func lookedKey(workspace string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "a#" + workspace, Sort: "-"}
}

// Audit ends the subscriptions that changes of catalogs have left without what they
// stand on, and reports how many. One that is cut off begins again.
func (e *Ender) Audit(ctx context.Context) (ended int, err error) {
	e.auditing.Lock()
	defer e.auditing.Unlock()
	workspaces, err := e.Subscriptions.Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	if e.audited == nil {
		e.audited = map[string]string{}
	}
	for _, workspace := range workspaces {
		n, err := e.auditOne(ctx, workspace)
		if ended += n; err != nil {
			return ended, fault.Wrap(fault.Unavailable, err, "look at the subscriptions of workspace %s", workspace)
		}
	}
	return ended, nil
}

func (e *Ender) auditOne(ctx context.Context, workspace string) (ended int, err error) {
	cat, err := e.Review.Catalog.Catalog(ctx, workspace)
	if fault.Is(err, fault.NotFound) {
		return 0, nil // it can neither publish nor deliver
	}
	if err != nil || e.audited[workspace] == cat.Fingerprint() {
		return 0, err
	}
	items, err := e.DB.Get(ctx, lookedKey(workspace))
	if err != nil {
		return 0, err
	}
	var last looked
	if items[0] != nil {
		if err := json.Unmarshal(items[0].Value, &last); err != nil {
			return 0, err
		}
	}
	next := looked{V: taskVersion, Settled: last.Settled, Terms: last.Terms}
	switch now := e.now(); {
	case last.Settled == cat.Fingerprint() && last.Seen == "":
		e.audited[workspace] = last.Settled
		return 0, nil
	case items[0] == nil || last.Seen == cat.Fingerprint() && now.Unix()-last.Since >= int64(settleAfter/time.Second):
		next.Settled, next.Terms = cat.Fingerprint(), terms(cat)
	case last.Seen == cat.Fingerprint():
		return 0, nil
	default:
		next.Seen, next.Since = cat.Fingerprint(), now.Unix()
	}
	for _, scope := range concerned(last.Terms, terms(cat)) {
		n, err := e.auditScope(ctx, workspace, scope)
		if ended += n; err != nil {
			return ended, err
		}
	}
	value, _ := json.Marshal(next) // texts and numbers
	return ended, e.DB.Write(ctx, store.Put(store.Item{Key: lookedKey(workspace), Value: value}))
}

func terms(cat *catalog.Catalog) map[string]string {
	out := make(map[string]string, len(cat.Entries()))
	for _, e := range cat.Entries() {
		out[e.Name] = e.Terms()
	}
	return out
}

// concerned lists the scopes whose subscriptions may have lost something.
func concerned(before, after map[string]string) (scopes []string) {
	for name, t := range before {
		if after[name] != t {
			scopes = append(scopes, subscription.Scope(name))
		}
	}
	if len(scopes) > 0 {
		scopes = append(scopes, subscription.Scope(""))
	}
	return scopes
}

func (e *Ender) auditScope(ctx context.Context, workspace, scope string) (ended int, err error) {
	for after := ""; ; {
		subs, next, err := e.Subscriptions.Listed(ctx, workspace, scope, after)
		if err != nil {
			return ended, err
		}
		for _, s := range subs {
			over, err := e.End(ctx, workspace, s.Principal, s.ID)
			if err != nil {
				return ended, err
			}
			if over {
				ended++
			}
		}
		if after = next; next == "" {
			return ended, nil
		}
	}
}
