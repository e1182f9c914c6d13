package boot

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
)

// Lambda kills a process 500 ms after SIGTERM. The streams have drainTime of it to
// end; for the rest, up to lastWords, the runtime hands on what they wrote, of
// which it tells nothing.
const (
	drainTime = 250 * time.Millisecond
	lastWords = 480 * time.Millisecond
)

// Draining ends the handler's open streams at SIGTERM, if it has a method Close and was
// made, and then the process.
func (p *Process) Draining(l *Lazy[http.Handler]) lambda.Option {
	return lambda.WithEnableSIGTERM(func() {
		end := time.After(lastWords)
		p.drain(l)
		p.emf.Close(context.Background())
		<-end
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
		p.Log.Warn("stream drain timed out", "error", err)
	}
}
