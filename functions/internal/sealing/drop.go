package sealing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// StepDrop is the step in which an operator removes the keys from before a rotation. See [Drop].
const StepDrop Step = "drop"

// dropKey has the progress of [Drop].
var dropKey = store.Key{Table: store.Settings, Partition: "sealing", Sort: "drop"}

const (
	// dropWait is the time from the end of the resealing until the check. Stored deliveries of termination notices have
	// copies of sealed secrets, for at most [subscription.EndedKept].
	dropWait = subscription.EndedKept
	// dropReserve is the time before the deadline of an invocation at which Drop begins no further page.
	dropReserve = 20 * time.Second
)

// The phases of [Drop].
const (
	resealing = "reseal" // seals secrets again with the key that seals now
	waiting   = "wait"
	checking  = "check" // looks for secrets that another key has sealed
)

// dropState is the progress of [Drop].
type dropState struct {
	V     int    `json:"v"`
	Phase string `json:"phase"`
	// Key is the prefix of the secrets that the sealing key has sealed. Another rotation begins again.
	Key []byte `json:"key"`
	// At is how far the phase has come.
	At subscription.Position `json:"at"`
	// Resealed is when the resealing ended.
	Resealed time.Time `json:"resealed,omitzero"`
}

// DropResult tells an operator how far [Drop] has come.
type DropResult struct {
	// Phase is the phase that the next call continues: "reseal", "wait" or "check". After the last phase it is "done".
	Phase string `json:"phase"`
	// NotBefore is when the check can begin; it is set while the phase is "wait".
	NotBefore time.Time `json:"notBefore,omitzero"`
	// Dropped is the number of keys that this call has removed.
	Dropped int `json:"dropped"`
}

// errOld ends a check that finds a secret of an old key.
var errOld = errors.New("sealing: a secret is sealed with an old key")

// Drop removes the keys that are older than the sealing key. A secret that no key opens is a lost subscription, so Drop works
// in phases and removes the keys only after the last one:
//
//   - It seals all secrets again with the sealing key.
//   - It waits for [subscription.EndedKept], until no stored delivery has a copy of an older secret and no process still seals
//     with an older public keyset.
//   - It checks all secrets. If it finds one that an older key has sealed, it begins again.
//
// A call continues the phase until shortly before the deadline of ctx, and stores its progress after each page. If two calls
// run concurrently, or a rotation runs at the same time, one of them returns a fault of kind Conflict.
func Drop(ctx context.Context, db store.DB, w Wrapper, now time.Time) (DropResult, error) {
	private, version, err := private(ctx, db, w)
	if err != nil {
		return DropResult{}, err
	}
	opener, err := webhook.NewOpener(private)
	if err != nil {
		return DropResult{}, err
	}
	sealer, err := Public(ctx, db)
	if err != nil {
		return DropResult{}, err
	}
	items, err := db.Get(ctx, dropKey)
	if err != nil {
		return DropResult{}, fault.Wrap(fault.Unavailable, err, "read the progress")
	}
	p := progress{db: db}
	if it := items[0]; it != nil {
		p.version = it.Version
		if err := json.Unmarshal(it.Value, &p.dropState); err != nil {
			return DropResult{}, fault.Wrap(fault.Internal, err, "decode the progress")
		}
	}
	// The stored public keyset decides. After a promotion that crashed, it still seals with the previous key.
	begin := dropState{Phase: resealing, Key: sealer.Key()}
	if !bytes.Equal(p.Key, begin.Key) {
		p.dropState = begin
	}
	if p.Phase == waiting {
		if check := p.Resealed.Add(dropWait); now.Before(check) {
			return DropResult{Phase: waiting, NotBefore: check}, nil
		}
		p.Phase, p.At = checking, subscription.Position{}
	}
	visit := func(ctx context.Context, sealed []byte, b subscription.Binding) ([]byte, error) {
		if p.Phase == checking && !bytes.HasPrefix(sealed, sealer.Key()) {
			return nil, errOld
		}
		return sealer.SealAgain(ctx, sealed, webhook.Binding(b), opener)
	}
	records := &subscription.Records{DB: db}
	for more := true; more; {
		p.At, more, err = records.Reseal(ctx, p.At, visit)
		if errors.Is(err, errOld) {
			p.dropState = begin
			return DropResult{Phase: p.Phase}, p.save(ctx)
		}
		if err != nil {
			return DropResult{}, err
		}
		if !more {
			break
		}
		if err := p.save(ctx); err != nil {
			return DropResult{}, err
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < dropReserve {
			return DropResult{Phase: p.Phase}, nil
		}
	}
	if p.Phase == resealing {
		p.Phase, p.At, p.Resealed = waiting, subscription.Position{}, now.UTC()
		return DropResult{Phase: waiting, NotBefore: p.Resealed.Add(dropWait)}, p.save(ctx)
	}
	dropped, err := dropOlder(ctx, db, w, private, version, sealer)
	if err != nil {
		return DropResult{}, err
	}
	p.dropState = dropState{} // the next call begins again
	return DropResult{Phase: "done", Dropped: dropped}, p.save(ctx)
}

// progress is the stored progress of [Drop].
type progress struct {
	db store.DB
	dropState
	version int64 // of the stored item, or 0 before the first save
}

func (p *progress) save(ctx context.Context) error {
	p.V = 1
	value, err := json.Marshal(p.dropState)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the progress")
	}
	cond := store.Absent()
	if p.version > 0 {
		cond = store.VersionIs(p.version)
	}
	p.version++
	err = p.db.Write(ctx, store.Put(store.Item{Key: dropKey, Value: value, Version: p.version}, cond))
	if errors.Is(err, store.ErrConflict) {
		return fault.New(fault.Conflict, "another call removes keys at the same time: repeat the step")
	}
	return fault.Wrap(fault.Unavailable, err, "store the progress")
}

// dropOlder removes the keys that are older than the sealer's. The stored public keyset keeps their public parts, which are
// not secret, until the next rotation.
func dropOlder(ctx context.Context, db store.DB, w Wrapper, private []byte, version int64, s *webhook.Sealer) (dropped int, err error) {
	left, _, dropped, err := webhook.DropKeys(private, func(prefix []byte) (bool, error) { return bytes.Equal(prefix, s.Key()), nil })
	if err != nil || dropped == 0 {
		return 0, err
	}
	if err := checkOpens(ctx, left, s); err != nil {
		return 0, err
	}
	wrapped, err := wrap(ctx, w, left)
	if err != nil {
		return 0, err
	}
	return dropped, writePrivate(ctx, db, wrapped, version)
}
