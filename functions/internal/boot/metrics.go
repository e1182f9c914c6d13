package boot

import (
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
)

// Start serves invocations by a handler that [lambda.Start] takes, until Lambda ends the process. Spans and
// metrics are written after an invocation, and what is left of them at the end.
func (p *Process) Start(handler any) {
	lambda.StartWithOptions(measured{lambda.NewHandler(handler), p}, p.Ending())
}

// Ending writes what is left of the metrics before Lambda ends the process.
func (p *Process) Ending() lambda.Option {
	return lambda.WithEnableSIGTERM(func() {
		p.emf.Close(context.Background())
		p.sendSpans(context.Background())
		os.Exit(0)
	})
}

const (
	// flushTime bounds how long an invocation waits for the collector, because its caller waits as well.
	flushTime = 500 * time.Millisecond
	// flushPause is how long a process sends nothing after the collector was too slow.
	flushPause = time.Minute
)

// collector bounds what a slow collector of spans and metrics costs the callers of a function.
type collector struct {
	mu     sync.Mutex
	paused time.Time // until then
}

// send calls f, which sends something within flushTime, unless the collector was too slow recently. The spans and
// metrics of that time are lost.
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

// sendSpans sends the spans that ended. A process that Lambda freezes does not do it later.
func (p *Process) sendSpans(ctx context.Context) {
	if p.spans != nil {
		p.collector.send(ctx, func(ctx context.Context) { _ = p.spans.ForceFlush(ctx) }) // the log has the error
	}
}

// measured is a handler after which the metrics are written.
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

// Measured is [Process.Start] for a function that streams its answers.
func (p *Process) Measured(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer p.sendSpans(r.Context())
		defer p.emf.Flush(context.WithoutCancel(r.Context()))
		h.ServeHTTP(w, r)
	})
}
