package demand

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

const uri = "event://~shop/order.shipped/e30"

func newRegistry(t *testing.T) *Registry {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return New(db)
}

func (r *Registry) isWanted(t *testing.T) bool {
	t.Helper()
	return len(expect.Value(r.ListWanted(t.Context(), "default", "shop"))(t)[uri]) > 0
}

// TestDemandEndsAfterItsGracePeriod rewrites the items instead of waiting.
func TestDemandEndsAfterItsGracePeriod(t *testing.T) {
	r := newRegistry(t)
	expect.OK(t, r.SetState(t.Context(), "default", uri, State{Active: true}))
	expect.OK(t, r.Want(t.Context(), "default", "alice", uri))
	expect.True(t, "GWN-21 a demand lasts", r.isWanted(t))
	lapse := func() {
		it := item(wantKey("default", "alice", uri), []byte(uri), time.Now().Add(-keep-time.Second))
		expect.OK(t, r.DB.Write(t.Context(), store.Put(it)))
	}
	header := store.Item{Key: subscription.HeaderKey("default", uri), Counts: map[string]int64{"n": 1}}
	expect.MustEqual(t, "the count of the header", subscription.HeaderCount(&header), 1)
	expect.OK(t, r.DB.Write(t.Context(), store.Put(header)))
	lapse()
	expect.True(t, "GWN-21 a demand lasts while a webhook subscription has the URI", r.isWanted(t))
	expect.OK(t, r.DB.Write(t.Context(), store.Delete(header.Key)))
	lapse()
	expect.True(t, "GWN-21 a demand ends after its grace period", !r.isWanted(t))
	if it := expect.Value(store.One(t.Context(), r.DB, wantKey("default", "alice", uri), ""))(t); it != nil {
		t.Error("GWN-21 an ended demand stays stored")
	}
}

// GWN-21: a process that Lambda froze renews a demand, although its monotonic clock stood still.
func TestDemandIsRenewedAfterAFreeze(t *testing.T) {
	r := newRegistry(t)
	expect.OK(t, r.SetState(t.Context(), "default", uri, State{Active: true}))
	expect.OK(t, r.Want(t.Context(), "default", "alice", uri))
	key := wantKey("default", "alice", uri)
	this := renewal{key, hash("")}
	at, known := r.renewed.Get(this)
	expect.MustEqual(t, "whether the process knows the demand", known, true)
	r.renewed.Put(this, periodictest.AfterFreeze(at, -keep))
	expect.OK(t, r.DB.Write(t.Context(), store.Delete(key)))
	expect.OK(t, r.Want(t.Context(), "default", "alice", uri))
	expect.True(t, "GWN-21 the demand is renewed", r.isWanted(t))
}

// TestAMarkIsSeenImmediately: GWN-22. A gap that is repeated right after the first one is recognized.
func TestAMarkIsSeenImmediately(t *testing.T) {
	r := newRegistry(t)
	for i := range 20 {
		id := fmt.Sprintf("gap %d", i)
		expect.OK(t, r.MarkSeen(t.Context(), "default", uri, id))
		if !expect.Value(r.WasSeen(t.Context(), "default", uri, id))(t) {
			t.Fatalf("GWN-22 WasSeen does not know %q right after MarkSeen", id)
		}
	}
}

// GWN-21: a client gets the error of a refused subscription, and cannot want more than its share. Large demands count like small ones.
func TestWantIsRefused(t *testing.T) {
	r := newRegistry(t)
	r.DB = smallPages{r.DB}
	expect.OK(t, r.SetState(t.Context(), "default", uri, State{Error: "no such order"}))
	expect.Fault(t, "a refused subscription", r.Want(t.Context(), "default", "alice", uri), fault.Unavailable)
	for i := range maxWanted {
		other := fmt.Sprintf("event://~shop/other/%d", i)
		expect.OK(t, r.DB.Write(t.Context(), store.Put(item(wantKey("default", "bob", other), []byte(other), time.Now()))))
	}
	expect.OK(t, r.SetState(t.Context(), "default", uri, State{Active: true}))
	expect.Fault(t, "one more than allowed", r.Want(t.Context(), "default", "bob", uri), fault.Exhausted)
	expect.OK(t, r.Want(t.Context(), "default", "carol", uri))
}

// smallPages is a store whose pages have few items. DynamoDB ends a page after 1 MB, for example after 100 demands with tokens of 10 KB.
type smallPages struct{ store.DB }

func (s smallPages) Query(ctx context.Context, q store.Query) (store.Page, error) {
	q.Limit = min(q.Limit, 70)
	return s.DB.Query(ctx, q)
}

// GWN-21: without a relay, a client waits for a few seconds only.
func TestWantDoesNotWaitForever(t *testing.T) {
	r := newRegistry(t)
	r.Start = 100 * time.Millisecond
	began := time.Now()
	expect.OK(t, r.Want(t.Context(), "default", "alice", uri))
	if took := time.Since(began); took < r.Start || took > 10*time.Second {
		t.Errorf("took %v, want %v", took, r.Start)
	}
}

