package deadletter

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A replay is a job that retries the selected dead letters, or sends the events of a time span to one subscription again. It covers the
// letters and events that existed when it was requested. The store has one item with the replay's state and position.
//
// A worker claims the job for [ReplayClaim] before it sends anything, and renews the claim with each step, so that two workers do not
// send the same events. If the worker dies, another one continues when the claim has expired, and repeats at most one step. A repeated
// step skips letters that were retried already, because retrying deletes them. Every minute, a periodic job continues all running
// replays.

// Replays starts, runs and cancels replays, i.e. jobs that retry dead letters or send past events again.
type Replays struct {
	Operations    *Operations // retries letters
	Subscriptions Finder
	EventLog      *eventlog.Log // needed to replay events
	// Ahead is how far ahead of the current time a replay schedules deliveries. Canceling the replay does not stop the deliveries that
	// are already scheduled. Ahead must be at least the time between two calls of [Replays.Run]. 0 means [ReplayAhead].
	Ahead time.Duration
}

// ReplayState is the state of a replay.
type ReplayState string

// The states of a replay.
const (
	ReplayRunning  ReplayState = "running"
	ReplayDone     ReplayState = "done"
	ReplayCanceled ReplayState = "canceled"
)

// ReplaySelect selects the dead letters that match all of its fields. Without Queue, it selects dead letters of webhooks. If Events is
// set, it instead selects events of the event log, for the given subscription.
type ReplaySelect struct {
	Events       bool      `json:"events,omitempty"`
	Subscription string    `json:"subscription,omitempty"`
	Origin       string    `json:"origin,omitempty"`
	Event        string    `json:"event,omitempty"`
	Queue        string    `json:"queue,omitempty"`
	Since        time.Time `json:"since,omitzero"`
	Until        time.Time `json:"until,omitzero"`
}

func (s ReplaySelect) query() LetterQuery {
	return LetterQuery{Subscription: s.Subscription, Origin: s.Origin, Event: s.Event, Queue: cmp.Or(s.Queue, WebhookQueue), Span: records.Span{Since: s.Since, Until: s.Until}}
}

// Replay is the stored state of a job that retries dead letters or sends past events again.
type Replay struct {
	V         int          `json:"v"`
	ID        string       `json:"id"`
	Workspace string       `json:"ws"`
	State     ReplayState  `json:"state"`
	Select    ReplaySelect `json:"select"`
	Rate      int          `json:"rate"`
	By        string       `json:"by"`
	Created   time.Time    `json:"created"`
	Finished  time.Time    `json:"finished,omitzero"`
	Total     int          `json:"total"`
	Replayed  int          `json:"replayed"`
	Skipped   int          `json:"skipped"`
	// Because has the number of skipped letters and events by reason, for example "ended".
	Because map[string]int `json:"because,omitempty"`
	// Before is the position at which the replay continues. Next is when the next delivery of the replay will be due.
	Before string    `json:"before,omitempty"`
	Next   time.Time `json:"next,omitzero"`
	// Claimed is the time until which other workers leave the replay to the worker that claimed it.
	Claimed time.Time `json:"claimed,omitzero"`

	version int64
}

