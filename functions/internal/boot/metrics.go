package boot

import (
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
)

// Start serves invocations with a handler that [lambda.Start] accepts, until Lambda ends the process. It writes spans
// and metrics after each invocation, and any remaining ones at the end.
func (p *Process) Start(handler any) {
	lambda.StartWithOptions(measured{lambda.NewHandler(handler), p}, p.Ending())
}

// Ending returns an option that writes the remaining metrics and spans before Lambda ends the process.
func (p *Process) Ending() lambda.Option {
	return lambda.WithEnableSIGTERM(func() {
		p.emf.Close(context.Background())
		p.sendSpans(context.Background())
		os.Exit(0)
	})
}

const (
	// flushTime limits how long an invocation waits for the collector, because its caller waits too.
	flushTime = 500 * time.Millisecond
	// flushPause is how long a process does not send anything after the collector was too slow.
	flushPause = time.Minute
)

// collector limits the delay that a slow collector of spans and metrics causes for callers.
type collector struct {
	mu     sync.Mutex
	paused time.Time // time until which nothing is sent
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	f(ctx)
	if ctx.Err() != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paused = time.Now().Add(flushPause)
	}
}

// sendSpans sends the ended spans now, because Lambda may freeze the process afterwards.
func (p *Process) sendSpans(ctx context.Context) {
	if p.spans != nil {
		p.collector.send(ctx, func(ctx context.Context) { _ = p.spans.ForceFlush(ctx) }) // the exporter logs errors
	}
}

// measured is a handler that writes metrics and spans after each invocation.
type measured struct {
	lambda.Handler
	process *Process
}

// Invoke implements [lambda.Handler].
func (m measured) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	defer m.process.sendSpans(ctx)
	defer m.process.emf.Flush(ctx)
	return m.Handler.Invoke(ctx, payload)
}

// Measured does what [Process.Start] does, for a function that streams its responses.
func (p *Process) Measured(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer p.sendSpans(r.Context())
		defer p.emf.Flush(context.WithoutCancel(r.Context()))
		h.ServeHTTP(w, r)
	})
}
