package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

// dwell and progressKey repeat unexported values of package lifecycle: the time for which a page may stay queued although
// dispatch makes progress, and the key of that progress.
const dwell = 30 * time.Minute

var progressKey = store.Key{Table: store.Deliveries, Partition: "w#pace", Sort: "-"}

// rateAsk is how often a dispatcher adds up the attempts of a subscription in package retry.
const rateAsk = 5 * time.Second

// gaps returns the number of attempts of each gap notice by its id, and the last attempt.
func (r *rig) gaps(t *testing.T) (ids map[string]int, last webhook.Request) {
	t.Helper()
	ids = map[string]int{}
	for _, p := range r.posts {
		if strings.HasPrefix(p.ID, "msg_gap_") {
			ids[p.ID]++
			last = p
		}
	}
	return ids, last
}

// gapAt returns the position of the cursor in a gap notice.
func (r *rig) gapAt(t *testing.T, p webhook.Request) int64 {
	t.Helper()
	var body map[string]string
	if err := json.Unmarshal(p.Body, &body); err != nil || len(body) != 2 || body["type"] != "gap" {
		t.Fatalf("the notice is %s, %v", p.Body, err)
	}
	return expect.Value(r.sealer.Open("default", body["cursor"]))(t).At
}

// TestGaps: EVX-13. What is lost between two refreshes is announced, with a cursor that covers it.
func TestGaps(t *testing.T) {
	failed := fails(0)

	t.Run("EVX-13 one signed notice for all that an outage abandons, and its cursor lies before all of it", func(t *testing.T) {
		r, id := subscriber(t)
		r.work("well")
		r.work()
		r.subscribe()
		r.script = refuse(r, failed)
		first := r.now
		r.run("one", "two", "three")
		ids, p := r.gaps(t)
		if len(ids) != 1 || ids[p.ID] != 1 {
			t.Fatalf("notices %v, want one", ids)
		}
		if p.SubscriptionID != id || p.URL != "https://hooks.example.com/a" || len(p.Keys) != 1 || string(p.Keys[0]) != "whsec_a" {
			t.Errorf("sent to %s for %s with the keys %q, want the endpoint, %s and one key", p.URL, p.SubscriptionID, p.Keys, id)
		}
		if at := r.gapAt(t, p); at >= first.UnixMicro() || at < first.Add(-2*dwell-time.Minute).UnixMicro() {
			t.Errorf("the cursor lies %v after the first event that was lost, want up to %v before it", time.UnixMicro(at).Sub(first), 2*dwell+time.Minute)
		}
		r.now = r.now.Add(time.Hour)
		second := r.now
		r.run("four")
		if ids, p = r.gaps(t); len(ids) != 2 || r.gapAt(t, p) >= second.UnixMicro() {
			t.Errorf("notices %v after another outage, want two", ids)
		}
	})

	t.Run("EVX-13 an event that waited in its queue while a gap was announced gets a notice of its own", func(t *testing.T) {
		r, id := subscriber(t)
		refuses, announced := refuse(r, failed), time.Time{}
		r.script = func(n int) webhook.Outcome {
			out := refuses(n)
			if out.Status == 200 && announced.IsZero() {
				announced = r.now
			}
			return out
		}
		r.run("first")
		first, _ := r.gaps(t)
		expect.MustLen(t, "the notices of the first lost event", first, 1)
		// Fanout receives this event only now, after the client has read the log to its end.
		accepted := announced.Add(-30 * time.Second)
		r.queues[queue.Events] = append(r.queues[queue.Events], queue.Message{
			ID: "late", Outgoing: r.message("event://ci/build-finished", "ci.build_finished", "late", `{"ok":true}`, accepted), Sent: accepted,
		})
		r.run()
		expect.MustEqual(t, "the delivery", r.deliveryState(id, "late"), "dead")
		ids, p := r.gaps(t)
		if len(ids) != 2 || r.gapAt(t, p) >= accepted.UnixMicro() {
			t.Errorf("both lost events were announced by %d notices, the last with a cursor at %d, want 2 and before %d", len(ids), r.gapAt(t, p), accepted.UnixMicro())
		}
	})

	t.Run("EVX-13 a gap is announced soon although the clock was set back after the last one", func(t *testing.T) {
		r, _ := subscriber(t)
		r.script = refuse(r, failed)
		r.run("first")
		r.now = r.now.Add(-5 * time.Hour)
		began := r.now
		r.run("second")
		if ids, p := r.gaps(t); len(ids) != 2 || p.At.Sub(began) > time.Hour {
			t.Errorf("notices %v, the last after %v, want two within an hour", ids, p.At.Sub(began))
		}
	})

	t.Run("EVX-13 what was settled before is not asked for again", func(t *testing.T) {
		r, _ := subscriber(t)
		r.work("well")
		r.work()
		r.now = r.now.Add(6 * time.Hour)
		_, d, _ := r.process()
		expect.OK(t, d.DB.Write(t.Context(), store.Put(store.Item{Key: progressKey, Counts: map[string]int64{"at": r.now.UnixMicro()}})))
		r.script = refuse(r, failed)
		lost := r.now
		r.run("lost")
		_, p := r.gaps(t)
		expect.AtMost(t, "the time from the cursor to the event that was lost", lost.Sub(time.UnixMicro(r.gapAt(t, p))), dwell+time.Minute)
	})

	t.Run("EVX-13 an endpoint that stays away for longer than its schedule is notified of it when it is back", func(t *testing.T) {
		r, _ := subscriber(t)
		back := r.now.Add(20 * time.Hour)
		r.script = func(int) webhook.Outcome {
			if r.now.Before(back) {
				return failed
			}
			return succeeds(0)
		}
		r.run("lost")
		ids, p := r.gaps(t)
		if len(ids) != 1 || ids[p.ID] <= len(retry.EventsSchedule) || r.now.Before(back) {
			t.Errorf("got notices %v until %v after the endpoint was back, want one, with more than %d attempts", ids, r.now.Sub(back), len(retry.EventsSchedule))
		}
	})

	for name, c := range map[string]struct {
		out   webhook.Outcome
		plain bool
		url   string
		std   bool
	}{
		"EVX-13 the client takes no control messages":     {out: failed, plain: true},
		"EVX-13 the operator lists its target":            {out: failed, url: "https://hooks.example.com/"},
		"EVX-13 the subscription is one of SEP-1803":      {out: failed, std: true},
		"EVX-13 the endpoint turned the event away (410)": {out: webhook.Outcome{Status: 410, Category: webhook.HTTP4xx}},
		"EVX-13 the endpoint turned the event away (413)": {out: webhook.Outcome{Status: 413, Category: webhook.HTTP4xx}},
	} {
		t.Run(name+": no notice", func(t *testing.T) {
			r := newRig(t)
			if c.std {
				r.register("event://ci/build-finished")
			} else {
				r.subscribe(func(s *subscription.SubscribeRequest) { s.Plain = c.plain })
			}
			if c.url != "" {
				r.plain = []string{c.url}
			}
			r.script = refuse(r, c.out)
			r.run("lost")
			if ids, _ := r.gaps(t); len(ids) != 0 || posted(r)["lost"] == 0 {
				t.Errorf("got notices %v and posts %v, want only posts of the event", ids, posted(r))
			}
		})
	}

	for name, refreshed := range map[string]bool{
		"EVX-13 a suspension longer than the log is announced with a fresh cursor, once": false,
		"EVX-13 a suspension that a refresh ended in time is not announced":              true,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.log.Now = func() time.Time { return r.now }
			r.suspendByFailures(t, r.subscribe().ID)
			suspended := r.now
			if refreshed {
				r.script = succeeds
				r.subscribe()
			}
			for r.now.Sub(suspended) < 30*time.Hour {
				r.now = r.now.Add(30 * time.Minute)
				r.run()
			}
			ids, p := r.gaps(t)
			if refreshed {
				expect.Equal(t, "the gap notices", len(ids), 0)
				return
			}
			if len(ids) != 1 || ids[p.ID] != 1 {
				t.Fatalf("notices %v, want one", ids)
			}
			if at := time.UnixMicro(r.gapAt(t, p)); at.After(suspended.Add(3*time.Hour)) || at.Before(suspended.Add(-time.Hour)) {
				t.Errorf("the cursor lies %v after the suspension, want at most 1h before and 3h after it", at.Sub(suspended))
			}
		})
	}
}

