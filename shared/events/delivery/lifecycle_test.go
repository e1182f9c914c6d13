package delivery

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// lives is a rig in which one delivery is brought into states and makes steps.
type lives struct {
	*rig
	sub   *subscription.Subscription
	event event.Event
}

const lifeOrigin = "https://hooks.example.com"

func newLives(t *testing.T) *lives {
	r := newRig(t)
	l := &lives{rig: r, sub: r.register("event://ci/build-finished")}
	l.event = event.Event{
		Workspace: "default", ID: "evt_1", URI: "event://ci/build-finished", Name: "ci.build_finished", Time: r.now, Published: r.now, Data: []byte(`{"ok":true}`),
	}
	r.pause(switches.Origin(lifeOrigin), nil)
	r.suspend(l.sub.ID)
	return l
}

// worker is a process that has read the delivery. It is nil where a message is stale.
type worker struct {
	*lives
	d   *Dispatcher
	del *state.Delivery
}

// reads starts a worker in the way in which its message would. A page and an operator bring a new delivery, a message of
// the slow lane the stored one, and a refresh the suspended one.
func (l *lives) reads(stage string, attempt int) (worker, error) {
	_, d, _ := l.process()
	d.Switches = &switches.Set{DB: d.DB, Now: d.Now}
	w := worker{l, d, nil}
	sub := l.sub.Subscriber()
	var err error
	switch stage {
	case state.None, state.Dead:
		w.del = state.New(&sub, &l.event, l.now)
	case state.Pending, state.Paused:
		w.del, _, err = d.deliveries.Current(l.t.Context(), task.Single{Workspace: "default", Subscription: sub.ID, Event: l.event.ID, Key: l.event.Key(), Attempt: attempt})
	case state.Suspended:
		items, getErr := d.DB.Get(l.t.Context(), state.Key("default", sub.ID, l.event.Key()))
		if err = getErr; err == nil && items[0] != nil {
			if w.del, err = state.Decode(items[0]); w.del.State != state.Suspended {
				w.del = nil
			}
		}
	}
	return w, err
}

// make makes a step.
func (w worker) make(s state.Step) (whose state.Claim, err error) {
	ctx := w.t.Context()
	before, version := w.del.Stored, w.del.Version
	claimed := func() state.Claim { // of a step whose function does not return it
		if w.del.Version != version {
			return state.Mine
		}
		return state.Others
	}
	sub := w.sub.Subscriber()
	failed := func() {
		w.del.Attempts = append(w.del.Attempts, state.Result{At: w.now, Category: "http_5xx", Status: 500})
	}
	switch s {
	case state.StepSchedule:
		if before != state.Suspended {
			failed()
		}
		return w.d.deliveries.Schedule(ctx, w.del, &w.event, w.now.Add(5*time.Minute))
	case state.StepPause:
		how, err := w.d.judge(ctx, review.Right{}, &sub, &w.event)
		if err != nil || how.action != pause {
			return 0, fmt.Errorf("no switch pauses it (%w)", err)
		}
		return w.d.deliveries.Pause(ctx, w.del, &w.event, w.d.Switches, how.paused)
	case state.StepSuspend:
		err := w.d.manager.SuspendDelivery(ctx, w.del, &w.event)
		return claimed(), err
	case state.StepGiveUp:
		failed()
		return w.d.outcomes.DeadLetter(ctx, w.del, &w.event)
	case state.StepForget:
		return state.Mine, state.WriteNotes(ctx, w.d.DB, w.del.Forget())
	}
	return 0, fmt.Errorf("no step %q", s)
}

// bring brings the delivery into a state and returns the number of its next attempt.
func (l *lives) bring(stage string) (attempt int) {
	l.t.Helper()
	if stage == state.None {
		return 1
	}
	for s, to := range state.Lifecycle[state.None] {
		if to.State != stage {
			continue
		}
		w, err := l.reads(state.None, 1)
		if err == nil {
			_, err = w.make(s)
		}
		if err != nil {
			l.t.Fatal(err)
		}
		return len(w.del.Attempts) + 1
	}
	l.t.Fatalf("no step leads to %q", stage)
	return 0
}

// storedLife is everything that the store has of the delivery.
type storedLife struct {
	stage                string
	due, waiting, bodies int
	letters              int
}

func (l *lives) storedLife() (s storedLife) {
	l.t.Helper()
	items, err := l.db.Get(l.t.Context(), state.Key("default", l.sub.ID, l.event.Key()), state.BodyKey("default", l.event.Key()))
	if err != nil {
		l.t.Fatal(err)
	}
	if items[0] != nil {
		del, err := state.Decode(items[0])
		if err != nil {
			l.t.Fatal(err)
		}
		s.stage = del.Stored
	}
	if items[1] != nil {
		s.bodies = 1
	}
	count := func(partition string) int {
		page, err := l.db.Query(l.t.Context(), store.Query{Table: store.Deliveries, Partition: partition, Limit: 1000})
		if err != nil {
			l.t.Fatal(err)
		}
		return len(page.Items)
	}
	for minute := range 120 {
		for shard := range state.DueShards {
			s.due += count(state.DuePartition(shard, l.now.Add(time.Duration(minute-60)*time.Minute)))
		}
	}
	for shard := range 4 {
		s.waiting += count(fmt.Sprintf("paused#default#%d#%s", shard, switches.Origin(lifeOrigin)))
	}
	s.letters = count(state.LettersOf("default", l.sub.ID).Partition)
	return s
}

