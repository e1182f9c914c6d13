package delivery

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
)

func TestDeadLettersThatAQueueMoved(t *testing.T) {
	r := newRig(t)
	var log bytes.Buffer
	emf := metric.NewEMF(slog.New(slog.NewJSONHandler(&log, nil)), "stack", time.Now)
	set, err := metric.NewSet(emf.Provider())
	if err != nil {
		t.Fatal(err)
	}
	o := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return r.now }, Metrics: set})
	published := r.now.Add(-time.Hour).UTC().Truncate(time.Microsecond)
	e := event.Event{Workspace: "default", ID: "evt_1", URI: "event://a/b", Name: "a.b", Time: published, Published: published}
	body, _ := e.MarshalJSON()
	batch := []queue.Message{
		{ID: "1", From: queue.Events, Sent: r.now, Outgoing: queue.Outgoing{Body: body, Group: "g"}},
		{ID: "2", From: queue.Slow, Sent: r.now.Add(-time.Minute), Outgoing: queue.Outgoing{Body: []byte("no delivery")}},
		{ID: "3", Sent: r.now, Outgoing: queue.NewDeadLetter(queue.Inbox, queue.Message{ID: "4", Sent: r.now}, "no event", nil, r.now)},
	}
	r.done(o.File(t.Context(), batch))
	letters, _, err := o.Letters(t.Context(), "default", deadletter.LetterQuery{}, "", 10)
	if err != nil || len(letters) != 3 {
		t.Fatalf("got %v, %v", letters, err)
	}
	t.Run("AWS-07 the first time of an event is its own, for a FIFO queue stamps it anew", func(t *testing.T) {
		for _, l := range letters {
			want := map[string]time.Time{"events": published, "slow": r.now.Add(-time.Minute), "inbox": r.now}[l.Queue]
			if !l.First.Equal(want.UTC()) {
				t.Errorf("%s: got %v, want %v", l.Queue, l.First, want)
			}
		}
	})
	t.Run("OPS-12 they are counted by their queue, and those of a stage, which it has counted, are not", func(t *testing.T) {
		emf.Close(t.Context())
		for name, want := range map[string]bool{"events": true, "slow": true, "inbox": false} {
			if strings.Contains(log.String(), `"queue":"`+name+`"`) != want {
				t.Errorf("%s: got %s", name, &log)
			}
		}
	})
}

// SRC-01 OPS-04: messages that EventBridge or SNS put into the dead queue, because they could not put them into the inbox, can
// be sent back to the inbox.
func TestDeadLettersOfBuses(t *testing.T) {
	r := newRig(t)
	o := r.operations()
	denied := map[string]string{"RULE_ARN": "arn:aws:events:us-east-1:1:rule/r", "ERROR_CODE": "NO_PERMISSIONS", "ERROR_MESSAGE": "Access denied"}
	batch := []queue.Message{
		{ID: "1", Sent: r.now, Attributes: denied, Outgoing: queue.Outgoing{Body: []byte(`{"id":"e","detail-type":"A","source":"b","detail":{}}`)}},
		{ID: "2", Sent: r.now, Outgoing: queue.Outgoing{Body: []byte(`{"Type":"Notification","MessageId":"m","TopicArn":"arn","Message":"x"}`)}},
		{ID: "3", Sent: r.now, Outgoing: queue.Outgoing{Body: []byte(`{"id":"e"}`)}},
	}
	r.done(o.File(t.Context(), batch))
	letters, _, err := o.Letters(t.Context(), "default", deadletter.LetterQuery{}, "", 10)
	if err != nil || len(letters) != 3 {
		t.Fatalf("got %v, %v", letters, err)
	}
	reasons := map[string]string{}
	for _, l := range letters {
		reasons[l.Reason] = l.Queue
		returned, err := o.Retry(t.Context(), "default", l, nil, 0)
		if back := l.Queue == string(queue.Inbox); returned != back || (err == nil) != back {
			t.Errorf("%s: sent back: %v, %v", l.Reason, returned, err)
		}
	}
	want := map[string]string{
		"eventbridge could not put it into the inbox: NO_PERMISSIONS: Access denied": "inbox",
		"sns could not put it into the inbox":                                        "inbox", queue.ReasonReceives: "dead",
	}
	if !maps.Equal(reasons, want) {
		t.Errorf("got %q", reasons)
	}
	if sent := r.queues[queue.Inbox]; len(sent) != 2 {
		t.Errorf("the inbox got %d messages", len(sent))
	}
}

