package sealing

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// ReloadAfter is how old a process's keyset may be before it reads the stored one again: a [Sealer] always does, and an [Opener] only
// if a secret does not open.
const ReloadAfter = 10 * time.Second

// Opener opens sealed secrets. It unwraps the private keyset at first use, once
// per process, and again only when a secret was sealed with a key that it lacks.
// It is safe for concurrent use.
type Opener struct {
	DB      store.DB
	Wrapper Wrapper
	// Timeout bounds reading and unwrapping; 0 is 10 s.
	Timeout time.Duration

	loads singleflight.Group

	mu      sync.Mutex
	opener  *webhook.Opener
	loaded  time.Time
	version int64
	failed  error // of the last load
	rests   time.Time
}

// Open implements delivery.Opener.
func (o *Opener) Open(ctx context.Context, sealed []byte, b webhook.Binding) ([]byte, error) {
	current, err := o.current(ctx, nil)
	if err != nil {
		return nil, err
	}
	key, err := current.Open(ctx, sealed, b)
	if err == nil {
		return key, nil
	}
	newer, lerr := o.current(ctx, current)
	if lerr != nil || newer == current {
		return nil, err
	}
	return newer.Open(ctx, sealed, b)
}

// current returns an opener other than failed, if there can be one. All that wait for it wait
// together, each for as long as its context lets it.
func (o *Opener) current(ctx context.Context, failed *webhook.Opener) (*webhook.Opener, error) {
	o.mu.Lock()
	have, err, rests := o.opener, o.failed, time.Now().Before(o.rests)
	good := have != nil && (have != failed || time.Since(o.loaded) < ReloadAfter)
	o.mu.Unlock()
	switch {
	case good:
		return have, nil
	case rests:
		return nil, err
	}
	// The load is not over with the first one that waits.
	load := o.loads.DoChan("", func() (any, error) { return o.load(context.WithoutCancel(ctx)) })
	select {
	case r := <-load:
		opener, _ := r.Val.(*webhook.Opener)
		return opener, r.Err
	case <-ctx.Done():
		return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "wait for the private keyset")
	}
}

// load unwraps the private keyset unless it is the one that is there. After a failure nothing is
// loaded for as long as that took: what kept one caller waiting in vain would keep the next one, too.
func (o *Opener) load(ctx context.Context) (*webhook.Opener, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.Timeout, 10*time.Second))
	defer cancel()
	o.mu.Lock()
	opener, version := o.opener, o.version
	o.mu.Unlock()
	opener, version, err := o.read(ctx, opener, version)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed = err; err != nil {
		o.rests = time.Now().Add(time.Since(began))
		return nil, err
	}
	o.opener, o.version, o.loaded = opener, version, time.Now()
	return opener, nil
}

// read returns the opener of the stored keyset: the given one if that has its version.
func (o *Opener) read(ctx context.Context, have *webhook.Opener, version int64) (*webhook.Opener, int64, error) {
	item, err := read(ctx, o.DB, privateKey)
	if err != nil {
		return nil, 0, err
	}
	if have != nil && item.Version == version {
		return have, version, nil
	}
	keyset, err := unwrap(ctx, o.Wrapper, item.Value)
	if err != nil {
		return nil, 0, err
	}
	opener, err := webhook.NewOpener(keyset)
	return opener, item.Version, err
}
