package sqlite

import (
	"context"
	"fmt"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store/sqlite/engine"

	"github.com/mcp-events/mcpevents/shared/queue"
)

// Discard implements [queue.Discarder].
func (q *Queues) Discard(ctx context.Context, name queue.Name, texts ...string) error {
	mq, err := q.queue(name)
	if err != nil {
		return err
	}
	err = q.engine.Do(ctx, &discarding{queue: mq, texts: texts})
	return fault.Wrap(engine.Kind(err), err, "discard delayed messages of %s", name)
}

// discarding deletes rows that are not in memory yet.
type discarding struct {
	queue *memoryQueue
	texts []string
	n     int
}

func (d *discarding) Apply(tx *engine.Tx) error {
	d.n = 0
	s, err := tx.Stmt(fmt.Sprintf("DELETE FROM %s WHERE due > 0 AND instr(body, CAST(? AS BLOB)) > 0", d.queue.sql.table))
	if err != nil {
		return err
	}
	for _, text := range d.texts {
		if err := s.Text(1, text).Exec(); err != nil {
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
	mq.total, mq.delayed = mq.total-d.n, mq.delayed-d.n
}
