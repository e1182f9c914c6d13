// Package sqs carries messages over Amazon SQS. [Queues.Send] sends them, and [Queues.Lambda] calls a handler with the
// batches of an event source mapping.
//
// The suite queue/queuetest defines the behavior. Only handlers know what messages mean; see package queue.
package sqs

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Limits of a batch request. SQS accepts 1 MiB in total, but some emulators accept only 256 KiB.
const (
	maxEntries = 10
	maxBytes   = 256 << 10
)

// Queues are the queues of the system in SQS. It is safe for concurrent use.
type Queues struct {
	client *sqs.Client
	urls   map[queue.Name]string
	log    *slog.Logger
}

var _ queue.Sender = (*Queues)(nil)

// New returns the queues at the URLs that the function url returns. The log gets back-offs that could not be set.
func New(client *sqs.Client, url func(queue.Name) string, log *slog.Logger) *Queues {
	q := &Queues{client: client, urls: map[queue.Name]string{}, log: log}
	for _, name := range queue.Names() {
		q.urls[name] = url(name)
	}
	return q
}

func (q *Queues) url(name queue.Name) (*string, error) {
	url := q.urls[name]
	if url == "" {
		return nil, fault.New(fault.Invalid, "unknown queue %q (queues: %s)", name, queue.Names())
	}
	return &url, nil
}

// findByARN returns the queue with an ARN.
func (q *Queues) findByARN(arn string) (queue.Name, bool) {
	for name, url := range q.urls {
		if url != "" && arn[strings.LastIndexByte(arn, ':')+1:] == url[strings.LastIndexByte(url, '/')+1:] {
			return name, true
		}
	}
	return "", false
}

// failure wraps an error that leaves the package.
func failure(err error, format string, args ...any) error {
	return fault.Wrap(awsx.KindOf(err), err, format, args...)
}

// pause waits for a random time that grows with every try, up to three seconds.
func pause(ctx context.Context, try int) error {
	return periodic.Sleep(ctx, rand.N(50*time.Millisecond<<min(try, 6)))
}
