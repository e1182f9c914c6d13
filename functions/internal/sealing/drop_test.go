package sealing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/events/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// breaking is a store whose writes fail once it has made a number of them.
type breaking struct {
	store.DB
	writes int
}

var errCrashed = errors.New("crashed")

func (b *breaking) Write(ctx context.Context, ops ...store.Op) error {
	if b.writes--; b.writes < 0 {
		return errCrashed
	}
	return b.DB.Write(ctx, ops...)
}

// deployment has subscriptions, and keys that are rotated.
type deployment struct {
	t   *testing.T
	db  store.DB
	w   *locked
	now time.Time
}

func newDeployment(t *testing.T) *deployment {
	d := &deployment{t: t, db: open(t), w: &locked{}, now: time.Now()}
	expect.OK(t, Create(t.Context(), d.db, d.w))
	return d
}

// register makes a subscription with a secret that s seals.
func (d *deployment) register(workspace, target string, s targets.Sealer) {
	d.t.Helper()
	parsed, err := catalog.Parse([]byte("events:\n  - name: ci.built\n    uri: event://ci/built\n    payloadSchema: {type: object}\n"))
	expect.OK(d.t, err)
	g := subscription.Registrar{
		Service: &subscription.Service{
			Store: subscription.Store{DB: d.db}, Catalog: catalog.NewStatic(parsed), Log: &eventlog.Log{DB: d.db},
		},
		Targets: targets.Targets{Sender: webhook.NewSender(webhook.Options{Guard: &webhook.Guard{AllowInsecure: true}}), Sealer: s},
	}
	expect.OK(d.t, expect.ErrOf(g.Register(d.t.Context(), auth.Principal{ID: "alice", Workspace: workspace, Scopes: auth.Scopes()},
		subscription.RegisterRequest{URIs: []string{"event://ci/built"}, Target: target})))
}

func (d *deployment) rotate() {
	d.t.Helper()
	for _, step := range []Step{stepAdd, stepPromote} {
		expect.OK(d.t, Rotate(d.t.Context(), d.db, d.w, step))
	}
}

// drop calls Drop and checks the phase of the next call and how many keys were removed.
func (d *deployment) drop(phase string, dropped int) {
	d.t.Helper()
	got, err := Drop(d.t.Context(), d.db, d.w, d.now)
	if err != nil || got.Phase != phase || got.Dropped != dropped {
		d.t.Fatalf("got %+v, %v; want phase %q and %d keys removed", got, err, phase, dropped)
	}
}

// keys returns the number of keys that can be in use.
func (d *deployment) keys() (n int) {
	d.t.Helper()
	private, _, err := private(d.t.Context(), d.db, d.w)
	expect.OK(d.t, err)
	_, _, _, err = webhook.DropKeys(private, func([]byte) (bool, error) { n++; return true, nil })
	expect.OK(d.t, err)
	return n + 1
}

// checkSecrets checks that the stored keyset opens all secrets of a workspace's subscriptions, wherever they are stored.
func (d *deployment) checkSecrets(workspace string, want int) {
	d.t.Helper()
	opener := &Opener{DB: d.db, Wrapper: d.w}
	n := 0
	check := func(id string, target subscription.Target) error {
		n++
		_, err := opener.Open(d.t.Context(), target.Secret, webhook.Binding{Workspace: workspace, Subscription: id, Target: target.URL})
		return err
	}
	err := (&subscription.Lists{DB: d.db}).Each(d.t.Context(), workspace, "alice", func(s *subscription.Subscription) error { return check(s.ID, s.Target) })
	if err != nil {
		d.t.Error(err)
	}
	found := expect.Value(subscription.ReadSubscribers(d.t.Context(), d.db, workspace, "event://ci/built", subscription.Range{}, 1000))(d.t)
	for _, s := range found.List {
		if err := check(s.ID, s.Target); err != nil {
			d.t.Error(err)
		}
	}
	expect.Equal(d.t, "the sealed secrets in workspace "+workspace, n, 2*want)
}