const (
	// DefaultReplayRate is the rate of a replay that does not set one, in letters or events per second.
	DefaultReplayRate = 20
	// MaxReplayRate is the highest rate of a replay, in letters or events per second.
	MaxReplayRate = 1000

	replayVersion  = 1
	replaysRunning = "replays"
	// ReplayStep is the time span for which a replay schedules deliveries before it saves its position. For example, at 20
	// letters per second, it saves the position after every 100 letters.
	ReplayStep = 5 * time.Second
	// ReplayAhead is the default of [Replays.Ahead].
	ReplayAhead = time.Minute
	// beginTime limits how long the request that starts a replay also runs it; see [Replays.Begin].
	beginTime = 3 * time.Second
	// stepTime limits how long one step of a replay reads the event log. If the subscription's filters reject nearly all events, a step
	// without the limit could take longer than its caller waits. Its progress would then be lost, because a step saves the replay's
	// position only at its end. countTime limits [Replays.CountSelected] in the same way.
	stepTime  = 5 * time.Second
	countTime = 10 * time.Second
	// ReplayClaim is how long a worker may take for a step before another one continues the replay.
	ReplayClaim = 2 * time.Minute
	// replayWorkers is the maximum number of letters that a step of a replay retries concurrently.
	replayWorkers = 8
	// maxCount is the number of letters or events at which [Replays.CountSelected] stops counting.
	maxCount = 100_000
	// SameReplay is the time within which a second request for the same replay of events does not start another one. Replays of
	// dead letters do not need it, because they delete the letters.
	SameReplay = 10 * time.Minute
	// replayKept is how long the store keeps a finished replay.
	replayKept = 7 * 24 * time.Hour
)

func replayKey(workspace, id string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "replay#" + workspace, Sort: id}
}

func runningKey(workspace, id string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: replaysRunning, Sort: workspace + "#" + id}
}

// CountSelected counts the dead letters or events that a replay selects. It stops at about 100,000 or after [countTime]. The result more
// then says that there may be more.
func (rs *Replays) CountSelected(ctx context.Context, workspace string, sub *subscription.Subscription, s ReplaySelect) (n int, more bool, err error) {
	if s.Events {
		return rs.countEvents(ctx, sub, s)
	}
	end := time.Now().Add(within(ctx, countTime))
	for before := ""; ; {
		list, next, err := rs.Operations.ListLetters(ctx, workspace, s.query(), before, 1000)
		if err != nil {
			return 0, false, err
		}
		if n += len(list); next == "" {
			return n, false, nil
		}
		if n >= maxCount || !time.Now().Before(end) {
			return n, true, nil
		}
		before = next
	}
}

// within returns the smaller of two durations: the parameter most, and half of the time until the deadline of ctx.
func within(ctx context.Context, most time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(most, time.Until(end)/2)
	}
	return most
}

// Start starts a replay. The parameter rate is the maximum number of dead letters or events that the replay sends per second. If a replay
// of the same selection is running, Start returns the running replay. It also returns a finished replay of events that was created less
// than [SameReplay] ago, so that a repeated request does not send the events twice.
//
// The parameter by is the name of the person who requested the replay. The parameter sub is the selected subscription for a replay of
// events, and nil for a replay of dead letters.
func (rs *Replays) Start(ctx context.Context, workspace, by string, sub *subscription.Subscription, s ReplaySelect, rate int) (*Replay, error) {
	text, _ := json.Marshal(s) // cannot fail for strings and times
	hash := sha256.Sum256(text)
	id := "rpl_" + base64.RawURLEncoding.EncodeToString(hash[:12])
	for {
		have, err := rs.Find(ctx, workspace, id)
		if err != nil || have != nil && have.State == ReplayRunning {
			return have, err
		}
		now := rs.Operations.Deliveries.Now().UTC()
		if s.Events && have != nil && have.State == ReplayDone && now.Sub(have.Created) < SameReplay {
			return have, nil
		}
		r := &Replay{V: replayVersion, ID: id, Workspace: workspace, State: ReplayRunning, Select: s, Rate: rate, By: by, Created: now, Next: now}
		if have != nil {
			r.version = have.version
		}
		if r.Total, _, err = rs.CountSelected(ctx, workspace, sub, r.selection()); err != nil {
			return nil, err
		}
		entry := store.Item{Key: runningKey(workspace, id), Version: now.UnixMicro()}
		err = rs.save(ctx, r, store.Put(entry))
		if !errors.Is(err, store.ErrConflict) {
			return r, fault.Wrap(fault.Unavailable, err, "begin a replay")
		}
	}
}

