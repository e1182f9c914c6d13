package switches

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// resumed is the record of a resume, which ended the pause that a [Switch] had caused. While the record exists, messages of the paused
// deliveries may still have to be requeued.
type resumed struct {
	V         int       `json:"v"`
	Workspace string    `json:"ws"`
	Name      Name      `json:"n"`
	At        time.Time `json:"at"`
	// Claimed is the time until which a single worker has the exclusive right to requeue the messages. It is zero if no worker has this
	// right.
	Claimed time.Time `json:"claimed,omitzero"`
}

func resumedKey(workspace string, n Name) store.Key {
	return store.Key{Table: store.Deliveries, Partition: resumedPart, Sort: workspace + "#" + string(n)}
}

const requeueTime = time.Minute // the time over which one run of Requeue spreads the messages

// claimedFor is how long a worker has the exclusive right to requeue the messages that one [Switch] has paused. If the worker dies,
// another worker continues after this time.
const claimedFor = 2 * time.Minute

// Requeue puts the messages of resumed deliveries back on their queues, and returns the number of messages. It must run every minute,
// because one run sends at most 6,000 messages for each [Switch].
//
// A worker first claims the exclusive right to requeue the messages of a [Switch]. It deletes each stored message after sending it. So a
// message is sent twice only if the worker crashes or the deletion fails.
func (s *Set) Requeue(ctx context.Context) (requeued int, err error) {
	var errs []error
	err = store.Each(ctx, s.DB, store.Key{Table: store.Deliveries, Partition: resumedPart}, "list the resumed switches", func(it *store.Item) error {
		var r resumed
		if err := json.Unmarshal(it.Value, &r); err != nil {
			errs = append(errs, s.deadLetterItem(ctx, it, fault.Wrap(fault.Internal, err, "decode a resumed switch")))
			return nil
		}
		n, err := s.RequeueOf(ctx, r.Workspace, r.Name)
		requeued += n
		errs = append(errs, err)
		return nil
	})
	return requeued, errors.Join(append(errs, err)...)
}

// RequeueOf is like [Set.Requeue] for the messages that the [Switch] with the name n has paused. It does nothing if the deliveries are
// paused again, or if another worker requeues the messages.
func (s *Set) RequeueOf(ctx context.Context, workspace string, n Name) (requeued int, err error) {
	if sw, err := s.Get(ctx, workspace, n); err != nil || sw != nil {
		return 0, err
	}
	r, version, err := s.claim(ctx, workspace, n)
	if err != nil || r == nil {
		return 0, err
	}
	requeued, err = s.requeueAll(ctx, workspace, n)
	var end store.Op
	key := resumedKey(workspace, n)
	if err == nil && requeued == 0 && s.now().Sub(r.At) > linger {
		end = store.Delete(key, store.VersionIs(version))
	} else {
		r.Claimed = time.Time{}
		end = store.Put(r.item(version+1), store.VersionIs(version))
	}
	released := s.DB.Write(ctx, end)
	if errors.Is(released, store.ErrConflict) {
		released = nil // this is not an error: the switch was paused or resumed meanwhile
	}
	return requeued, errors.Join(err, fault.Wrap(fault.Unavailable, released, "release a resumed switch"))
}

func (r *resumed) item(version int64) store.Item {
	value, _ := json.Marshal(r) // cannot fail for strings and times
	return store.Item{Key: resumedKey(r.Workspace, r.Name), Value: value, Version: version, Expires: r.At.Add(Kept)}
}

// claim gives this worker the exclusive right to requeue the messages that a [Switch] has paused. It returns nil if there is no record of
// a resume, or if another worker has the right. The second result is the version of the record, which the caller needs to release the
// claim.
func (s *Set) claim(ctx context.Context, workspace string, n Name) (*resumed, int64, error) {
	it, err := store.One(ctx, s.DB, resumedKey(workspace, n), "read a resumed switch")
	if err != nil || it == nil {
		return nil, 0, err
	}
	var r resumed
	if err := json.Unmarshal(it.Value, &r); err != nil {
		return nil, 0, s.deadLetterItem(ctx, it, fault.Wrap(fault.Internal, err, "decode a resumed switch"))
	}
	if r.Claimed.After(s.now()) {
		return nil, 0, nil
	}
	r.Claimed = s.now().Add(claimedFor)
	version := it.Version + 1
	err = s.DB.Write(ctx, store.Put(r.item(version), store.VersionIs(it.Version)))
	if errors.Is(err, store.ErrConflict) {
		return nil, 0, nil
	}
	return &r, version, fault.Wrap(fault.Unavailable, err, "claim a resumed switch")
}

