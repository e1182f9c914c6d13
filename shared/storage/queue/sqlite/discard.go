package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Bounds of one step of a discard, so that other reads and writes do not wait for long.
const (
	discardRows    = 2000
	discardDeletes = 500
)

// Discard implements [queue.Discarder]. It searches the delayed rows on a connection for reading, so that other writes wait
// only while it deletes.
func (q *Queues) Discard(ctx context.Context, name queue.Name, texts ...string) error {
	mq, err := q.findQueue(name)
	if err != nil {
		return err
	}
	contains := containsAny(texts)
	for after, more := int64(0), len(texts) > 0; more; {
		var found []int64
		err := q.engine.Read(ctx, func(c *engine.Conn) error {
			var err error
			found, after, more, err = mq.findDelayed(c, after, contains)
			return err
		})
		for len(found) > 0 && err == nil {
			n := min(len(found), discardDeletes)
			err = q.engine.Do(ctx, &discarding{queue: mq, ids: found[:n]})
			found = found[n:]
		}
		if err != nil {
			return fault.Wrap(engine.Kind(err), err, "discard delayed messages of %s", name)
		}
	}
	return nil
}

// findDelayed reads up to [discardRows] delayed rows after an id and returns the ids of the rows whose body matches.
func (mq *memoryQueue) findDelayed(c *engine.Conn, after int64, matches func([]byte) bool) (found []int64, last int64, more bool, err error) {
	s, err := c.Stmt(fmt.Sprintf("SELECT id, body FROM %s WHERE due > 0 AND id > ? ORDER BY id LIMIT %d", mq.sql.table, discardRows))
	if err != nil {
		return nil, after, false, err
	}
	defer s.Reset()
	s.Int(1, after)
	last = after
	for n := 0; ; n++ {
		row, err := s.Step()
		if err != nil || !row {
			return found, last, n == discardRows, err
		}
		last = s.ColumnInt(0)
		if matches(s.ColumnBlob(1)) {
			found = append(found, last)
		}
	}
}

// containsAny returns a function that reports whether a body contains one of the texts. The function looks for the common
// prefix of the texts first, so with ids such as sub_… its time hardly depends on their number.
func containsAny(texts []string) func(body []byte) bool {
	byLength := map[int]map[string]bool{}
	prefix := []byte(nil)
	for i, text := range texts {
		if i == 0 {
			prefix = []byte(text)
		}
		for !bytes.HasPrefix([]byte(text), prefix) {
			prefix = prefix[:len(prefix)-1]
		}
		if byLength[len(text)] == nil {
			byLength[len(text)] = map[string]bool{}
		}
		byLength[len(text)][text] = true
	}
	return func(body []byte) bool {
		for {
			at := bytes.Index(body, prefix)
			if at < 0 {
				return false
			}
			body = body[at:]
			for n, known := range byLength {
				if len(body) >= n && known[string(body[:n])] {
					return true
				}
			}
			if len(body) == 0 {
				return false
			}
			body = body[1:]
		}
	}
}

// discarding is a job that deletes rows if they are still delayed. Rows that became due meanwhile are in memory and stay.
type discarding struct {
	queue *memoryQueue
	ids   []int64
	n     int
}

func (d *discarding) Apply(tx *engine.Tx) error {
	d.n = 0
	s, err := tx.Stmt(fmt.Sprintf("DELETE FROM %s WHERE id = ? AND due > 0", d.queue.sql.table))
	if err != nil {
		return err
	}
	for _, id := range d.ids {
		if err := s.Int(1, id).Exec(); err != nil {
			return err
		}
		d.n += tx.Changes()
	}
	return nil
}

func (d *discarding) Done(err error) {
	if err != nil {
		return
	}
	mq := d.queue
	mq.mu.Lock()
	defer mq.mu.Unlock()
	mq.window.counts[placeDelayed] -= d.n
}
