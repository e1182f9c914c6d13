package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/demand/intake"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// faulty is a store whose writes of leases fail while a test demands it.
type faulty struct {
	store.DB
	mu     sync.Mutex
	writes int // of leases, since fault was set
	fault  func(n int, write func() error) error
}

var errStore = errors.New("the store does not answer")

func (f *faulty) Write(ctx context.Context, ops ...store.Op) error {
	write := func() error { return f.DB.Write(ctx, ops...) }
	f.mu.Lock()
	fault := f.fault
	if ops[0].Kind != store.OpPut || fault == nil {
		f.mu.Unlock()
		return write()
	}
	f.writes++
	n := f.writes
	f.mu.Unlock()
	if err := fault(n, write); !errors.Is(err, errHangs) {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

var errHangs = errors.New("the store hangs")

func (f *faulty) set(fault func(n int, write func() error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.writes = fault, 0
}

// newBackend returns a backend that does not answer.
func newBackend() *backends.Backend {
	set := backends.New(backends.Options{HTTP: http.DefaultClient, Drops: &metric.Tally{Log: slog.New(slog.DiscardHandler)}})
	return set.Replace(context.Background(), []api.Backend{{Name: "b", Workspace: "default", URL: "http://127.0.0.1:1/mcp"}})[0]
}

// GWN-03: a lease survives failed renewals while it lasts. A holder that cannot renew it stops before the lease expires for others.
func TestRenewalsAreTriedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		fault    func(n int, write func() error) error
		keeps    bool
		attempts int // at the least
	}{
		"one renewal fails": {func(n int, write func() error) error {
			if n == 1 {
				return errStore
			}
			return write()
		}, true, 2},
		"four renewals fail": {func(n int, write func() error) error {
			if n <= 4 {
				return errStore
			}
			return write()
		}, true, 5},
		"a renewal is written, and the answer lost": {func(n int, write func() error) error {
			if err := write(); n == 1 && err == nil {
				return errStore
			}
			return nil
		}, true, 2},
		"the store is gone": {func(int, func() error) error { return errStore }, false, 4},
		"the store hangs":   {func(int, func() error) error { return errHangs }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
				defer func() { _ = db.Close() }()
				store, backend := &faulty{DB: db}, &follower{Backend: newBackend()}
				first := &Relay{DB: store, Log: slog.New(slog.DiscardHandler), Lease: 30 * time.Second}
				second := &Relay{DB: db, Log: first.Log, Lease: first.Lease}
				held, err := first.acquire(t.Context(), backend)
				if held == nil || err != nil {
					t.Fatalf("got %v, %v", held, err)
				}
				defer held.release()
				store.set(tc.fault)
				for began := time.Now(); time.Since(began) < 2*time.Minute && held.ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
					rival := expect.Value(second.acquire(t.Context(), backend))(t)
					if rival != nil {
						rival.release()
						t.Fatalf("after %s another one has the lease, too", time.Since(began))
					}
				}
				expect.Equal(t, "whether the lease is kept", held.ctx.Err() == nil, tc.keeps)
				if store.writes < tc.attempts || !tc.keeps && store.writes > 10 {
					t.Errorf("%d renewals were tried", store.writes)
				}
				if !tc.keeps {
					item, err := held.read(t.Context())
					if err != nil || item == nil || time.Until(item.Expires) < 4*time.Second {
						t.Errorf("the holder acted until its lease %+v expired: %v", item, err)
					}
				}
			})
		})
	}
}

