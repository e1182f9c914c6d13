package boot

import (
	"context"
	"net/http"
	"os"

	"github.com/aws/aws-lambda-go/lambda"
)

// Start serves invocations by a handler that [lambda.Start] takes, until Lambda ends the process. The
// metrics are written after an invocation, and what is left of them at the end.
func (p *Process) Start(handler any) {
	lambda.StartWithOptions(measured{lambda.NewHandler(handler), p}, p.Ending())
}

// Ending writes what is left of the metrics before Lambda ends the process.
func (p *Process) Ending() lambda.Option {
	return lambda.WithEnableSIGTERM(func() {
		p.emf.Close(context.Background())
		os.Exit(0)
	})
}

// measured is a handler after which the metrics are written.
type measured struct {
	lambda.Handler
	process *Process
}

// Invoke implements [lambda.Handler].
func (m measured) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	defer m.process.emf.Flush(ctx)
	return m.Handler.Invoke(ctx, payload)
}

// Measured is [Process.Start] for a function that streams its answers.
func (p *Process) Measured(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer p.emf.Flush(context.WithoutCancel(r.Context()))
		h.ServeHTTP(w, r)
	})
}