// want returns the stored items that the table prescribes after a step.
func want(from string, s state.Step) storedLife {
	to := state.Lifecycle[from][s]
	w := storedLife{stage: to.State, bodies: 1}
	if to.Due {
		w.due = 1
	}
	if to.State == state.Paused {
		w.waiting = 1
	}
	if from == state.Dead {
		w.letters++ // it stays
	}
	if to.Letter {
		w.letters++
	}
	if from == state.None && to.State == state.None {
		w.bodies = 0
	}
	return w
}

// TestADeliveryLivesByItsTable: WHK-18, WHK-23. From each state each step leads to the state that the table names, with its
// due entry or dead letter, although the process dies before or after any write of it and another one repeats the step.
func TestADeliveryLivesByItsTable(t *testing.T) {
	for from, steps := range state.Lifecycle {
		for s := range steps {
			if from == state.None && s == state.StepForget {
				continue // writes nothing
			}
			t.Run(fmt.Sprintf("WHK-18 %s when it is %q", s, from), func(t *testing.T) {
				crashes := 0
				atEachStep(t, 2, func(point int, late bool) bool {
					l := newLives(t)
					attempt := l.bring(from)
					l.now = l.now.Add(time.Minute)
					l.budget, l.late = point, late
					for {
						w, err := l.reads(from, attempt)
						if err == nil && w.del != nil {
							_, err = w.make(s)
						}
						if err == nil {
							break
						}
						if !l.dead {
							t.Fatal(err)
						}
						l.dead, l.budget = false, 0
						l.now = l.now.Add(time.Second)
						crashes++
					}
					got, want := l.storedLife(), want(from, s)
					if late && state.Lifecycle[from][s].Letter && got.letters == want.letters+1 {
						got.letters-- // a page that is repeated after its last write gives up once more
					}
					if got != want {
						t.Fatalf("death at step %d (late %v): got %+v, want %+v", point, late, got, want)
					}
					return l.budget > 0
				})
				if crashes == 0 {
					t.Error("no process died")
				}
			})
		}
	}
}

// TestTwoWorkersHaveOneDelivery: WHK-23. Two workers read the same delivery, and both make a step: one of them owns it, and
// the other one finds out whether its attempts continue or it is over.
func TestTwoWorkersHaveOneDelivery(t *testing.T) {
	for from, steps := range state.Lifecycle {
		for first := range steps {
			for second := range steps {
				if second == state.StepForget {
					continue // does not say whose the delivery is
				}
				t.Run(fmt.Sprintf("WHK-23 first %s, then %s when it was %q", first, second, from), func(t *testing.T) {
					l := newLives(t)
					attempt := l.bring(from)
					a, err := l.reads(from, attempt)
					if err != nil {
						t.Fatal(err)
					}
					b, err := l.reads(from, attempt)
					if err != nil {
						t.Fatal(err)
					}
					if whose, err := a.make(first); err != nil || whose != state.Mine {
						t.Fatalf("the first worker got %d, %v", whose, err)
					}
					after := state.Lifecycle[from][first].State
					want := state.Lost(after)
					if from == state.None || from == state.Dead {
						want = state.Meets(after)
					}
					got, err := b.make(second)
					if second == state.StepPause || second == state.StepSuspend { // do not return it
						if (got == state.Mine) != (want == state.Mine) {
							t.Errorf("the second worker made its step: %v, want %v (%v)", got == state.Mine, want == state.Mine, err)
						}
						return
					}
					if err != nil || got != want {
						t.Errorf("the second worker got claim %d, %v, want %d", got, err, want)
					}
				})
			}
		}
	}
}

// TestTheTableIsClosed: each state that a step leads to has steps of its own, and each delivery can end.
func TestTheTableIsClosed(t *testing.T) {
	for from, steps := range state.Lifecycle {
		for s, to := range steps {
			if _, ok := state.Lifecycle[to.State]; !ok {
				t.Errorf("%s leads from %q to %q, which is no state", s, from, to.State)
			}
			if to.Due != (to.State == state.Pending) {
				t.Errorf("%s leads from %q to %q with a due entry: %v", s, from, to.State, to.Due)
			}
			if to.Letter != (to.State == state.Dead) {
				t.Errorf("%s leads from %q to %q with a letter: %v", s, from, to.State, to.Letter)
			}
		}
	}
	t.Run("WHK-18 a step that is not in it is refused", func(t *testing.T) {
		l := newLives(t)
		l.bring(state.Suspended)
		w, err := l.reads(state.Suspended, 1)
		if err != nil {
			t.Fatal(err)
		}
		if whose, err := w.d.deliveries.GiveUp(context.Background(), w.del, nil); err == nil || !strings.Contains(err.Error(), "give up") {
			t.Errorf("got claim %d, %v, want an error", whose, err)
		}
	})
}