// suspendByFailures has an endpoint fail until its subscription is suspended.
func (r *rig) suspendByFailures(t *testing.T, id string) {
	t.Helper()
	r.script = refuse(r, fails(0))
	for i := 0; r.state(id) != subscription.Suspended; i++ {
		if i > 200 {
			t.Fatal("it is not suspended")
		}
		r.work("lost_" + time.Duration(i).String())
		r.now = r.now.Add(rateAsk)
	}
	for range 3 { // the notices for what was abandoned until then
		r.work()
	}
	r.posts = nil
}

// refuse fails events and accepts control messages.
func refuse(r *rig, out webhook.Outcome) func(int) webhook.Outcome {
	return func(n int) webhook.Outcome {
		if strings.HasPrefix(r.posts[n-1].ID, "msg_gap_") {
			return succeeds(0)
		}
		return out
	}
}

// TestGapsSurviveCrashes: EVX-13. A process dies at each step of an abandonment: the gap is announced.
func TestGapsSurviveCrashes(t *testing.T) {
	atEachStep(t, 15, func(point int, late bool) bool {
		r, _ := subscriber(t)
		r.script = refuse(r, fails(0))
		r.publish("lost")
		r.budget, r.late = point, late
		r.run()
		survived := r.budget > 0
		if ids, _ := r.gaps(t); len(ids) != 1 {
			t.Fatalf("death at step %d (late %v): got notices %v, want one", point, late, ids)
		}
		return survived
	})
}