// An operator fixes the cause of a dead letter of the events queue and sends it back a minute later. The queue still
// remembers the event as a repetition then.
func TestDeadEventsAreSentBack(t *testing.T) {
	t.Run("OPS-04 AWS-05 an event that is sent back within five minutes reaches fanout, once per letter", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			log := slog.New(slog.DiscardHandler)
			queues, err := queuesqlite.Open(r.db.Engine(), queuesqlite.Options{Log: log})
			if err != nil {
				t.Fatal(err)
			}
			service := &publish.Service{Catalog: r.catalogs, Queue: queues}
			in := publish.Input{URI: "event://ci/build-finished", ID: "evt_1", Data: []byte(`{"ok":true}`)}
			if _, err := service.Accept(t.Context(), r.principal(), []publish.Input{in}); err != nil {
				t.Fatal(err)
			}
			refused, err := catalog.Parse([]byte("events:\n  - name: other\n    uri: event://other\n"))
			if err != nil {
				t.Fatal(err)
			}
			source := catalog.NewStatic(refused)
			fanout := &fanout.Fanout{DB: r.db, Log: r.log, Catalog: source, Queue: queues}
			operations := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: queues})
			var received atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			for name, h := range map[queue.Name]queue.Handler{
				queue.Dead: operations.File, queue.Inbox: (&publish.Inbox{Service: service, Log: log}).Handle,
				queue.Events: func(ctx context.Context, batch []queue.Message) ([]string, error) {
					received.Add(int64(len(batch)))
					return fanout.Handle(ctx, batch)
				},
			} {
				running.Go(func() { _ = queues.Consume(ctx, name, h, queue.ConsumeOptions{}) })
			}
			defer func() { stop(); running.Wait(); _ = queues.Close() }()
			letter := func() deadletter.Letter {
				time.Sleep(time.Minute)
				letters, _, err := operations.Letters(t.Context(), "default", deadletter.LetterQuery{Queue: string(queue.Events)}, "", 10)
				if err != nil || len(letters) != 1 {
					t.Fatalf("got %d letters, %v, want one", len(letters), err)
				}
				return letters[0]
			}
			for round := 1; round <= 2; round++ { // the event that was sent back becomes the second letter
				l := letter()
				if done, err := operations.Retry(t.Context(), "default", l, nil, 0); !done || err != nil {
					t.Fatalf("round %d: got %v, %v, want it sent back", round, done, err)
				}
				time.Sleep(10 * time.Second)
				if got := received.Load(); got != int64(round)+1 {
					t.Fatalf("round %d: fanout received %d events, want %d", round, got, round+1)
				}
			}
		})
	})
}

// strict checks messages as the queues do.
type strict struct {
	queue.Sender
	check *queuesqlite.Queues // no worker receives its messages
}

func (s strict) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	if err := s.check.Send(ctx, q, msgs...); err != nil {
		return err
	}
	return s.Sender.Send(ctx, q, msgs...)
}

// SQS accepts more characters in a group than our queues do, and a program that may send to the inbox chooses the group.
func TestAReplayOfMessagesThatTheirQueueRefuses(t *testing.T) {
	r := newRig(t)
	queues, err := queuesqlite.Open(r.db.Engine(), queuesqlite.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer queues.Close()
	o := r.operationsOn(r.db, strict{mortal{r.db, r}, queues})
	var batch []queue.Message
	for i, m := range []struct {
		from  queue.Name
		group string
	}{{queue.Slow, "first"}, {queue.Slow, "a group"}, {queue.Slow, "last"}, {queue.Inbox, "tenant:1"}} {
		m := queue.NewDeadLetter(m.from, queue.Message{Outgoing: queue.Outgoing{Body: []byte(`{}`), Group: m.group}, Sent: r.now}, "a reason", nil, r.now)
		batch = append(batch, queue.Message{ID: string(rune('a' + i)), Outgoing: m, Sent: r.now})
	}
	r.done(o.File(t.Context(), batch))
	r.now = r.now.Add(time.Second)
	for from, want := range map[queue.Name]struct{ replayed, skipped int }{queue.Slow: {2, 1}, queue.Inbox: {1, 0}} {
		replays := r.replaysOf(o)
		job, err := replays.Start(t.Context(), "default", "op", nil, deadletter.ReplaySelect{Queue: string(from)}, 20)
		if err == nil {
			job, err = replays.Begin(t.Context(), job)
		}
		if err != nil || job.State != deadletter.ReplayDone || job.Replayed != want.replayed || job.Skipped != want.skipped {
			t.Errorf("OPS-05 AWS-16 the replay of %s is %+v, %v; want %d replayed, %d skipped", from, job, err, want.replayed, want.skipped)
		}
		if n := len(r.queues[from]); n != want.replayed {
			t.Errorf("OPS-05 AWS-16 %s got %d messages, want %d", from, n, want.replayed)
		}
	}
}
