package switches

import (
	"context"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

type sent struct{ bodies []string }

func (s *sent) Send(_ context.Context, _ queue.Name, msgs ...queue.Outgoing) error {
	for _, m := range msgs {
		s.bodies = append(s.bodies, string(m.Body))
	}
	return nil
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
			db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
			defer db.Close()
			q := &sent{}
			s := &Set{DB: db, Queue: q, Alone: true}
			item := s.Item("default", All, Message{Queue: queue.Slow, Body: []byte(`{}`)})
			item.Value, item.Expires = []byte(tc.value), time.Now().Add(time.Hour)
			expect.OK(t, db.Write(t.Context(), append(s.ResumeOps("default", All), store.Put(item))...))
			if n, err := s.RequeueOf(t.Context(), "default", All); n != 1 || err != nil {
				t.Fatalf("got %d, %v, want one requeued", n, err)
			}
			if len(q.bodies) != 1 || q.bodies[0] != tc.want {
				t.Errorf("got %q, want %q", q.bodies, tc.want)
			}
		})
	}
}
