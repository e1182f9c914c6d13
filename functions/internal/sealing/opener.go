package sealing

import (
	"context"
	"sync"
	"time"

	"mcpevents/shared/store"
	"mcpevents/shared/webhook"
)

// ReloadAfter is how old a process's keyset may be before a secret that does not
// open makes it look for a newer one.
const ReloadAfter = 10 * time.Second

// Opener opens sealed secrets. It unwraps the private keyset at first use, once
// per process, and again only when a secret was sealed with a key that it lacks.
// It is safe for concurrent use.
type Opener struct {
	DB      store.DB
	Wrapper Wrapper
	// Timeout bounds reading and unwrapping; 0 is 10 s.
	Timeout time.Duration

	mu      sync.Mutex
	opener  *webhook.Opener
	loaded  time.Time
	version int64
}

// Open implements delivery.Opener.
func (o *Opener) Open(sealed []byte, b webhook.Binding) ([]byte, error) {
	current, err := o.current(nil)
	if err != nil {
		return nil, err
	}
	key, err := current.Open(sealed, b)
	if err == nil {
		return key, nil
	}
	newer, lerr := o.current(current)
	if lerr != nil || newer == current {
		return nil, err
	}
	return newer.Open(sealed, b)
}

// current returns an opener other than failed, if there can be one.
func (o *Opener) current(failed *webhook.Opener) (*webhook.Opener, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.opener != nil && (o.opener != failed || time.Since(o.loaded) < ReloadAfter) {
		return o.opener, nil
	}
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	item, err := read(ctx, o.DB, privateKey)
	if err != nil {
		return nil, err
	}
	o.loaded = time.Now()
	if o.opener != nil && item.Version == o.version {
		return o.opener, nil
	}
	keyset, err := o.Wrapper.Unwrap(ctx, item.Value)
	if err != nil {
		return nil, err
	}
	opener, err := webhook.NewOpener(keyset)
	if err != nil {
		return nil, err
	}
	o.opener, o.version = opener, item.Version
	return opener, nil
}
