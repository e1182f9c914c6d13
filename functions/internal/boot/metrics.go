package boot

import (
	"context"
	"sync"
	"time"
)

const (
	// flushTime limits how long an invocation waits for the collector, because its caller waits too.
	flushTime = 500 * time.Millisecond
	// flushPause is how long a process does not send anything after the collector was too slow.
	flushPause = time.Minute
)

// collector limits the delay that a slow collector of spans and metrics causes for callers.
type collector struct {
	mu     sync.Mutex
	paused time.Time // until when send drops everything
}

// send calls f, which must finish within flushTime. If the collector was too slow recently, send does nothing, and
// the spans and metrics of that time are lost.
func (c *collector) send(ctx context.Context, f func(ctx context.Context)) {
	c.mu.Lock()
	paused := time.Now().Before(c.paused)
	c.mu.Unlock()
	if paused {
		return
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	f(ctx)
	if time.Since(began) >= flushTime { // the HTTP client has the same time limit, and may notice first that it is over
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paused = time.Now().Add(flushPause)
	}
}

// sendSpans sends the ended spans.
func (p *Process) sendSpans(ctx context.Context) {
	if p.spans != nil {
		p.collector.send(ctx, func(ctx context.Context) { _ = p.spans.ForceFlush(ctx) }) // the exporter logs errors
	}
}
