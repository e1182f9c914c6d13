package boot

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
)

// Lambda kills a process 500 ms after SIGTERM. lastWords are for the runtime to
// hand on what was written at the end.
const (
	drainTime = 350 * time.Millisecond
	lastWords = 50 * time.Millisecond
)

// Draining ends the handler's open streams at SIGTERM, if it has a method Close and was
// made, and then the process.
func (p *Process) Draining(l *Lazy[http.Handler]) lambda.Option {
	return lambda.WithEnableSIGTERM(func() {
		p.drain(l)
		time.Sleep(lastWords)
		os.Exit(0)
	})
}

func (p *Process) drain(l *Lazy[http.Handler]) {
	h, _ := l.Made()
	streams, ok := h.(interface{ Close(context.Context) error })
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := streams.Close(ctx); err != nil {
		p.Log.Warn("streams did not end in time", "error", err)
	}
}