// selection returns the replay's selection, limited to letters and events from before the replay was created.
func (r *Replay) selection() ReplaySelect {
	s := r.Select
	if s.Until.IsZero() || s.Until.After(r.Created) {
		s.Until = r.Created
	}
	return s
}

// save writes a replay, together with the writes in the parameter also. It removes a finished replay from the list of running replays. It
// returns [store.ErrConflict] if the replay was changed since it was read.
func (rs *Replays) save(ctx context.Context, r *Replay, also ...store.Op) error {
	had := r.version
	r.version++
	value, _ := json.Marshal(r) // cannot fail for strings, numbers and times
	it := store.Item{Key: replayKey(r.Workspace, r.ID), Value: value, Version: r.version}
	if !r.Finished.IsZero() {
		it.Expires = r.Finished.Add(replayKept)
		also = append(also, store.Delete(runningKey(r.Workspace, r.ID)))
	}
	return rs.Operations.Deliveries.DB.Write(ctx, append(also, store.Put(it, state.UnchangedSince(had)))...)
}

// Find returns a replay, or nil if it does not exist.
func (rs *Replays) Find(ctx context.Context, workspace, id string) (*Replay, error) {
	if id == "" || len(id) > 100 {
		return nil, nil
	}
	it, err := store.One(ctx, rs.Operations.Deliveries.DB, replayKey(workspace, id), "read a replay")
	if err != nil || it == nil {
		return nil, err
	}
	return decodeReplay(it)
}

func decodeReplay(it *store.Item) (*Replay, error) {
	r := &Replay{version: it.Version}
	return r, fault.Wrap(fault.Internal, json.Unmarshal(it.Value, r), "decode a replay")
}

// Cancel ends a running replay and returns it. Deliveries that the replay has already scheduled are still made. If the replay is finished
// or canceled, Cancel returns it unchanged.
func (rs *Replays) Cancel(ctx context.Context, workspace, id string) (*Replay, error) {
	for {
		r, err := rs.Find(ctx, workspace, id)
		if err != nil || r == nil || r.State != ReplayRunning {
			return r, err
		}
		r.State, r.Finished = ReplayCanceled, rs.Operations.Deliveries.Now().UTC()
		err = rs.save(ctx, r)
		if !errors.Is(err, store.ErrConflict) {
			return r, fault.Wrap(fault.Unavailable, err, "cancel a replay")
		}
	}
}

// Finder finds a subscription by its id, or by its principal and id. [subscription.Service] implements it.
type Finder interface {
	Find(ctx context.Context, workspace, id string) (*subscription.Selected, error)
	Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error)
}

// Run continues all running replays and returns the number of letters and events that it sent. It is called once a minute.
func (rs *Replays) Run(ctx context.Context) (taken int, err error) {
	var errs []error
	err = store.Each(ctx, rs.Operations.Deliveries.DB, store.Key{Table: store.Deliveries, Partition: replaysRunning}, "list the replays", func(it *store.Item) error {
		end := strings.LastIndexByte(it.Sort, '#') // the sort key is <workspace>#<id>
		r, err := rs.Find(ctx, it.Sort[:end], it.Sort[end+1:])
		switch {
		case err != nil:
		case r != nil && r.State == ReplayRunning:
			var n int
			n, err = rs.run(ctx, r, time.Time{})
			taken += n
		default:
			// If the replay was started again meanwhile, its entry in the list of running replays has another version and stays.
			err = rs.Operations.Deliveries.DB.Write(ctx, store.Delete(it.Key, store.VersionIs(it.Version)))
			if errors.Is(err, store.ErrConflict) {
				err = nil
			}
			err = fault.Wrap(fault.Unavailable, err, "end a replay")
		}
		errs = append(errs, err)
		return nil
	})
	return taken, errors.Join(append(errs, err)...)
}

