package boot

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
)

// Lambda kills a process 500 ms after SIGTERM. Streams may use drainTime to end. In the remaining time, up to
// lastWords, the Lambda runtime forwards what they have written. It does not signal when it is done.
const (
	drainTime = 250 * time.Millisecond
	lastWords = 480 * time.Millisecond
)

// Draining returns an option that, at SIGTERM, closes the handler's open streams and then ends the process. Nothing
// is closed if the handler was never created or has no method Close.
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
