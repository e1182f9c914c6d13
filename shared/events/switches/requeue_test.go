package switches

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// between calls a function before the first query for paused messages.
type between struct {
	store.DB
	do func()
}

func (b *between) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if do := b.do; do != nil && strings.HasPrefix(q.Partition, "paused#") {
		b.do = nil
		do()
	}
	return b.DB.Query(ctx, q)
}

func newStore(t *testing.T) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Given one worker that is about to end an old resume, the switch is paused and resumed again, and another worker
// claims it.
func TestAnEndedRequeueLeavesALaterResume(t *testing.T) {
	db, ctx := newStore(t), t.Context()
	began := time.Now()
	clock := func() time.Time { return began }
	other := &Set{DB: db, Queue: &picky{}, Alone: true, Now: clock}
	expect.OK(t, other.Pause(ctx, "default", Switch{Name: All}))
	expect.OK(t, expect.ErrOf(other.Resume(ctx, "default", All)))
	began = began.Add(linger + time.Minute)
	var claimed *resumed
	s := &Set{Queue: &picky{}, Alone: true, Now: clock, DB: &between{db, func() {
		expect.OK(t, other.Pause(ctx, "default", Switch{Name: All}))
		if ok, err := other.Resume(ctx, "default", All); !ok || err != nil {
			t.Fatal(ok, err)
		}
		var err error
		if claimed, _, err = other.claim(ctx, "default", All); err != nil || claimed == nil {
			t.Fatal(claimed, err)
		}
	}}}
	expect.OK(t, expect.ErrOf(s.RequeueOf(ctx, "default", All)))
	it, err := store.One(ctx, db, resumedKey("default", All), "")
	if err != nil || it == nil {
		t.Fatalf("WHK-22: the later resume was deleted (%v), so its messages would never be requeued", err)
	}
	var left resumed
	if err := json.Unmarshal(it.Value, &left); err != nil || !left.Claimed.Equal(claimed.Claimed) {
		t.Errorf("WHK-22: the resume is claimed until %v, want %v, %v", left.Claimed, claimed.Claimed, err)
	}
}

// picky refuses messages that exceed its limit, as a queue does.
type picky struct {
	bodies, dead []string
}

func (p *picky) Send(_ context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	for _, m := range msgs {
		if q != queue.Dead && strings.Contains(string(m.Body), "refused") {
			return fault.New(fault.TooLarge, "a message for %s is too large", q)
		}
	}
	for _, m := range msgs {
		if q == queue.Dead {
			p.dead = append(p.dead, string(m.Body))
		} else {
			p.bodies = append(p.bodies, string(m.Body))
		}
	}
	return nil
}

func TestARefusedMessageDoesNotBlockTheOthersOfItsSwitch(t *testing.T) {
	db, q := newStore(t), &picky{}
	s := &Set{DB: db, Queue: q, Alone: true}
	ops := s.ResumeOps("default", All)
	for _, body := range []string{`{"a":1}`, `{"refused":1}`, `{"a":2}`} {
		ops = append(ops, store.Put(s.Item("default", All, Message{Queue: queue.Slow, Body: []byte(body)})))
	}
	expect.OK(t, db.WriteAll(t.Context(), ops...))
	expect.OK(t, expect.ErrOf(s.RequeueOf(t.Context(), "default", All)))
	if len(q.bodies) != 2 || len(q.dead) != 1 || !strings.Contains(q.dead[0], "refused") {
		t.Errorf("AWS-16: got messages %q and dead letters %q, want two and one", q.bodies, q.dead)
	}
	expect.Equal(t, "AWS-16: messages in the next run", expect.Value(s.RequeueOf(t.Context(), "default", All))(t), 0)
}

// The trace state of an event may contain these characters, which encoding/json escapes by default.
func TestAPausedMessageKeepsItsSize(t *testing.T) {
	body := `{"a":"` + strings.Repeat("<&>", 60<<10) + `"}`
	m := Message{Queue: queue.Slow, Body: []byte(body)}
	value := encodeStored(m)
	expect.AtMost(t, "WHK-22 the size of the message's item", len(value), len(body)+100)
	expect.Equal(t, "WHK-22: the message", string(expect.Value(decodeStored(value))(t).Body), body)
}

// The previous version stored all bodies as strings.
func TestRequeueOfPausedMessages(t *testing.T) {
	for name, tc := range map[string]struct{ value, want string }{
		"OPS-06 that the previous version paused": {`{"v":1,"q":"slow","b":"{\"a\":\"<\\\"\"}"}`, `{"a":"<\""}`},
		"OPS-06 that are JSON":                    {string(encodeStored(Message{Queue: queue.Slow, Body: []byte(`{"a":["",""]}`)})), `{"a":["",""]}`},
		"OPS-06 that are not JSON":                {string(encodeStored(Message{Queue: queue.Slow, Body: []byte(`a "b`)})), `a "b`},
		"OPS-06 that are a string of JSON":        {string(encodeStored(Message{Queue: queue.Slow, Body: []byte(`"a\"b"`)})), `"a\"b"`},
	} {
		t.Run(name, func(t *testing.T) {
			db, q := newStore(t), &picky{}
			s := &Set{DB: db, Queue: q, Alone: true}
			item := s.Item("default", All, Message{Queue: queue.Slow, Body: []byte(`{}`)})
			item.Value, item.Expires = []byte(tc.value), time.Now().Add(time.Hour)
			expect.OK(t, db.Write(t.Context(), append(s.ResumeOps("default", All), store.Put(item))...))
			expect.Equal(t, "requeued messages", expect.Value(s.RequeueOf(t.Context(), "default", All))(t), 1)
			expect.List(t, "the messages", q.bodies, []string{tc.want})
		})
	}
}
