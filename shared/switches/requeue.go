package switches

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
)

// resumed notes that messages of a switch may be requeued.
type resumed struct {
	V         int       `json:"v"`
	Workspace string    `json:"ws"`
	Name      Name      `json:"n"`
	At        time.Time `json:"at"`
}

func resumedKey(workspace string, n Name) store.Key {
	return store.Key{Table: store.Deliveries, Partition: resumedPart, Sort: workspace + "#" + string(n)}
}

// round is for how long one run of Requeue spreads what it requeues.
const round = time.Minute

// Requeue puts messages of switches that were resumed back on their queues, and reports how many. It
// runs every minute, and right after a resume; what it requeues in a run is spread over a minute. A message
// is deleted after it was sent: a crash in between sends it twice.
func (s *Set) Requeue(ctx context.Context) (requeued int, err error) {
	var errs []error
	err = store.Each(ctx, s.DB, store.Key{Table: store.Deliveries, Partition: resumedPart}, "list what was resumed", func(it *store.Item) error {
		var r resumed
		if err := json.Unmarshal(it.Value, &r); err != nil {
			errs = append(errs, fault.Wrap(fault.Internal, err, "decode what was resumed"))
			return nil
		}
		n, err := s.RequeueOf(ctx, r.Workspace, r.Name)
		requeued += n
		if err == nil && n == 0 && s.now().Sub(r.At) > linger {
			err = s.DB.Write(ctx, store.Delete(it.Key))
		}
		errs = append(errs, err)
		return nil
	})
	return requeued, errors.Join(append(errs, err)...)
}

// RequeueOf is [Set.Requeue] for one switch, which does nothing while that is paused.
func (s *Set) RequeueOf(ctx context.Context, workspace string, n Name) (requeued int, err error) {
	if sw, err := s.Get(ctx, workspace, n); err != nil || sw != nil {
		return 0, err
	}
	const most = RequeueRate * int(round/time.Second)
	for shard := range shards {
		q := store.Query{Table: store.Deliveries, Partition: waitingPartition(workspace, n, shard), Limit: 100}
		for more := true; more && requeued < most; {
			page, err := s.DB.Query(ctx, q)
			if err != nil {
				return requeued, fault.Wrap(fault.Unavailable, err, "list what is paused")
			}
			if err := s.requeue(ctx, page.Items, requeued); err != nil {
				return requeued, err
			}
			requeued += len(page.Items)
			q.After, more = page.Last, page.More
		}
	}
	return requeued, nil
}

// requeue sends messages, those after the first so many of this round.
func (s *Set) requeue(ctx context.Context, items []store.Item, before int) error {
	byQueue := map[queue.Name][]queue.Outgoing{}
	var gone []store.Op
	for i, it := range items {
		m, err := decodeStored(it.Value)
		if err != nil {
			return err
		}
		delay := time.Duration(before+i) / RequeueRate * time.Second
		if !s.Alone {
			delay += MaxAge // until every process knows that it was resumed
		}
		byQueue[m.Queue] = append(byQueue[m.Queue], queue.Outgoing{Body: m.Body, Group: m.Group, Delay: delay})
		gone = append(gone, store.Delete(it.Key))
	}
	for name, out := range byQueue {
		if err := s.Queue.Send(ctx, name, out...); err != nil {
			return fault.Wrap(fault.Unavailable, err, "requeue what was paused")
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, s.DB.WriteAll(ctx, gone...), "delete what was requeued")
}