// run claims a running replay, and continues it until it is done or has scheduled deliveries far enough ahead of the clock. If until is
// not zero, run also stops at that time. It begins no step shortly before ctx ends, because the step could not save its position. It
// returns the number of letters and events that it sent.
func (rs *Replays) run(ctx context.Context, r *Replay, until time.Time) (taken int, err error) {
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		if last := rs.Operations.Deliveries.Now().Add(max(left/2, left-2*stepTime)); until.IsZero() || last.Before(until) {
			until = last
		}
	}
	for claimed := false; r.State == ReplayRunning; {
		now := rs.Operations.Deliveries.Now()
		if r.Next.Before(now) {
			r.Next = now
		}
		enough := r.Next.Sub(now) > cmp.Or(rs.Ahead, ReplayAhead) || !until.IsZero() && now.After(until)
		if enough && !claimed {
			return taken, nil
		}
		if !claimed && r.Claimed.After(now) {
			return taken, nil // another worker has claimed the replay and continues it
		}
		if r.Claimed = now.Add(ReplayClaim); enough {
			r.Claimed = time.Time{}
		}
		if enough || !claimed {
			if err := rs.save(ctx, r); errors.Is(err, store.ErrConflict) {
				return taken, nil // another worker claimed the replay first, or it was canceled
			} else if err != nil {
				return taken, fault.Wrap(fault.Unavailable, err, "claim a replay")
			}
			claimed = true
		}
		if enough {
			return taken, nil
		}
		n, err := rs.runStep(ctx, r, now)
		if errors.Is(err, store.ErrConflict) {
			return taken, nil // the replay was canceled, or the step took so long that another worker continues the replay
		}
		if taken += n; err != nil {
			return taken, err
		}
	}
	return taken, nil
}

// Begin runs a new replay for up to [beginTime] and returns its state. Without Begin, the replay would start only with the next call of
// [Replays.Run], which may be a minute later.
func (rs *Replays) Begin(ctx context.Context, r *Replay) (*Replay, error) {
	if r.State != ReplayRunning || r.Before != "" || r.Replayed > 0 {
		return r, nil
	}
	if _, err := rs.run(ctx, r, rs.Operations.Deliveries.Now().Add(beginTime)); err != nil {
		return nil, err
	}
	return rs.Find(ctx, r.Workspace, r.ID)
}

// runStep makes the next step of a replay: it retries some letters, or sends some events, and saves the replay's position.
func (rs *Replays) runStep(ctx context.Context, r *Replay, now time.Time) (n int, err error) {
	limit := max(1, min(1000, r.Rate*int(ReplayStep/time.Second)))
	if r.Select.Events {
		return rs.stepEvents(ctx, r, now, limit)
	}
	letters, next, err := rs.Operations.ListLetters(ctx, r.Workspace, r.selection().query(), r.Before, limit)
	if err != nil {
		return 0, err
	}
	// Remember the counts from before this step. Another worker may make the same step and save the replay first. This worker then adds
	// only the counts of its own step to the saved replay. No letter is counted twice, because only one worker can retry it.
	replayed, before := r.Replayed, maps.Clone(r.Because)
	r.Before = next
	delay := max(0, r.Next.Sub(now))
	r.Next = r.Next.Add(time.Duration(len(letters)) * time.Second / time.Duration(r.Rate))
	var mu sync.Mutex
	var work errgroup.Group
	work.SetLimit(replayWorkers)
	for i, l := range letters {
		work.Go(func() (err error) {
			defer fault.Recovered(&err)
			done, err := rs.retryLetter(ctx, r.Workspace, l, delay+time.Duration(i)*time.Second/time.Duration(r.Rate))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fault.Is(err, fault.Conflict):
				r.countSkipped(skipReason(err), 1)
			case err != nil:
				return err
			case done:
				r.Replayed++
				n++
			}
			return nil
		})
	}
	if err := work.Wait(); err != nil { // the next step begins at the same position, and finds the letters that were not retried
		return n, errors.Join(err, rs.countMore(ctx, r, n, nil))
	}
	if next == "" {
		r.State, r.Finished = ReplayDone, rs.Operations.Deliveries.Now().UTC()
	}
	if err = rs.save(ctx, r); errors.Is(err, store.ErrConflict) {
		for why, n := range before {
			r.Because[why] -= n
		}
		if lost := rs.countMore(ctx, r, r.Replayed-replayed, r.Because); lost != nil {
			return n, lost
		}
	}
	return n, err
}

