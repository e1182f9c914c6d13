package delivery

import (
	"context"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

// overtaken is a store at which someone does the same right after the first read.
type overtaken struct {
	store.DB
	other func()
}

func (o *overtaken) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	items, err := o.DB.Get(ctx, keys...)
	if other := o.other; other != nil {
		o.other = nil
		other()
	}
	return items, err
}

// OPS-04: of two processes that make the same step of a replay, one counts a letter, and the other does not count it as skipped.
func TestALetterThatAnotherRetries(t *testing.T) {
	r := newRig(t)
	sub := r.register("event://ci/build-finished")
	r.script = tooLarge
	r.publish("evt_1")
	r.run()
	first := r.operationsOn(r.db, mortal{r.db, r})
	if _, err := first.File(t.Context(), []queue.Message{{ID: "1", From: queue.Inbox, Sent: r.now, Outgoing: queue.Outgoing{Body: []byte("x")}}}); err != nil {
		t.Fatal(err)
	}
	letters, _, err := first.Letters(t.Context(), "default", deadletter.LetterQuery{}, "", 10)
	if err != nil || len(letters) != 2 {
		t.Fatal(letters, err)
	}
	for _, l := range letters {
		again := func(o *deadletter.Operations) (bool, error) { return o.Retry(t.Context(), "default", l, sub, 0) }
		db := &overtaken{DB: r.db, other: func() {
			if done, err := again(first); err != nil || !done {
				t.Errorf("%s: the first has %v, %v", l.Queue, done, err)
			}
		}}
		if done, err := again(r.operationsOn(db, mortal{db, r})); err != nil || done {
			t.Errorf("%s: the second has %v, %v", l.Queue, done, err)
		}
	}
}
