package delivery

import (
	"context"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
)

// DeadLetterItem returns what a periodic job does with an item that cannot be decoded: it
// sends the item's key and value to the dead queue and deletes the item, so that the next
// round does not fail on it again. The letter's origin is "table:" and the table's name.
func DeadLetterItem(db store.DB, q queue.Sender, now func() time.Time, log *slog.Logger) func(context.Context, *store.Item, error) error {
	return func(ctx context.Context, it *store.Item, reason error) error {
		m := queue.Message{ID: it.Partition + " " + it.Sort, Outgoing: queue.Outgoing{Body: it.Value}}
		letter := queue.NewDeadLetter(queue.Name("table:"+it.Table), m, fault.Public(reason), nil, now())
		if err := q.Send(ctx, queue.Dead, letter); err != nil {
			return fault.Wrap(fault.Unavailable, err, "dead-letter an item that cannot be decoded")
		}
		log.ErrorContext(ctx, "stored item dead-lettered", "table", it.Table, "partition", it.Partition, "sort", it.Sort, "error", reason)
		return fault.Wrap(fault.Unavailable, db.Write(ctx, store.Delete(it.Key)), "delete an item that cannot be decoded")
	}
}