func (rs *Replays) retryLetter(ctx context.Context, workspace string, l Letter, delay time.Duration) (done bool, err error) {
	var sub *subscription.Subscription
	if l.Queue == WebhookQueue {
		if sub, err = rs.Subscriptions.Lookup(ctx, workspace, l.Principal, l.Subscription); err != nil {
			return false, err
		}
	}
	return rs.Operations.Retry(ctx, workspace, l, sub, delay)
}

// countMore adds the counts of replayed and skipped letters to the stored replay, which another worker may have saved or a person
// canceled in the meantime.
func (rs *Replays) countMore(ctx context.Context, replay *Replay, replayed int, because map[string]int) error {
	for replayed+len(because) > 0 {
		r, err := rs.Find(ctx, replay.Workspace, replay.ID)
		if err != nil || r == nil {
			return err
		}
		r.Replayed += replayed
		for why, n := range because {
			r.countSkipped(why, n)
		}
		if err := rs.save(ctx, r); !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "count the replayed letters")
		}
	}
	return nil
}

// Each calls visit for each replay of a workspace, with the keys of all items that the store has for the replay. It logs and skips a replay
// that cannot be decoded.
func (rs *Replays) Each(ctx context.Context, workspace string, visit func(r *Replay, keys []store.Key) error) error {
	return store.Each(ctx, rs.Operations.Deliveries.DB, replayKey(workspace, "-"), "list the replays", func(it *store.Item) error {
		r, err := decodeReplay(it)
		if err != nil {
			rs.Operations.Deliveries.Log.ErrorContext(ctx, "replay not decoded", "workspace", workspace, "replay", it.Sort, "error", err)
			return nil
		}
		return visit(r, []store.Key{it.Key, runningKey(workspace, r.ID)})
	})
}

// Unname replaces the name of the person who started a replay, for example with a pseudonym. Unname fails if a worker has changed the
// replay since it was read. The caller then reads the replay and tries again.
func (rs *Replays) Unname(ctx context.Context, r *Replay, name string) error {
	r.By = name
	return fault.Wrap(fault.Unavailable, rs.save(ctx, r), "take a name off a replay")
}

// The reasons why a replay skips a letter or an event.
const (
	SkippedSuspended = "suspended" // the subscription is suspended until its subscriber refreshes it
	SkippedEnded     = "ended"     // the subscription has ended
	SkippedExpired   = "expired"   // the event is not stored any more
	SkippedUnderway  = "underway"  // the event is being delivered already
	SkippedReturn    = "return"    // the message cannot go back to its queue
)

// reason says why a replay skips a letter, for example [SkippedEnded]. It is the cause (Err) in the errors of [newSkippedError].
type reason string

func (r reason) Error() string { return string(r) }

// newSkippedError returns an error of kind Conflict for a dead letter that cannot be retried. The parameter why is the reason. Replays skip
// such a letter and count it under this reason.
func newSkippedError(why reason, text string) error {
	return &fault.Error{Kind: fault.Conflict, Message: text, Err: why}
}

// skipReason returns the reason why a letter could not be retried. If err is not from [newSkippedError], the letter's message cannot go
// back to its queue, so the reason is [SkippedReturn].
func skipReason(err error) string {
	if r, ok := errors.AsType[reason](err); ok {
		return string(r)
	}
	return SkippedReturn
}

func (r *Replay) countSkipped(why string, n int) {
	if n <= 0 {
		return
	}
	if r.Because == nil {
		r.Because = map[string]int{}
	}
	r.Because[why] += n
	r.Skipped += n
}
