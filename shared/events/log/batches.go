package eventlog

import (
	"context"
	"sync"
)

// batches are the batches of events whose subscribers are looked up and that are appended to the log, in this process.
type batches struct {
	mu      sync.Mutex
	running map[chan struct{}]bool
}

// BeginBatch notes that a batch of events begins to look for subscribers. The caller calls end when the log has the events.
func (l *Log) BeginBatch() (end func()) {
	done := make(chan struct{})
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	if l.batches.running == nil {
		l.batches.running = map[chan struct{}]bool{}
	}
	l.batches.running[done] = true
	return func() {
		l.batches.mu.Lock()
		defer l.batches.mu.Unlock()
		delete(l.batches.running, done)
		close(done)
	}
}

// AwaitBatches waits until the batches that have begun in this process are in the log. A new subscriber calls it before it
// reads the log, because such a batch may have looked for subscribers before there was this one.
func (l *Log) AwaitBatches(ctx context.Context) error {
	l.batches.mu.Lock()
	var running []chan struct{}
	for done := range l.batches.running {
		running = append(running, done)
	}
	l.batches.mu.Unlock()
	for _, done := range running {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
