package state

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

const request = 10 * time.Millisecond

// slow is a store and a queue whose requests take a while. It counts the requests and keeps the messages.
type slow struct {
	store.DB
	mu       sync.Mutex
	takes    time.Duration // for a write
	fails    bool          // each write
	writes   int
	messages []task.Single
}

func (s *slow) Write(ctx context.Context, ops ...store.Op) error {
	time.Sleep(s.takes)
	s.mu.Lock()
	s.writes++
	s.mu.Unlock()
	if s.fails {
		return fault.New(fault.Unavailable, "the store is down")
	}
	return s.DB.Write(ctx, ops...)
}

func (s *slow) Send(_ context.Context, _ queue.Name, messages ...queue.Outgoing) error {
	time.Sleep(request)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range messages {
		t, err := task.Decode(m.Body, func(t task.Single) int { return t.V })
		if err != nil {
			return err
		}
		s.messages = append(s.messages, t)
	}
	return nil
}

// inSlowStore runs a test with deliveries whose requests take a while.
func inSlowStore(t *testing.T, do func(t *testing.T, s *slow, ds *Deliveries)) {
	synctest.Test(t, func(t *testing.T) {
		db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
		defer func() { _ = db.Close() }()
		s := &slow{DB: db, takes: request}
		do(t, s, NewDeliveries(s, s, nil, nil))
	})
}

func someEvent(published time.Time) *event.Event {
	return &event.Event{ID: "e1", URI: "event://ci/build-finished", Name: "ci.build_finished", Workspace: "default", Published: published, Time: published, Data: []byte(`{"build":7}`)}
}

func newDelivery(n int, e *event.Event) *Delivery {
	return New(&subscription.Subscriber{ID: fmt.Sprint("sub_", n), Principal: "alice"}, e, time.Now())
}

func TestHandOverTime(t *testing.T) {
	for _, c := range []struct {
		name  string
		delay time.Duration
		takes time.Duration
	}{
		{"the message is sent meanwhile", EarlyMessage, request},
		{"an immediate message is sent afterwards, because it may arrive before the delivery", 0, 2 * request},
	} {
		t.Run("WHK-16 "+c.name, func(t *testing.T) {
			inSlowStore(t, func(t *testing.T, s *slow, ds *Deliveries) {
				e := someEvent(time.Now())
				del, began := newDelivery(1, e), time.Now()
				written, err := ds.Schedule(t.Context(), del, e, began.Add(c.delay))
				if took := time.Since(began); !written || err != nil || took != c.takes {
					t.Fatalf("got written %v, %v after %v, want the delivery after %v", written, err, took, c.takes)
				}
				if len(s.messages) != 1 || s.writes != 1 {
					t.Errorf("got %d messages and %d writes, want one of each", len(s.messages), s.writes)
				}
				current, others, err := ds.LoadCurrent(t.Context(), s.messages[0], BodyKey(e.Workspace, del.EventKey()))
				if err != nil || current == nil || others[0] == nil {
					t.Errorf("the message is for %v with the event %v, %v, want the delivery and its event", current, others, err)
				}
			})
		})
	}
}

func TestEarlyMessages(t *testing.T) {
	t.Run("WHK-18 given a write that takes longer than the delay, when the early message was in vain, then another one follows", func(t *testing.T) {
		inSlowStore(t, func(t *testing.T, s *slow, ds *Deliveries) {
			s.takes = 2 * EarlyMessage
			e := someEvent(time.Now())
			if written, err := ds.Schedule(t.Context(), newDelivery(1, e), e, time.Now().Add(EarlyMessage)); !written || err != nil {
				t.Fatalf("got written %v, %v, want the delivery written", written, err)
			}
			expect.Equal(t, "messages, one before and one after the write", len(s.messages), 2)
		})
	})
	t.Run("WHK-18 given a write that fails, then the early message is stale and the caller gets the error", func(t *testing.T) {
		inSlowStore(t, func(t *testing.T, s *slow, ds *Deliveries) {
			s.fails = true
			e := someEvent(time.Now())
			if written, err := ds.Schedule(t.Context(), newDelivery(1, e), e, time.Now().Add(EarlyMessage)); !fault.Is(err, fault.Unavailable) {
				t.Fatalf("got written %v, %v, want an error of kind unavailable", written, err)
			}
			s.fails = false
			if current, _, err := ds.LoadCurrent(t.Context(), s.messages[0]); current != nil || err != nil {
				t.Errorf("got the delivery %v, %v for the early message, want none", current, err)
			}
			if written, err := ds.Schedule(t.Context(), newDelivery(1, e), e, time.Now().Add(EarlyMessage)); !written || err != nil {
				t.Errorf("got written %v, %v after the failure, want the delivery written", written, err)
			}
		})
	})
	t.Run("WHK-16 given a clock that advances with each reading, then the message is still sent meanwhile", func(t *testing.T) {
		inSlowStore(t, func(t *testing.T, s *slow, _ *Deliveries) {
			var readings time.Duration
			now := func() time.Time { readings += time.Microsecond; return time.Now().Add(readings) }
			ds := NewDeliveries(s, s, now, nil)
			e := someEvent(time.Now())
			began := time.Now()
			if written, err := ds.Schedule(t.Context(), newDelivery(1, e), e, now().Add(EarlyMessage)); !written || err != nil || time.Since(began) != request {
				t.Errorf("got written %v, %v after %v, want the delivery after %v", written, err, time.Since(began), request)
			}
		})
	})
}

