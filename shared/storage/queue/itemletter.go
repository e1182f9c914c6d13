package queue

import (
	"context"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// SendItemLetter sends the key and value of a stored item that cannot be decoded to [Dead]. The letter's origin is "table:"
// and the table's name.
func SendItemLetter(ctx context.Context, q Sender, it *store.Item, reason string, now time.Time) error {
	m := Message{ID: it.Partition + " " + it.Sort, Outgoing: Outgoing{Body: it.Value}}
	letter := NewDeadLetter(Name("table:"+it.Table), m, reason, nil, now)
	return fault.Wrap(fault.Unavailable, q.Send(ctx, Dead, letter), "dead-letter an item that cannot be decoded")
}

// DeadLetterItem sends the letter of a stored item that cannot be decoded and deletes the item, so that the next run of a
// periodic job does not fail on it again.
func DeadLetterItem(ctx context.Context, q Sender, db store.DB, it *store.Item, reason error, now time.Time, log *slog.Logger) error {
	if err := SendItemLetter(ctx, q, it, fault.Public(reason), now); err != nil {
		return err
	}
	log.ErrorContext(ctx, "stored item dead-lettered", "table", it.Table, "partition", it.Partition, "sort", it.Sort, "error", reason)
	return fault.Wrap(fault.Unavailable, db.Write(ctx, store.Delete(it.Key)), "delete an item that cannot be decoded")
}
