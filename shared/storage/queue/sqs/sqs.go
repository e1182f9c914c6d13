// Package sqs sends and receives messages with Amazon SQS. The test suite queue/queuetest defines the behavior.
package sqs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Limits of a batch request: the number of its messages, and the total size of their bodies. SQS accepts 1 MiB in total, but some
// emulators accept only 256 KiB.
const (
	maxEntries = 10
	maxBytes   = 256 << 10
)

// Queues gives access to the queues of the system in SQS. It is safe for concurrent use.
type Queues struct {
	client *sqs.Client
	urls   map[queue.Name]string
	log    *slog.Logger
}

var _ queue.Sender = (*Queues)(nil)

// New returns the queues at the URLs that the function url returns. The queues log a warning when the back-off of a failed message cannot
// be set.
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

// findByARN returns the queue with an ARN. It compares only the queue's name in SQS, because both the ARN and the URL end with it.
func (q *Queues) findByARN(arn string) (queue.Name, bool) {
	for name, url := range q.urls {
		if url != "" && arn[strings.LastIndexByte(arn, ':')+1:] == url[strings.LastIndexByte(url, '/')+1:] {
			return name, true
		}
	}
	return "", false
}

func failure(err error, format string, args ...any) error {
	return fault.Wrap(awsx.KindOf(err), err, format, args...)
}

// pause waits for a random time before a request is repeated. The maximum is 50 ms if the parameter try is 0, and doubles with each try
// up to 3.2 s.
func pause(ctx context.Context, try int) error {
	return periodic.Sleep(ctx, mathrand.N(50*time.Millisecond<<min(try, 6)))
}

const (
	// maxTries limits how often an entry of a batch request is sent. The AWS SDK itself repeats requests that fail as a whole.
	maxTries    = 6
	maxParallel = 8
)

// Send sends messages in as few requests as possible, and repeats messages that SQS rejects for a temporary reason. It applies
// [queue.Escape] to JSON bodies. It refuses other bodies with characters that SQS refuses.
//
// For a FIFO queue, Send sends one batch after the other. Within a batch, SQS may reject a message for a temporary reason and accept a
// later one of the same group. The rejected message then arrives after the later one, and SQS has no way to prevent that.
func (q *Queues) Send(ctx context.Context, name queue.Name, msgs ...queue.Outgoing) error {
	url, err := q.url(name)
	if err != nil {
		return err
	}
	entries := make([]types.SendMessageBatchRequestEntry, len(msgs))
	for i, msg := range msgs {
		if entries[i], err = entry(name, msg); err != nil {
			return err
		}
		entries[i].Id = aws.String(strconv.Itoa(i % maxEntries))
	}
	if err := q.sendAll(ctx, url, splitBatches(entries), name.FIFO()); err != nil {
		return failure(err, "sending %d messages to %s", len(msgs), name)
	}
	return nil
}

func entry(name queue.Name, msg queue.Outgoing) (e types.SendMessageBatchRequestEntry, err error) {
	if hasForbidden(msg.Body) {
		if !json.Valid(msg.Body) { // JSON has no control characters, so SQS accepts the escaped text
			return e, fault.New(fault.Invalid, "a message for %s has characters that XML 1.0 lacks", name)
		}
		msg.Body = queue.Escape(msg.Body)
	}
	if err := queue.Check(name, &msg); err != nil {
		return e, err
	}
	e.MessageBody = aws.String(string(msg.Body))
	if msg.Group != "" {
		e.MessageGroupId = &msg.Group
	}
	if !name.FIFO() {
		e.DelaySeconds = seconds(msg.Delay)
		return e, nil
	}
	// On a FIFO queue, SQS requires a deduplication id, so a message without one gets a random id. If the SDK repeats the
	// request, it sends the same id again.
	e.MessageDeduplicationId = aws.String(msg.Dedup)
	if msg.Dedup == "" {
		e.MessageDeduplicationId = aws.String(rand.Text())
	}
	return e, nil
}

// hasForbidden reports whether a text has a character that SQS refuses because XML 1.0 lacks it: U+FFFE, U+FFFF, or a control
// character other than tab, line feed and carriage return.
func hasForbidden(body []byte) bool {
	return bytes.ContainsFunc(body, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	})
}

// splitBatches splits entries into batches that each fit into one request to SQS.
func splitBatches(entries []types.SendMessageBatchRequestEntry) (all [][]types.SendMessageBatchRequestEntry) {
	start, size := 0, 0
	for i, e := range entries {
		n := len(*e.MessageBody)
		if i > start && (i-start == maxEntries || size+n > maxBytes) {
			all = append(all, entries[start:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(entries) {
		all = append(all, entries[start:])
	}
	return all
}

func (q *Queues) sendAll(ctx context.Context, url *string, all [][]types.SendMessageBatchRequestEntry, inOrder bool) error {
	if inOrder || len(all) == 1 {
		for _, batch := range all {
			if err := q.sendBatch(ctx, url, batch); err != nil {
				return err
			}
		}
		return nil
	}
	var sending errgroup.Group
	sending.SetLimit(maxParallel)
	for _, batch := range all {
		sending.Go(func() (err error) {
			defer fault.Recovered(&err)
			return q.sendBatch(ctx, url, batch)
		})
	}
	return sending.Wait()
}

func (q *Queues) sendBatch(ctx context.Context, url *string, batch []types.SendMessageBatchRequestEntry) error {
	if len(batch) == 1 {
		e := batch[0]
		_, err := q.client.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: url, MessageBody: e.MessageBody, DelaySeconds: e.DelaySeconds,
			MessageGroupId: e.MessageGroupId, MessageDeduplicationId: e.MessageDeduplicationId,
		})
		return err
	}
	id := func(e types.SendMessageBatchRequestEntry) string { return *e.Id }
	return retryEntries(ctx, batch, id, func(batch []types.SendMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
		out, err := q.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: url, Entries: batch})
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
}

// retryEntries sends a batch request, and repeats it with the entries that SQS rejected for a temporary reason.
func retryEntries[E any](
	ctx context.Context, entries []E, id func(E) string, request func([]E) ([]types.BatchResultErrorEntry, error),
) error {
	for try := 0; len(entries) > 0; try++ {
		if try == maxTries {
			return fault.New(fault.Unavailable, "SQS rejected %d entries of a batch %d times", len(entries), maxTries)
		}
		if try > 0 {
			if err := pause(ctx, try-1); err != nil {
				return err
			}
		}
		failed, err := request(entries)
		if err != nil {
			return err
		}
		if entries, err = selectRetries(entries, failed, id); err != nil {
			return err
		}
	}
	return nil
}

// selectRetries returns the entries that SQS rejected for a temporary reason, in their order. If SQS says that an entry itself is
// wrong, selectRetries returns an error.
func selectRetries[E any](entries []E, failed []types.BatchResultErrorEntry, id func(E) string) ([]E, error) {
	again := map[string]bool{}
	for _, f := range failed {
		if f.SenderFault {
			return nil, fault.New(fault.Internal, "SQS refused an entry: %s", aws.ToString(f.Code))
		}
		again[aws.ToString(f.Id)] = true
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e E) bool { return !again[id(e)] }), nil
}
