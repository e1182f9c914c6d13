package delivery

import (
	"context"
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// counting counts the subscriptions that an audit checks, and calls tired at a given number of them.
type counting struct {
	*subscription.Service
	ends, most int
	tired      func()
}

func (c *counting) Terminate(ctx context.Context, workspace, principal, id string,
	judge func(*subscription.Subscription) error, also func(*subscription.Subscription, error) []store.Op,
) (*subscription.Subscription, error) {
	if c.ends++; c.ends == c.most {
		c.tired()
	}
	return c.Service.Terminate(ctx, workspace, principal, id, judge, also)
}

// TestAnAuditThatIsCutOffGoesOn: AWS-16. An audit has its own position.
func TestAnAuditThatIsCutOffGoesOn(t *testing.T) {
	r := newRig(t)
	const all = 450 // the pages are of 200
	r.to(oneOrigin(all)...)
	r.audit()
	r.change(payload, optional) // other terms, which end nothing
	looked, rounds := 0, 0
	for done := false; !done; rounds++ {
		ctx, cancel := context.WithCancel(t.Context())
		services := &counting{Service: r.services.Service, most: 250, tired: cancel}
		e := r.terminator(mortal{r.db, r}, r.services)
		e.Subscriptions = services
		_, err := e.Recheck(ctx)
		cancel()
		looked += services.ends
		if done = err == nil; rounds > 4 {
			t.Fatalf("AWS-16: the audit is not done after %d rounds, it looked at %d", rounds, looked)
		}
	}
	if rounds != 3 || looked > all+2*50 {
		t.Errorf("%d rounds looked at %d of %d subscriptions", rounds, looked, all)
	}
}

// TestAnUndecodableRecordDoesNotStopTheAudit: AWS-16.
func TestAnUndecodableRecordDoesNotStopTheAudit(t *testing.T) {
	r := newRig(t)
	var ids []string
	for range 5 {
		ids = append(ids, r.register("event://ci/build-finished").ID)
	}
	r.audit()
	for _, id := range ids[1:3] {
		key := store.Key{Table: store.Subscriptions, Partition: "o#default#alice", Sort: id}
		if err := r.db.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte("{broken"), Version: 1}, store.Exists())); err != nil {
			t.Fatal(err)
		}
	}
	r.change(buildType, restricted)
	r.audit()
	for _, id := range []string{ids[0], ids[3], ids[4]} {
		if r.served(id) {
			t.Errorf("AWS-16: %s is still served", id)
		}
	}
	e := r.terminator(mortal{r.db, r}, r.services)
	if ended, err := e.Recheck(t.Context()); err != nil || ended != 0 {
		t.Errorf("the audit does not settle: %d ended, %v", ended, err)
	}
}

// hurried is a source of catalogs whose caller runs out of time after some of them.
type hurried struct {
	catalog.Source
	asked map[string]int
	left  int
	tired context.CancelFunc
}

func (s *hurried) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	if s.left--; s.left < 0 {
		s.tired()
		return nil, ctx.Err()
	}
	s.asked[workspace]++
	return s.Source.Catalog(ctx, workspace)
}

func TestAudits(t *testing.T) {
	t.Run("AWS-16 each workspace has its turn although an audit has time for a few", func(t *testing.T) {
		r := newRig(t)
		const all, each = 10, 3
		for i := range all {
			if err := r.db.Write(t.Context(), store.Put(store.Item{Key: store.Key{Table: store.Subscriptions, Partition: "w#", Sort: fmt.Sprint("w", i)}})); err != nil {
				t.Fatal(err)
			}
		}
		e := r.terminator(mortal{r.db, r}, r.services)
		source := &hurried{Source: r.catalogs, asked: map[string]int{}}
		e.Review.Catalog = source
		for range all {
			ctx, cancel := context.WithCancel(t.Context())
			source.left, source.tired = each, cancel
			_, _ = e.Recheck(ctx)
			cancel()
		}
		if len(source.asked) != all {
			t.Errorf("after %d audits %d workspaces were looked at, want %d: %v", all, len(source.asked), all, source.asked)
		}
	})
}