// requeueAll requeues up to 6,000 of the messages that a [Switch] has paused ([RequeueRate] per second for [requeueTime]).
func (s *Set) requeueAll(ctx context.Context, workspace string, n Name) (requeued int, err error) {
	const most = RequeueRate * int(requeueTime/time.Second)
	for shard := range shards {
		q := store.Query{Table: store.Deliveries, Partition: waitingPartition(workspace, n, shard), Limit: 100}
		for more := true; more && requeued < most; {
			page, err := s.DB.Query(ctx, q)
			if err != nil {
				return requeued, fault.Wrap(fault.Unavailable, err, "list the paused messages")
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

// deadLetterItem turns a stored message that cannot be decoded or requeued into a dead letter, so that it does not block other messages.
// It treats the record of a resume in the same way.
func (s *Set) deadLetterItem(ctx context.Context, it *store.Item, reason error) error {
	return queue.DeadLetterItem(ctx, s.Queue, s.DB, it, reason, s.now(), cmp.Or(s.Log, slog.Default()))
}

// requeue sends messages back to their queues and deletes their store items. The parameter before is the number of messages that this run
// of requeueAll has already sent. The delays of the messages depend on it, so that the run sends [RequeueRate] messages per second.
func (s *Set) requeue(ctx context.Context, items []store.Item, before int) error {
	byQueue := map[queue.Name][]queue.Outgoing{}
	stored := map[queue.Name][]store.Item{} // the item of each message in byQueue
	var gone []store.Op
	for i, it := range items {
		m, err := decodeStored(it.Value)
		if err != nil {
			if err := s.deadLetterItem(ctx, &it, err); err != nil {
				return err
			}
			continue
		}
		delay := time.Duration(before+i) / RequeueRate * time.Second
		if !s.Alone {
			delay += MaxAge // before, a process may not have noticed the resume, and would pause the message again
		}
		byQueue[m.Queue] = append(byQueue[m.Queue], queue.Outgoing{Body: m.Body, Group: m.Group, Owner: m.Owner, Delay: delay})
		stored[m.Queue] = append(stored[m.Queue], it)
		gone = append(gone, store.Delete(it.Key))
	}
	for name, out := range byQueue {
		err := s.Queue.Send(ctx, name, out...)
		if isRefused(err) {
			err = s.sendEach(ctx, name, out, stored[name])
		}
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "requeue paused messages")
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, s.DB.WriteAll(ctx, gone...), "delete requeued messages")
}

// sendEach sends messages one by one. Messages that the queue refuses become dead letters.
func (s *Set) sendEach(ctx context.Context, name queue.Name, out []queue.Outgoing, items []store.Item) error {
	for i, m := range out {
		err := s.Queue.Send(ctx, name, m)
		if isRefused(err) {
			err = s.deadLetterItem(ctx, &items[i], err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isRefused reports whether an error means that a queue will never accept the message.
func isRefused(err error) bool { return fault.Is(err, fault.Invalid) || fault.Is(err, fault.TooLarge) }

// Note is an operator's note about the origin of failing endpoints, for example "the owner has been told". It does not pause deliveries.
// Notes are in this package because the Lambda functions that need them may also read and write switches.
type Note struct {
	Origin string    `json:"origin"`
	Text   string    `json:"text"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
}

func noteKey(workspace, origin string) store.Key {
	return store.Key{Table: store.Settings, Partition: "switch#" + workspace + "#notes", Sort: origin}
}

func decodeNote(it *store.Item) (n Note, err error) {
	err = json.Unmarshal(it.Value, &n)
	return n, fault.Wrap(fault.Internal, err, "decode a note")
}

// SetNote stores a note. It replaces the earlier note of the same origin, if any.
func (s *Set) SetNote(ctx context.Context, workspace string, n Note) error {
	value, _ := json.Marshal(n) // cannot fail for strings and a time
	err := s.DB.Write(ctx, store.Put(store.Item{Key: noteKey(workspace, n.Origin), Value: value, Version: version}))
	return fault.Wrap(fault.Unavailable, err, "write a note")
}

// RemoveNote removes the note of an origin, if it has one.
func (s *Set) RemoveNote(ctx context.Context, workspace, origin string) error {
	return fault.Wrap(fault.Unavailable, s.DB.Write(ctx, store.Delete(noteKey(workspace, origin))), "remove a note")
}

// NotesOf returns the notes of at most [store.MaxGet] origins, by origin. It leaves out origins without a note.
func (s *Set) NotesOf(ctx context.Context, workspace string, origins ...string) (map[string]*Note, error) {
	if len(origins) == 0 {
		return nil, nil
	}
	keys := make([]store.Key, len(origins))
	for i, origin := range origins {
		keys[i] = noteKey(workspace, origin)
	}
	items, err := s.DB.Get(ctx, keys...)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read notes")
	}
	notes := map[string]*Note{}
	for _, it := range items {
		if it == nil {
			continue
		}
		n, err := decodeNote(it)
		if err != nil {
			return nil, err
		}
		notes[n.Origin] = &n
	}
	return notes, nil
}

// ListNotes returns the notes of a workspace, sorted by origin and beginning after the origin in the parameter after. The result next is
// the origin to continue from, or "" at the end.
func (s *Set) ListNotes(ctx context.Context, workspace, after string, limit int) (notes []Note, next string, err error) {
	return listItems(ctx, s.DB, noteKey(workspace, "").Partition, after, limit, decodeNote)
}

// RemoveNotes removes the notes of origins for which isHealthy returns true, and returns their number.
func (s *Set) RemoveNotes(ctx context.Context, workspace string, isHealthy func(origin string) (bool, error)) (removed int, err error) {
	err = store.Each(ctx, s.DB, noteKey(workspace, ""), "read the notes", func(it *store.Item) error {
		healthy, err := isHealthy(it.Sort)
		if err != nil || !healthy {
			return err
		}
		removed++
		return s.RemoveNote(ctx, workspace, it.Sort)
	})
	return removed, err
}

// EachNoteBy calls do for each note that a principal wrote.
func EachNoteBy(ctx context.Context, db store.DB, workspace, principal string, do func(Note) error) error {
	return store.Each(ctx, db, noteKey(workspace, ""), "read the notes", func(it *store.Item) error {
		n, err := decodeNote(it)
		if err != nil || n.By != principal {
			return err
		}
		return do(n)
	})
}

// UnnameNote replaces the name of the principal that wrote a note, to erase this principal's personal data. It does nothing if the note
// was removed meanwhile.
func UnnameNote(ctx context.Context, db store.DB, workspace string, n Note, name string) error {
	n.By = name
	return rewrite(ctx, db, noteKey(workspace, n.Origin), n)
}
