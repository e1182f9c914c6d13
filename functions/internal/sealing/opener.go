package sealing

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// ReloadAfter is the age at which a process reads the stored keyset again. A [Sealer] always does so, an [Opener]
// only if it cannot open a secret.
const ReloadAfter = 10 * time.Second

// Opener opens sealed secrets. It unwraps the private keyset at its first use, and again only if a secret was sealed with a
// key that the keyset lacks. It is safe for concurrent use.
type Opener struct {
	DB      store.DB
	Wrapper Wrapper
	// Timeout limits reading and unwrapping. 0 means 10 s.
	Timeout time.Duration

	once   sync.Once
	keyset *refresh.Value[openable]
}

// openable is an unwrapped keyset and the version of its item.
type openable struct {
	*webhook.Opener
	version int64
}

// Open implements delivery.Opener.
func (o *Opener) Open(ctx context.Context, sealed []byte, b webhook.Binding) ([]byte, error) {
	o.once.Do(func() {
		o.keyset = refresh.New(refresh.Options{Name: "the private keyset", Fresh: refresh.Forever, Proportional: true, Timeout: o.Timeout}, o.load)
	})
	current, err := o.keyset.Get(ctx)
	if err != nil {
		return nil, err
	}
	key, err := current.Open(ctx, sealed, b)
	if err == nil {
		return key, nil
	}
	newer, lerr := o.keyset.Within(ctx, ReloadAfter)
	if lerr != nil || newer.Opener == current.Opener {
		return nil, err
	}
	return newer.Open(ctx, sealed, b)
}

// load unwraps the stored keyset, unless it has the same version as the old one.
func (o *Opener) load(ctx context.Context, old openable) (openable, error) {
	item, err := read(ctx, o.DB, privateKey)
	if err != nil || old.Opener != nil && item.Version == old.version {
		return old, err
	}
	keyset, err := unwrap(ctx, o.Wrapper, item.Value)
	if err != nil {
		return old, err
	}
	opener, err := webhook.NewOpener(keyset)
	return openable{opener, item.Version}, err
}
