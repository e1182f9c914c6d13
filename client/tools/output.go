package tools

import (
	"context"
	"io"
	"sync"
	"time"
)

const (
	// maxUnread bounds what the client has not read, in bytes: beyond it none of its requests is read.
	maxUnread = 4 << 20
	// endTime is how long a client that has closed its end may take to read the rest.
	endTime = 2 * time.Second
)

// output writes to a client that may stop reading. What it does not read waits here, so that no tool waits for it.
type output struct {
	to io.Writer

	mu      sync.Mutex
	changed *sync.Cond // with any of the following
	waiting []byte
	unread  int   // bytes that wait or are being written
	err     error // why nothing is written any more
}

func newOutput(to io.Writer) *output {
	o := &output{to: to}
	o.changed = sync.NewCond(&o.mu)
	go o.run()
	return o
}

// Write implements [io.Writer]. It does not wait for the client.
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

// run writes what waits, until end or an error.
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

// read waits until the client has read all but so many bytes. The error is that of the output, or that of ctx.
func (o *output) read(ctx context.Context, but int) error {
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.changed.Broadcast()
	})()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.unread > but && o.err == nil && ctx.Err() == nil {
		o.changed.Wait()
	}
	if o.err != nil {
		return o.err
	}
	return ctx.Err()
}

// end gives the client a moment to read the rest. A write that it still does not read then ends with the process.
func (o *output) end() {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = o.read(ctx, 0)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = io.ErrClosedPipe
	}
	o.changed.Broadcast()
}
