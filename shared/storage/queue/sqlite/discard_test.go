package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// blocking is a job that holds up the writer until it is released.
type blocking struct{ began, release chan struct{} }

func (b *blocking) Apply(*engine.Tx) error { close(b.began); <-b.release; return nil }
func (*blocking) Done(error)               {}

func TestDiscard(t *testing.T) {
	const rows = discardRows + 10
	delayed := func(i int) queue.Outgoing {
		return queue.Outgoing{Body: fmt.Appendf(nil, `{"sub":"sub_%032d","n":2}`, i), Delay: time.Minute}
	}
	t.Run("given delayed messages, when some texts are discarded, the messages with them are never delivered", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, q *Queues) {
			var msgs []queue.Outgoing
			for i := range rows {
				msgs = append(msgs, delayed(i))
			}
			send(t, q, queue.Slow, msgs...)
			send(t, q, queue.Slow, queue.Outgoing{Body: msgs[3].Body}) // due, so it stays
			texts := []string{"text that no message has", "x"}
			for i := range rows - 5 {
				texts = append(texts, fmt.Sprintf("sub_%032d", i))
			}
			if err := q.Discard(t.Context(), queue.Slow, texts...); err != nil {
				t.Fatal(err)
			}
			if d := depth(t, q, queue.Slow); d.Delayed != 5 || d.Visible != 1 {
				t.Errorf("got depth %+v, want 5 delayed and 1 visible", d)
			}
			got := map[string]int{}
			stop := run(q, queue.Slow, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				for _, m := range batch {
					got[string(m.Body)]++
				}
				return nil, nil
			})
			time.Sleep(2 * time.Minute)
			stop()
			if len(got) != 6 || got[string(msgs[3].Body)] != 1 || got[string(msgs[rows-1].Body)] != 1 {
				t.Errorf("got %v, want the last five and the one that was due", got)
			}
		})
	})
	t.Run("given a busy writer, when texts are discarded that no message has, the search does not wait for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := open(t, filepath.Join(t.TempDir(), "q.db"), Options{})
			send(t, q, queue.Slow, delayed(1), delayed(2))
			b := &blocking{make(chan struct{}), make(chan struct{})}
			go func() { _ = q.engine.Do(context.Background(), b) }()
			<-b.began
			var err error
			done := false
			go func() { err = q.Discard(context.Background(), queue.Slow, "sub_other"); done = true }()
			synctest.Wait()
			if !done || err != nil {
				t.Errorf("got done %v, %v while the writer was busy, want it done", done, err)
			}
			close(b.release)
			synctest.Wait()
		})
	})
}