// TestSpread draws the pauses of a thousand relays whose backend cannot be reached.
func TestSpread(t *testing.T) {
	t.Run("GWN-07 the jitter of reconnecting, from 1 s to 60 s", func(t *testing.T) {
		least, most := new(Relay).pauses()
		expect.Equal(t, "the shortest time", least, time.Second)
		expect.Equal(t, "the longest time", most, time.Minute)
		for wait := least; ; wait = min(2*wait, most) {
			from, to := min(wait, most/2), min(2*wait, most)
			early, late := 0, 0
			for range 1000 {
				pause := spread(wait, most)
				if pause < from || pause > to || pause < time.Second || pause > time.Minute {
					t.Fatalf("a pause of %v, want %v to %v", pause, from, to)
				}
				if pause < from+(to-from)/2 {
					early++
				} else {
					late++
				}
			}
			if early < 400 || late < 400 { // 500 ± 16; seven of these are one in 10^9
				t.Errorf("%d of 1000 pauses are in the first half of %v to %v", early, from, to)
			}
			if wait == most {
				return
			}
		}
	})
}

// GWN-22: a backend that sends gaps, positions or malformed messages as fast as it can is read no faster than the limits.
func TestFloodsOfABackend(t *testing.T) {
	t.Run("gaps", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gaps := 0
			e := &receiver{
				Events:  &Events{Intake: intake.Intake{Gap: func(context.Context, string, string) error { gaps++; return nil }}},
				backend: &follower{Backend: newBackend()}, limit: rate.NewLimiter(eventRate, eventBurst),
			}
			for began := time.Now(); time.Since(began) < time.Second; {
				expect.OK(t, e.announceGap(t.Context(), "event://~b/x/e30"))
			}
			expect.AtMost(t, "the gaps in a second", gaps, (eventRate+eventBurst)/gapCost+1)
		})
	})
	t.Run("lines of a stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const lines = 10 * lineBurst
			body := io.NopCloser(strings.NewReader(strings.Repeat(":\n", lines)))
			began := time.Now()
			n := expect.Value(io.Copy(io.Discard, limitedStream{body, t.Context(), rate.NewLimiter(lineRate, lineBurst)}))(t)
			expect.Equal(t, "the bytes", int(n), 2*lines)
			if took, least := time.Since(began), 15*time.Second; took < least {
				t.Errorf("%d lines took %s, want at least %s", lines, took, least)
			}
		})
	})
	t.Run("lines of the log", func(t *testing.T) {
		var text strings.Builder
		log := limitLog(slog.New(slog.NewTextHandler(&text, nil))).With("name", "x")
		for range 1000 {
			log.Warn("server reported an error")
		}
		if n := strings.Count(text.String(), "\n"); n < logBurst || n > logBurst+5 {
			t.Errorf("got %d lines, want about %d", n, logBurst)
		}
	})
	t.Run("changes of its event types", func(t *testing.T) {
		e, lists := newListing(t, `{"events":[]}`)
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		go func() {
			for ctx.Err() == nil {
				select {
				case e.backend.typesChanged <- struct{}{}:
				case <-ctx.Done():
				}
			}
		}()
		_ = e.run(ctx, catalog.BackendTypes{}) // ends with ctx
		expect.AtMost(t, "the reads of the list", int(lists.Load()), changeBurst+3)
	})
	t.Run("event types that cannot be used", func(t *testing.T) {
		bad := fmt.Sprintf(`{"name":"../x","description":%q},`, strings.Repeat("x", 4000))
		e, lists := newListing(t, `{"events":[`+strings.Repeat(bad, maxListed/4000)+`{"name":"."}],"nextCursor":"more"}`)
		expect.OK(t, e.list(t.Context(), catalog.BackendTypes{}))
		expect.Equal(t, "the pages", int(lists.Load()), 1)
	})
}

// newListing returns a receiver for a backend whose pages of event types are all the same, and how many it has sent.
func newListing(t *testing.T, page string) (*receiver, *atomic.Int32) {
	t.Helper()
	lists := &atomic.Int32{}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		lists.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":`+page+`}`)
	}))
	t.Cleanup(backend.Close)
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	c := expect.Value(client.Connect(t.Context(), backend.URL, client.Options{Revision: string(spec.V20260728)}))(t)
	return &receiver{
		Events: &Events{
			Intake: intake.Intake{Demand: demand.New(db)}, Configured: func(context.Context) ([]api.Backend, error) { return nil, nil },
			Changed: func(context.Context) error { return nil },
		},
		relay: &Relay{DB: db, Log: slog.New(slog.DiscardHandler)}, client: c, version: spec.V20260728,
		backend: &follower{Backend: newBackend(), typesChanged: make(chan struct{}, 1)},
	}, lists
}