// A client refreshes a subscription to a wildcard less often than the log's retention. The cursors that it gets must lead
// to the events of the wildcard all the same.
func TestCursorsOfAWildcardThatIsSeldomRefreshed(t *testing.T) {
	const uri, pattern = "event://github/acme/site/push", "event://github/acme/*/push"
	push := func(q *subscription.SubscribeRequest) {
		q.Name, q.Arguments = "github.push", json.RawMessage(`{"owner":"acme"}`)
		q.TTL = subscription.TTL{Asked: true, For: 7 * 24 * time.Hour}
	}
	start := func(t *testing.T) *rig {
		r := newRig(t)
		now := func() time.Time { return r.now }
		db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1, Engine: engine.Options{Now: now}}))(t)
		t.Cleanup(func() { _ = db.Close() })
		r.db, r.log = db, &eventlog.Log{DB: db, Now: now}
		r.services = r.service(db, r.log)
		r.subscribe(push)
		return r
	}
	publish := func(r *rig) {
		r.publishTo(uri, "github.push", "e", `{"ok":true}`)
		fanout, _, _ := r.process()
		fanout.Now = func() time.Time { return r.now }
		r.hand(queue.Events, fanout.Handle)
	}
	poll := func(t *testing.T, r *rig, cursor string) []string {
		t.Helper()
		tails := stream.New(r.log, r.db, r.sealer)
		defer tails.Close()
		page := expect.Value(tails.Poll(t.Context(), stream.PollRequest{
			Workspace: "default", Cursor: cursor, Most: 10, Bytes: 1 << 20,
			Pattern: match.Pattern{Kind: match.Wildcard, Key: pattern, Entry: "github.push", Shape: match.Shape{Scope: "entry:github.push", Name: "m2"}},
		}))(t)
		var ids []string
		for _, e := range page.Events {
			ids = append(ids, e.ID)
		}
		return ids
	}
	for _, wait := range []time.Duration{time.Hour, 30 * time.Hour, 6 * 24 * time.Hour} {
		t.Run(fmt.Sprint("EVX-11 the cursor of a refresh does not skip an event whose page waits, after ", wait), func(t *testing.T) {
			r := start(t)
			r.now = r.now.Add(wait)
			publish(r)
			r.now = r.now.Add(2 * time.Second)
			if got, want := poll(t, r, r.subscribe(push).Cursor), "[e]"; fmt.Sprint(got) != want || len(r.posts) > 0 {
				t.Errorf("a poll with the cursor returned %v after %d attempts, want %s after 0", got, len(r.posts), want)
			}
		})
		t.Run(fmt.Sprint("EVX-13 the cursor of a gap notice leads to the lost event, after ", wait), func(t *testing.T) {
			r := start(t)
			r.now = r.now.Add(wait)
			r.script = refuse(r, fails(0))
			publish(r)
			r.run()
			ids, notice := r.gaps(t)
			expect.MustLen(t, "the gap notices", ids, 1)
			var body struct{ Cursor string }
			expect.OK(t, json.Unmarshal(notice.Body, &body))
			expect.Equal(t, "a poll with the cursor", fmt.Sprint(poll(t, r, body.Cursor)), "[e]")
		})
	}
}

