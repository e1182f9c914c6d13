package tools

import (
	"context"
	"io"
	"sync"
	"time"
)

const (
	// maxUnread limits the bytes that the client has not read. While there are more, the server reads no request.
	maxUnread = 4 << 20
	// endTimeout is how long a client that has closed its end may take to read the rest.
	endTimeout = 2 * time.Second
)

// output writes to a client that may stop reading. It buffers the unread messages, so that no tool has to wait for the client.
type output struct {
	to io.Writer

	mu      sync.Mutex
	changed *sync.Cond // signals a change of the fields below
	waiting []byte
	unread  int   // bytes that are waiting or being written
	err     error // why the output has ended
}

func newOutput(to io.Writer) *output {
	o := &output{to: to}
	o.changed = sync.NewCond(&o.mu)
	go o.run()
	return o
}

// Write implements [io.Writer]. It returns without waiting for the client.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	o.waiting, o.unread = append(o.waiting, p...), o.unread+len(p)
	o.changed.Broadcast()
	return len(p), nil
}

// run writes the waiting bytes until end is called or a write fails.
func (o *output) run() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.err == nil {
		if len(o.waiting) == 0 {
			o.changed.Wait()
			continue
		}
		p := o.waiting
		o.waiting = nil
		o.mu.Unlock()
		_, err := o.to.Write(p)
		o.mu.Lock()
		o.unread -= len(p)
		if o.err == nil {
			o.err = err
		}
		o.changed.Broadcast()
	}
}

// waitUntilRead blocks until at most rest bytes are unread. It fails if the output or ctx ends first.
func (o *output) waitUntilRead(ctx context.Context, rest int) error {
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.changed.Broadcast()
	})()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.unread > rest && o.err == nil && ctx.Err() == nil {
		o.changed.Wait()
	}
	if o.err != nil {
		return o.err
	}
	return ctx.Err()
}

// end gives the client until endTimeout to read the rest. If the client still does not read, the goroutine of run stays blocked
// in its write until the process exits.
func (o *output) end() {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	_ = o.waitUntilRead(ctx, 0)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = io.ErrClosedPipe
	}
	o.changed.Broadcast()
}