func newHooks(t *testing.T, key string) *Hooks {
	t.Helper()
	return &Hooks{DB: newRegistry(t).DB, Base: "https://events.example.com/", Key: func(context.Context) ([]byte, error) { return []byte(key), nil }}
}

// GWN-21: a token finds its subscription, and is valid in this deployment and until the subscription ends.
func TestTokensOfHooks(t *testing.T) {
	h := newHooks(t, "a")
	url := expect.Value(h.URL(t.Context(), "default", uri))(t)
	token := path.Base(url)
	expect.Equal(t, "the URL", url, "https://events.example.com"+HookPath+token)
	expect.Fault(t, "a subscription that is not requested", expect.ErrOf(h.Find(t.Context(), token)), fault.NotFound)
	secret := expect.Value(h.Secret(t.Context(), "default", uri))(t)
	found := expect.Value(h.Find(t.Context(), token))(t)
	if found.Workspace != "default" || found.URI != uri || !slices.Equal(found.Secrets, []string{secret}) {
		t.Errorf("found %+v, want the secret %s", found, secret)
	}
	other := *h
	other.Key = newHooks(t, "b").Key
	for what, bad := range map[string]string{"a part": token[:22], "nothing": "", "a guess": strings.Repeat("A", len(token)), "one more": token + "A"} {
		expect.Fault(t, what, expect.ErrOf(h.Find(t.Context(), bad)), fault.NotFound)
	}
	expect.Fault(t, "a token of another deployment", expect.ErrOf(other.Find(t.Context(), token)), fault.NotFound)
	expect.OK(t, h.Remove(t.Context(), "default", uri))
	expect.Fault(t, "an ended subscription", expect.ErrOf(h.Find(t.Context(), token)), fault.NotFound)
}

// GWN-21: the secret changes each day, and the previous ones stay valid for a while, because the backend may still sign with them. A
// subscription is new at the backend if its id changes or its lifetime has ended.
func TestSecretsOfHooksRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
		defer func() { _ = db.Close() }()
		h := &Hooks{DB: db, Key: newHooks(t, "a").Key}
		var secrets []string
		for range 5 {
			secret := expect.Value(h.Secret(t.Context(), "default", uri))(t)
			expect.Equal(t, "the secret of the same day", expect.Value(h.Secret(t.Context(), "default", uri))(t), secret)
			secrets = append([]string{secret}, secrets...)
			time.Sleep(24 * time.Hour)
		}
		url := expect.Value(h.URL(t.Context(), "default", uri))(t)
		found := expect.Value(h.Find(t.Context(), path.Base(url)))(t)
		expect.List(t, "the valid secrets, which are the newest", found.Secrets, secrets[:maxDays])
		for _, step := range []struct {
			id    string
			pass  time.Duration
			fresh bool
		}{{"s1", 0, true}, {"s1", time.Minute, false}, {"s2", time.Minute, true}, {"s2", 2 * time.Hour, true}, {"s2", 0, false}} {
			time.Sleep(step.pass)
			fresh := expect.Value(h.RecordAccepted(t.Context(), "default", uri, step.id, time.Now().Add(time.Hour)))(t)
			expect.Equal(t, step.id+" after "+step.pass.String()+" is new", fresh, step.fresh)
		}
	})
}

// GWN-22: of several gaps, the earliest cursor counts until the relay has subscribed again.
func TestRestarts(t *testing.T) {
	r := newRegistry(t)
	expect.OK(t, r.RequestRestart(t.Context(), "default", Restart{URI: uri, Cursor: "c1"}))
	expect.OK(t, r.RequestRestart(t.Context(), "default", Restart{URI: uri, Cursor: "c2"}))
	all := expect.Value(r.ListRestarts(t.Context(), "default", "shop"))(t)
	if len(all) != 1 || all[0] != (Restart{URI: uri, Cursor: "c1"}) {
		t.Errorf("got %+v", all)
	}
	expect.OK(t, r.FinishRestart(t.Context(), "default", all[0]))
	expect.Equal(t, "the cursor", expect.Value(Cursor{DB: r.DB, Workspace: "default", URI: uri}.Load(t.Context(), ""))(t), "c1")
	all = expect.Value(r.ListRestarts(t.Context(), "default", "shop"))(t)
	expect.Equal(t, "the requests after that", len(all), 0)
	for i := range 150 {
		expect.OK(t, r.RequestRestart(t.Context(), "default", Restart{URI: fmt.Sprint(uri, i)}))
	}
	expect.Len(t, "more requests than one page of the store has", expect.Value(r.ListRestarts(t.Context(), "default", "shop"))(t), 150)
}