// history is a rig whose store has the clock of the test, and what happened in it.
type history struct {
	*rig
	clock  atomic.Int64
	id     string
	random *rand.Rand
	fails  int // of a hundred
	acked  map[string]bool
	body   string               // the cursor of the last body
	seen   map[string]time.Time // when a message was last received
	procs  []handlers
	all    bool // the next batch receives all waiting messages
}

type handlers struct {
	fanout   *fanout.Fanout
	dispatch *Dispatcher
	retry    *retry.Job
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{rig: newRig(t), random: rand.New(rand.NewPCG(seed, 1)), acked: map[string]bool{}, seen: map[string]time.Time{}}
	now := func() time.Time { return time.UnixMicro(h.clock.Load()) }
	h.clock.Store(h.now.UnixMicro())
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1, Engine: engine.Options{Now: now}}))(t)
	t.Cleanup(func() { _ = db.Close() })
	h.db, h.log = db, &eventlog.Log{DB: db, Now: now}
	h.services = h.service(db, h.log)
	h.script = func(n int) webhook.Outcome {
		var body struct{ Cursor string }
		_ = json.Unmarshal(h.posts[n-1].Body, &body)
		h.body = body.Cursor
		if h.random.IntN(100) < h.fails {
			return webhook.Outcome{Status: 503, Category: webhook.HTTP5xx}
		}
		h.acked[h.posts[n-1].ID] = true
		return succeeds(0)
	}
	for range 3 {
		h.procs = append(h.procs, h.start())
	}
	expect.OK(t, expect.ErrOf(h.procs[0].retry.Run(t.Context()))) // it has run every minute before
	h.id = h.subscribe().ID
	return h
}

func (h *history) start() (p handlers) {
	p.fanout, p.dispatch, p.retry = h.process()
	return p
}

func (h *history) wait(d time.Duration) {
	h.now = h.now.Add(d)
	h.clock.Store(h.now.UnixMicro())
}

// batch receives random messages of a queue, and all messages that were last received or sent more than 7 minutes ago.
func (h *history) batch(q queue.Name) (batch []queue.Message) {
	var rest []queue.Message
	for _, m := range h.queues[q] {
		last, received := h.seen[m.ID]
		if !received {
			last = m.Sent
		}
		if h.all || h.now.Sub(last) > 7*time.Minute || h.random.IntN(2) == 0 {
			h.seen[m.ID] = h.now
			batch = append(batch, m)
		} else {
			rest = append(rest, m)
		}
	}
	h.queues[q] = rest
	return batch
}

// handleSome has one of the processes handle some of a queue; it may die over it.
func (h *history) handleSome(q queue.Name, budget int) {
	n := h.random.IntN(len(h.procs))
	p := h.procs[n]
	batch := h.batch(q)
	if len(batch) == 0 {
		return
	}
	h.budget, h.late = budget, h.random.IntN(2) == 0
	handle := map[queue.Name]queue.Handler{
		queue.Events: p.fanout.Handle, queue.Deliveries: p.dispatch.HandlePages, queue.Slow: p.dispatch.HandleSingles,
	}[q]
	failed, err := handle(h.t.Context(), batch)
	died := h.dead
	h.dead, h.budget = false, 0
	if died {
		h.procs[n] = h.start()
	}
	for _, m := range batch {
		if died || err != nil || slices.Contains(failed, m.ID) {
			h.queues[q] = append(h.queues[q], m)
		}
	}
}

func (h *history) retryDue(budget int) {
	n := h.random.IntN(len(h.procs))
	h.budget = budget
	_, _ = h.procs[n].retry.Run(h.t.Context())
	if h.dead {
		h.procs[n] = h.start()
	}
	h.dead, h.budget = false, 0
}