func TestDrop(t *testing.T) {
	t.Run("given old keys, when all secrets were sealed again and no copy can be left, then only the sealing key stays", func(t *testing.T) {
		d := newDeployment(t)
		for i := range 3 {
			d.register("default", fmt.Sprintf("https://example.com/%d", i), &Sealer{DB: d.db})
			d.rotate()
		}
		d.register("other", "https://example.com/", &Sealer{DB: d.db})
		d.drop(waiting, 0)
		d.now = d.now.Add(dropWait - time.Second)
		d.drop(waiting, 0)
		expect.Equal(t, "the keys before the check", d.keys(), 4)
		d.now = d.now.Add(time.Second)
		d.drop("done", 3)
		expect.Equal(t, "the keys", d.keys(), 1)
		d.checkSecrets("default", 3)
		d.checkSecrets("other", 1)
		expect.OK(t, Create(t.Context(), d.db, d.w), "the next deployment")
		d.register("other", "https://example.com/later", &Sealer{DB: d.db})
		d.checkSecrets("other", 2)
	})

	t.Run("given a registration with an old public key after the resealing, when secrets are checked, then the key stays and the resealing begins again", func(t *testing.T) {
		d := newDeployment(t)
		stale := expect.Value(Public(t.Context(), d.db))(t)
		d.rotate()
		d.drop(waiting, 0)
		d.register("default", "https://example.com/", stale)
		d.now = d.now.Add(dropWait)
		d.drop(resealing, 0)
		d.checkSecrets("default", 1)
		d.drop(waiting, 0)
		d.now = d.now.Add(dropWait)
		d.drop("done", 1)
		d.checkSecrets("default", 1)
	})

	t.Run("given another rotation while copies may be left, then the resealing begins again", func(t *testing.T) {
		d := newDeployment(t)
		d.register("default", "https://example.com/", &Sealer{DB: d.db})
		d.rotate()
		d.drop(waiting, 0)
		d.rotate()
		d.now = d.now.Add(dropWait)
		d.drop(waiting, 0)
		d.checkSecrets("default", 1)
	})

	t.Run("given a promotion that crashed before it wrote the public keyset, then the key that still seals stays", func(t *testing.T) {
		d := newDeployment(t)
		d.rotate()
		expect.OK(t, Rotate(t.Context(), d.db, d.w, stepAdd))
		if err := Rotate(t.Context(), &breaking{d.db, 1}, d.w, stepPromote); !errors.Is(err, errCrashed) {
			t.Fatalf("got %v, want a crash", err)
		}
		d.drop(waiting, 0)
		d.now = d.now.Add(dropWait)
		d.drop("done", 1)
		d.register("default", "https://example.com/", &Sealer{DB: d.db})
		d.checkSecrets("default", 1)
	})

	t.Run("given a call without time, then it visits one page and the next call continues", func(t *testing.T) {
		d := newDeployment(t)
		for _, workspace := range []string{"a", "b", "c"} {
			d.register(workspace, "https://example.com/", &Sealer{DB: d.db})
		}
		d.rotate()
		short, cancel := context.WithTimeout(t.Context(), dropReserve/2)
		defer cancel()
		for n, want := range []string{resealing, resealing, waiting} {
			expect.Equal(t, fmt.Sprintf("the phase of call %d", n+1), expect.Value(Drop(short, d.db, d.w, d.now))(t).Phase, want)
		}
		d.now = d.now.Add(dropWait)
		d.drop("done", 1)
		for _, workspace := range []string{"a", "b", "c"} {
			d.checkSecrets(workspace, 1)
		}
	})

	t.Run("given a crash at any write, then every secret can be opened and a later call completes the removal", func(t *testing.T) {
		for writes := 0; ; writes++ {
			d := newDeployment(t)
			d.register("a", "https://example.com/", &Sealer{DB: d.db})
			d.rotate()
			d.register("b", "https://example.com/", &Sealer{DB: d.db})
			d.rotate()
			db := &breaking{d.db, writes}
			var err error
			for range 2 {
				if _, err = Drop(t.Context(), db, d.w, d.now); err != nil {
					break
				}
				d.now = d.now.Add(dropWait)
			}
			if err != nil && !errors.Is(err, errCrashed) {
				t.Fatalf("after %d writes: %v", writes, err)
			}
			d.checkSecrets("a", 1)
			d.checkSecrets("b", 1)
			for range 3 {
				expect.OK(t, expect.ErrOf(Drop(t.Context(), d.db, d.w, d.now)), "after a crash at write", writes+1)
				d.now = d.now.Add(dropWait)
			}
			expect.Equal(t, fmt.Sprintf("the keys after a crash at write %d", writes+1), d.keys(), 1)
			d.checkSecrets("a", 1)
			d.checkSecrets("b", 1)
			if err == nil {
				return
			}
		}
	})

	t.Run("given two calls at the same time, then one of them is refused", func(t *testing.T) {
		d := newDeployment(t)
		d.register("default", "https://example.com/", &Sealer{DB: d.db})
		d.rotate()
		other := &interrupted{DB: d.db, before: func() { d.drop(waiting, 0) }}
		expect.Fault(t, "the call during another one", expect.ErrOf(Drop(t.Context(), other, d.w, d.now)), fault.Conflict)
		d.checkSecrets("default", 1)
	})

	t.Run("given a rotation while keys are removed, then the removal is refused", func(t *testing.T) {
		d := newDeployment(t)
		d.rotate()
		d.drop(waiting, 0)
		d.now = d.now.Add(dropWait)
		other := &interrupted{DB: d.db, before: d.rotate}
		expect.Fault(t, "the call during a rotation", expect.ErrOf(Drop(t.Context(), other, d.w, d.now)), fault.Conflict)
		expect.Equal(t, "the keys", d.keys(), 3)
	})
}

// interrupted is a store that calls a function before a write, after a number of other writes.
type interrupted struct {
	store.DB
	after  int
	before func()
}

func (i *interrupted) Write(ctx context.Context, ops ...store.Op) error {
	i.after--
	if before := i.before; before != nil && i.after < 0 {
		i.before = nil
		before()
	}
	return i.DB.Write(ctx, ops...)
}