// unreadable is a store that cannot be read.
type unreadable struct{ store.DB }

func (unreadable) Get(context.Context, ...store.Key) ([]*store.Item, error) { return nil, errStore }

// GWN-21: a subscription that will be repeated has no new state, and its error is logged once. A lasting error is its state.
func TestFailedSubscriptionIsLoggedOnce(t *testing.T) {
	for uri, want := range map[string]int{
		"event://~b/x/e30": 1,
		"no such URI":      2, // its state cannot be recorded either
	} {
		synctest.Test(t, func(t *testing.T) {
			var lines expect.Buffer
			db := &faulty{DB: unreadable{}, fault: func(int, func() error) error { return errStore }}
			e := &receiver{
				Events: &Events{Intake: intake.Intake{Demand: demand.New(db)}}, relay: &Relay{DB: db, Log: slog.New(slog.NewTextHandler(&lines, nil))},
				backend: &follower{Backend: newBackend()},
			}
			r := e.start(t.Context(), uri, client.ModePoll, false)
			time.Sleep(retryAfter / 2)
			r.stop()
			if n := strings.Count(lines.String(), "\n"); n != want || !strings.Contains(lines.String(), "subscription to events ended") {
				t.Errorf("%s: got %d lines, want %d:\n%s", uri, n, want, lines.String())
			}
		})
	}
}

// busy returns a relay that looks for backends until it is canceled. It calls started before and ended after.
func busy(started, ended func()) *Relay {
	return &Relay{Log: slog.New(slog.DiscardHandler), Backends: func(ctx context.Context) []*backends.Backend {
		started()
		defer ended()
		<-ctx.Done()
		return nil
	}}
}

// GWN-03: an invocation of 15 minutes ends 15 s before Lambda would end it, after its backends were offered to the next
// invocation for 225 s. If it dies, others wait for 30 s.
func TestAnInvocationEndsBeforeItsTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var relay *Relay
		invocations := NewInvocations(func() *Relay {
			relay = busy(func() {}, func() {})
			return relay
		})
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		began := time.Now()
		expect.OK(t, invocations.Serve(ctx))
		if took := time.Since(began); took != 885*time.Second || relay.Handover != 225*time.Second || relay.Lease != 30*time.Second {
			t.Errorf("got an invocation of %s with a handover of %s and a lease of %s, want 14m45s, 3m45s and 30s", took, relay.Handover, relay.Lease)
		}
	})
}

func TestInvocationsRunOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := 0
		invocations := NewInvocations(func() *Relay {
			return busy(func() {
				if running++; running > 1 {
					t.Error("got two relays at the same time, want one")
				}
			}, func() { running-- })
		})
		for range 2 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_ = invocations.Serve(ctx)
			}()
		}
		time.Sleep(3 * time.Minute)
		invocations.Shutdown(time.Second)
	})
}

// GWN-03: Lambda sends SIGTERM before it ends the process, and the running invocation ends in time.
func TestShutdownEndsTheRunningInvocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{})
		invocations := NewInvocations(func() *Relay { return busy(func() { close(started) }, func() {}) })
		ended := make(chan struct{})
		go func() {
			_ = invocations.Serve(t.Context())
			close(ended)
		}()
		<-started
		began := time.Now()
		invocations.Shutdown(450 * time.Millisecond)
		<-ended
		expect.Equal(t, "the time until the invocation ended", time.Since(began), 0)
	})
}

// want adds n subscriptions of a principal.
func want(wanted map[string][]string, principal string, n int) {
	for i := range n {
		uri := fmt.Sprintf("%s/%d", principal, i)
		wanted[uri] = append(wanted[uri], principal)
	}
}