// skipped returns an event that a client would skip if it resumed from the cursor, although the event is still open.
func (h *history) skipped(cursor string) string {
	c, err := h.sealer.Open("default", cursor)
	if err != nil {
		return err.Error()
	}
	entries, _, _, err := h.log.Read(h.t.Context(), eventlog.OwnPartition("default", "event://ci/build-finished"), 0, 1000)
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		if id := e.Event.ID; e.Key <= c.At && !h.acked[id] && h.deliveryState(h.id, id) != "dead" {
			return fmt.Sprintf("%s at %d, cursor at %d, its delivery is %s", id, e.Key, c.At, h.deliveryState(h.id, id))
		}
	}
	return ""
}

// EVX-11: a client that was away for hours after days of events resumes without a gap from the
// cursor of the last webhook that it got.
func TestAResumeAfterDaysIsNoGap(t *testing.T) {
	for name, every := range map[string]int{"hourly": 1, "once": 1000} {
		t.Run("EVX-11 "+name, func(t *testing.T) {
			h := newHistory(t, 1)
			var cursor string
			for hour := range 72 {
				if hour%every == 0 {
					h.publish(fmt.Sprint("e-", hour))
					for range 10 {
						for _, q := range []queue.Name{queue.Events, queue.Deliveries, queue.Slow} {
							h.handleSome(q, 0)
						}
					}
				}
				h.wait(time.Hour)
				if hour%12 == 11 {
					cursor = h.subscribe().Cursor
				}
			}
			if every == 1 {
				cursor = h.body
			}
			h.wait(8 * time.Hour)
			c := expect.Value(h.sealer.Open("default", cursor))(t)
			if _, gap := h.log.StartPosition(c, c.At, h.log.Oldest()); gap {
				t.Errorf("the cursor is at %v, given %v, the log reaches back to %v",
					time.UnixMicro(c.At), time.UnixMicro(c.Given), time.UnixMicro(h.log.Oldest()))
			}
			expect.Equal(t, "the event that the cursor skips", h.skipped(cursor), "")
		})
	}
}

// unreadable is a catalog that cannot be read while it is broken.
type unreadable struct {
	catalog.Source
	broken bool
}

func (u *unreadable) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	if u.broken {
		return nil, errDied
	}
	return u.Source.Catalog(ctx, workspace)
}

// EVX-13: given a gap of a backend whose notice cannot be written at first, then the subscriber gets the notice later, and no other
// webhook.
func TestAGapOfABackendIsAnnouncedAfterAFailure(t *testing.T) {
	for _, tc := range []struct {
		name                        string
		hops                        int
		sealerBroken, catalogBroken bool
	}{
		{"of the notice", 0, true, false},
		{"of the notice, in the last page task", maxHops, true, false},
		{"of the catalog", 0, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			sub := r.subscribe()
			catalogs := &unreadable{Source: r.catalogs}
			r.catalogs = catalogs
			_, d, retry := r.process()
			sealer := d.Gaps.Sealer
			d.Gaps.Sealer = func(ctx context.Context) (*eventlog.Sealer, error) {
				if tc.sealerBroken {
					return nil, errDied
				}
				return sealer(ctx)
			}
			catalogs.broken = tc.catalogBroken
			gap := event.Event{Workspace: "default", ID: "gap", URI: "event://ci/build-finished", Name: "ci.build_finished", Time: r.now, Published: r.now, Gap: true}
			page := task.Pages("default", gap.URI, subscription.RangeOf(sub.ID), 1, []event.Event{gap})[0]
			page.Hops = tc.hops
			r.done(d.HandlePages(t.Context(), []queue.Message{{ID: "1", Outgoing: page.Outgoing(), Sent: r.now}}))
			tc.sealerBroken, catalogs.broken = false, false
			r.drain(d, retry)
			ids, _ := r.gaps(t)
			expect.Len(t, "the notices", ids, 1)
			expect.Len(t, "the webhooks", r.posts, 1)
			expect.Equal(t, "the dead letters", len(r.queues[queue.Dead]), 0)
		})
	}
}
