package delivery

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestWorkspaceOfALetter(t *testing.T) {
	var noise strings.Builder
	for range 2 * queue.MaxBody {
		noise.WriteByte(byte('a' + rand.IntN(26)))
	}
	for name, tt := range map[string]struct {
		from       queue.Name
		body, want string
	}{
		"OPS-04 of a stage":                       {queue.Events, `{"v":1,"ws":"red","workspace":"blue"}`, "red"},
		"OPS-04 of a direct sender":               {queue.Inbox, `{"ws":"red","data":{"workspace":"green"},"workspace":"blue"}`, "blue"},
		"OPS-04 that names none":                  {queue.Inbox, `{"uri":"event://a"}`, "default"},
		"OPS-04 that is no text":                  {queue.Inbox, `{"workspace":7}`, "default"},
		"OPS-04 that is no object":                {queue.Inbox, `["workspace","red"]`, "default"},
		"OPS-04 that is no JSON":                  {queue.Inbox, `workspace`, "default"},
		"OPS-04 that is no name":                  {queue.Inbox, `{"workspace":"a#b"}`, "default"},
		"OPS-04 of which only the beginning kept": {queue.Inbox, `{"workspace":"red","retry":"` + noise.String() + `"}`, "red"},
	} {
		t.Run(name, func(t *testing.T) {
			m := queue.Message{Outgoing: queue.Outgoing{Body: []byte(tt.body)}}
			l, err := queue.ParseDeadLetter(queue.NewDeadLetter(tt.from, m, "r", nil, time.Now()).Body)
			if err != nil || l.Truncated != (len(tt.body) > queue.MaxBody) {
				t.Fatalf("truncated %v, %v", l.Truncated, err)
			}
			expect.Equal(t, "the workspace", deadletter.WorkspaceOf(l), tt.want)
		})
	}
}

func TestDeadLettersThatAQueueMoved(t *testing.T) {
	r := newRig(t)
	var log bytes.Buffer
	emf := metric.NewEMF(slog.New(slog.NewJSONHandler(&log, nil)), "stack", time.Now)
	set := expect.Value(metric.NewSet(emf.Provider()))(t)
	o := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return r.now }, Metrics: set})
	published := r.now.Add(-time.Hour).UTC().Truncate(time.Microsecond)
	e := event.Event{Workspace: "default", ID: "evt_1", URI: "event://a/b", Name: "a.b", Time: published, Published: published}
	body, _ := e.MarshalJSON()
	batch := []queue.Message{
		{ID: "1", From: queue.Events, Sent: r.now, Outgoing: queue.Outgoing{Body: body, Group: "g"}},
		{ID: "2", From: queue.Slow, Sent: r.now.Add(-time.Minute), Outgoing: queue.Outgoing{Body: []byte("no delivery")}},
		{ID: "3", Sent: r.now, Outgoing: queue.NewDeadLetter(queue.Inbox, queue.Message{ID: "4", Sent: r.now}, "no event", nil, r.now)},
	}
	r.done(o.FileMessages(t.Context(), batch))
	letters := r.letters(deadletter.LetterQuery{}, 3)
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
			expect.Equal(t, name+" is counted in the metrics", strings.Contains(log.String(), `"queue":"`+name+`"`), want)
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
	r.done(o.FileMessages(t.Context(), batch))
	reasons := map[string]string{}
	for _, l := range r.letters(deadletter.LetterQuery{}, 3) {
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
	expect.Map(t, "the reasons", reasons, want)
	expect.Equal(t, "messages of the inbox", len(r.queues[queue.Inbox]), 2)
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
	queues := expect.Value(queuesqlite.Open(r.db.Engine(), queuesqlite.Options{Log: slog.New(slog.DiscardHandler)}))(t)
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
	r.done(o.FileMessages(t.Context(), batch))
	r.now = r.now.Add(time.Second)
	for from, want := range map[queue.Name]struct{ replayed, skipped int }{queue.Slow: {2, 1}, queue.Inbox: {1, 0}} {
		job := r.replay(r.replaysOf(o), nil, deadletter.ReplaySelect{Queue: string(from)})
		if job.State != deadletter.ReplayDone || job.Replayed != want.replayed || job.Skipped != want.skipped {
			t.Errorf("OPS-05 AWS-16 the replay of %s is %+v, want %d replayed, %d skipped", from, job, want.replayed, want.skipped)
		}
		expect.Equal(t, fmt.Sprintf("OPS-05 AWS-16 messages of %s", from), len(r.queues[from]), want.replayed)
	}
}

// OPS-05: each call of the store fails once, before or after its writes, while a letter is retried or replayed. After the request was
// repeated, the event is delivered, and the letter is gone.
func TestALetterIsDeliveredAfterARepeatedRequest(t *testing.T) {
	for name, request := range map[string]func(r *rig, rs *deadletter.Replays, l deadletter.Letter, id string) error{
		"a retry": func(r *rig, rs *deadletter.Replays, l deadletter.Letter, id string) error {
			_, err := rs.Operations.Retry(r.t.Context(), "default", l, r.record(id).Subscription, 0)
			return err
		},
		"a replay": func(r *rig, rs *deadletter.Replays, l deadletter.Letter, id string) error {
			job, err := rs.Start(r.t.Context(), "default", "op", nil, deadletter.ReplaySelect{Subscription: id}, 20)
			if err == nil {
				_, err = rs.Begin(r.t.Context(), job)
			}
			return err
		},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("OPS-05 %s, late %v", name, late), func(t *testing.T) {
				for at := 1; ; at++ {
					r, sub := registered(t)
					r.script = tooLarge
					r.work("evt_1")
					letter := r.letterOf(sub)
					r.script = succeeds
					before := posted(r)["evt_1"]
					db := &storetest.Faulty{DB: r.db, At: at, Late: late}
					rs := r.replaysOf(r.operationsOn(db, mortal{r.db, r}))
					err := request(r, rs, letter, sub.ID)
					calls := db.Calls
					for try := 0; err != nil && try < 3; try++ {
						err = request(r, rs, letter, sub.ID)
					}
					expect.OK(t, err)
					for range 3 {
						r.now = r.now.Add(deadletter.ReplayClaim + time.Minute)
						expect.OK(t, expect.ErrOf(r.replays().Run(t.Context())))
						r.run()
					}
					when := fmt.Sprintf("call %d: ", at)
					expect.Equal(t, when+"further posts", posted(r)["evt_1"]-before, 1)
					expect.Equal(t, when+"letters", len(expect.Value(first(r.operations().ListLetters(t.Context(), "default", deadletter.LetterQuery{Subscription: sub.ID}, "", 10)))(t)), 0)
					expect.Equal(t, when+"running replays", len(r.items("replays")), 0)
					if calls < at {
						break
					}
				}
			})
		}
	}
}

func first(l []deadletter.Letter, _ string, err error) ([]deadletter.Letter, error) { return l, err }
