package boot

import (
	"context"
	"net/http"
	"os"
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

// flushTime is how long an invocation may take for its spans, so that a collector which does not answer costs little.
const flushTime = time.Second

// sendSpans sends the spans that ended. A process that Lambda freezes does not do it later.
func (p *Process) sendSpans(ctx context.Context) {
	if p.spans == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	_ = p.spans.ForceFlush(ctx) // what failed is in the log
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