// GWN-21: principals share the subscriptions at a backend. None is refused because another one wants many.
func TestShare(t *testing.T) {
	const room = 30
	wanted, chosen := map[string][]string{}, map[string]bool{}
	choose := func(what string, want map[string]int) {
		t.Helper()
		for range 2 { // the second time, nothing has changed
			before := chosen
			chosen = chooseSubscriptions(wanted, func(uri string) bool { return before[uri] }, room)
			got := map[string]int{}
			for uri := range chosen {
				for _, p := range wanted[uri] {
					got[p]++
				}
			}
			expect.Map(t, what, got, want)
		}
	}
	want(wanted, "a", 20)
	choose("there is room for all", map[string]int{"a": 20})
	want(wanted, "b", 20)
	choose("two share the room", map[string]int{"a": 15, "b": 15})
	want(wanted, "c", 4)
	choose("one with few gets all of them", map[string]int{"a": 13, "b": 13, "c": 4})
	for uri, of := range wanted {
		if of[0] == "a" {
			wanted[uri] = append(of, "d")
		}
	}
	choose("equal interests share one", map[string]int{"a": 13, "b": 13, "c": 4, "d": 13})
	clear(wanted)
	for i := range 2 * room {
		want(wanted, fmt.Sprintf("p%02d", i), 1)
	}
	late := map[string]bool{}
	for i := range room {
		late[fmt.Sprintf("p%02d/0", room+i)] = true
	}
	expect.Map(t, "the shares of principals with one each", chooseSubscriptions(wanted, func(uri string) bool { return late[uri] }, room), late)
}

// GWN-21: given a backend with as many subscriptions as it may have, then one of a principal with many gives way to a principal with few. The
// same applies if the backend acts for its callers, so that each subscription is for one principal.
func TestSubscriptionsGiveWay(t *testing.T) {
	for name, perCaller := range map[string]bool{"shared": false, "with callers' tokens": true} {
		t.Run("GWN-21 "+name, func(t *testing.T) { testGiveWay(t, perCaller) })
	}
}

func testGiveWay(t *testing.T, perCaller bool) {
	e, _ := newListing(t, `{"events":[]}`)
	e.modes, e.running, e.refused = map[string]string{"e": client.ModePoll}, map[string]*reception{}, map[string]time.Time{}
	e.limit, e.Gap = rate.NewLimiter(eventRate, eventBurst), func(context.Context, string, string) error { return nil }
	e.perCaller = perCaller
	e.Demand.Start = time.Nanosecond // no relay answers
	e.Demand.Key = func(context.Context) ([]byte, error) { return []byte("the key of the deployment"), nil }
	place, ended, stopped := e.backend.Place(), make(chan struct{}), 0
	close(ended)
	want := func(principal, arguments string) (uri string) {
		t.Helper()
		ctx := t.Context()
		uri = fmt.Sprintf("event://~%s/e/%s", place.Backend, arguments)
		if perCaller {
			uri += "." + catalog.CallerID(principal)
			ctx = auth.WithToken(ctx, auth.Token{Header: "Bearer " + principal})
		}
		expect.OK(t, e.Demand.Want(ctx, place.Workspace, principal, uri))
		return uri
	}
	var many []string
	for i := range maxReceptions {
		uri := want(fmt.Sprint("p", i/200), fmt.Sprintf("%04d", i))
		e.running[uri] = &reception{cancel: func() { stopped++ }, done: ended}
		many = append(many, uri)
	}
	few := want("few", "e30")
	for range 2 {
		expect.OK(t, e.adjust(t.Context()))
	}
	if e.running[few] == nil || len(e.running) != maxReceptions || stopped != 1 {
		t.Errorf("got %d subscriptions after %d were stopped, want %d after one", len(e.running), stopped, maxReceptions)
	}
	refused := 0
	for _, uri := range many {
		if s, err := e.Demand.LoadState(t.Context(), place.Workspace, uri); s.Error != "" || err != nil {
			refused++
		}
	}
	expect.Equal(t, "the subscriptions with an error", refused, 1)
	e.end()
}