func TestConcurrentDeliveriesStoreTheirEventOnce(t *testing.T) {
	t.Run("WHK-16 WHK-22 given twenty deliveries of one event, when they are written concurrently, then the event is written once", func(t *testing.T) {
		inSlowStore(t, func(t *testing.T, s *slow, ds *Deliveries) {
			const n = 20
			e := someEvent(time.Now())
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					if written, err := ds.Schedule(t.Context(), newDelivery(i, e), e, time.Now().Add(time.Minute)); !written || err != nil {
						t.Errorf("delivery %d: got written %v, %v, want it written", i, written, err)
					}
				})
			}
			all.Wait()
			expect.Equal(t, "writes, one of which has the event", s.writes, n)
		})
	})
}

func TestAnotherProcessHasStoredTheEvent(t *testing.T) {
	for name, again := range map[string]time.Duration{"the same event": 0, "an event with its id that was published earlier": 10 * time.Minute} {
		t.Run("WHK-16 EVX-26 "+name, func(t *testing.T) {
			inSlowStore(t, func(t *testing.T, s *slow, other *Deliveries) {
				first := someEvent(time.Now())
				expect.OK(t, expect.ErrOf(other.Schedule(t.Context(), newDelivery(1, first), first, time.Now().Add(time.Minute))))
				ds := NewDeliveries(s, s, nil, nil)
				e := someEvent(first.Published.Add(again))
				del := newDelivery(2, e)
				if written, err := ds.Schedule(t.Context(), del, e, time.Now().Add(time.Minute)); !written || err != nil {
					t.Fatalf("got written %v, %v, want the delivery written", written, err)
				}
				// The last message is for the delivery's final key.
				current, others, err := ds.LoadCurrent(t.Context(), s.messages[len(s.messages)-1], BodyKey(e.Workspace, del.EventKey()))
				if err != nil || current == nil {
					t.Fatalf("the message is for %v, %v, want the delivery", current, err)
				}
				if stored, err := current.EventIn(others[0]); err != nil || stored == nil || !stored.Published.Equal(e.Published) {
					t.Errorf("got the event %v, %v, want the one published at %v", stored, err, e.Published)
				}
			})
		})
	}
}

// A queue refuses a group of other characters, and a retry would then have to
// wait for its due entry.
func TestARetryHasAGroupThatQueuesTake(t *testing.T) {
	seen := map[string]string{}
	for _, target := range []string{"https://a.example/x", "http://127.0.0.1:9999/hook", "https://[2001:db8::1]:8443/"} {
		group := DueEntry{Task: task.Single{Endpoint: task.EndpointID(target)}}.Outgoing(time.Second).Group
		if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`).MatchString(group) {
			t.Errorf("the group of %s is %q, want 1 to 128 letters, digits, _ and -", target, group)
		}
		expect.Equal(t, target+" shares a group with", seen[group], "")
		seen[group] = target
	}
	expect.Differ(t, "the group of another path of the origin", task.EndpointID("https://a.example/x"), task.EndpointID("https://a.example/y"))
	owners := map[string]bool{}
	for _, who := range [][2]string{{"w", "alice"}, {"w", "bob"}, {"v", "bob"}} {
		out := DueEntry{Task: task.Single{Endpoint: "e", Workspace: who[0], Principal: who[1]}}.Outgoing(time.Second)
		if err := queue.Check(queue.Slow, &out); err != nil || owners[out.Owner] {
			t.Errorf("WHK-16: got the owner %q of %v (%v), want one of its own", out.Owner, who, err)
		}
		owners[out.Owner] = true
	}
	expect.Equal(t, "the groups of one path with two queries", task.EndpointID("https://a.example/x?key=1"), task.EndpointID("https://a.example/x?key=2"))
}

// TestTasksWithoutKeyAreRead retries a delivery that was written when deliveries
// were found by the event's id.
func TestTasksWithoutKeyAreRead(t *testing.T) {
	del := &Delivery{Workspace: "default", Subscription: "sub_1", Event: "1", Target: "https://hooks.example.com/a"}
	expect.Equal(t, "the key of the delivery", del.Item().Key, Key("default", "sub_1", "1"))
	var due DueEntry
	expect.OK(t, json.Unmarshal(del.DueItem().Value, &due))
	expect.Equal(t, "the key in its task", due.Task.EventKey(), "1")
}
