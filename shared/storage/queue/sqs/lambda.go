package sqs

import (
	"context"
	"encoding/base64"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Lambda makes a handler into a function for an event source mapping with ReportBatchItemFailures.
//
// It makes failed messages visible after [queue.Backoff], for which the function needs sqs:ChangeMessageVisibility. The
// mapping itself would leave them invisible for the queue's visibility timeout. A panic is an error of the batch. It does
// not end the process, which may be handling other work.
func (q *Queues) Lambda(h queue.Handler) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	return func(ctx context.Context, event events.SQSEvent) (events.SQSEventResponse, error) {
		batch := Messages(event)
		failed, err := call(ctx, h, batch)
		if err != nil {
			q.backOff(ctx, event, batch, ids(batch))
			// Lambda counts this as an error of the function; the whole batch is redelivered.
			return Response(nil), fault.Wrap(fault.Internal, err, "handle %d messages", len(batch))
		}
		fifo := len(event.Records) > 0 && strings.HasSuffix(event.Records[0].EventSourceARN, ".fifo")
		failed = complete(batch, failed, fifo)
		q.backOff(ctx, event, batch, failed)
		return Response(failed), nil
	}
}

// call returns a panic of the handler as an error.
func call(ctx context.Context, h queue.Handler, batch []queue.Message) (failed []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return h(ctx, batch)
}

// Messages are the records of an event, in their order.
func Messages(event events.SQSEvent) []queue.Message {
	batch := make([]queue.Message, len(event.Records))
	for i, r := range event.Records {
		batch[i] = message(r.MessageId, r.Body, r.Attributes)
		for name, a := range r.MessageAttributes {
			attribute(&batch[i], name, a.StringValue, a.BinaryValue)
		}
	}
	return batch
}

// Response names the failed messages. It never marshals them as null, which is a success for AWS and an error for
// emulators.
func Response(failed []string) events.SQSEventResponse {
	r := events.SQSEventResponse{BatchItemFailures: make([]events.SQSBatchItemFailure, len(failed))}
	for i, id := range failed {
		r.BatchItemFailures[i].ItemIdentifier = id
	}
	return r
}

// Names of system attributes, the same in an event and in the API.
const (
	attrReceived = "ApproximateReceiveCount"
	attrSent     = "SentTimestamp"
	attrGroup    = "MessageGroupId"
	attrDedup    = "MessageDeduplicationId"
	attrSource   = "DeadLetterQueueSourceArn"
)

func message(id, body string, attributes map[string]string) queue.Message {
	received, _ := strconv.Atoi(attributes[attrReceived])
	m := queue.Message{
		ID:       id,
		Outgoing: queue.Outgoing{Body: []byte(body), Group: attributes[attrGroup], Dedup: attributes[attrDedup]},
		Received: max(received, 1),
	}
	if sent, err := strconv.ParseInt(attributes[attrSent], 10, 64); err == nil {
		m.Sent = time.UnixMilli(sent).UTC()
	}
	return m
}

// attribute notes a message attribute.
func attribute(m *queue.Message, name string, text *string, binary []byte) {
	if m.Attributes == nil {
		m.Attributes = map[string]string{}
	}
	if text != nil {
		m.Attributes[name] = *text
	} else {
		m.Attributes[name] = base64.StdEncoding.EncodeToString(binary)
	}
}

// complete adds to what a handler reported: on a FIFO queue the later messages
// of a failed one's group have failed with it, or they would overtake it. An id that
// is not of the batch fails all of it, as it does on AWS.
func complete(batch []queue.Message, failed []string, fifo bool) []string {
	reported := make(map[string]bool, len(failed))
	for _, id := range failed {
		reported[id] = true
	}
	found := 0
	groups := map[string]bool{}
	var all []string
	for _, m := range batch {
		if reported[m.ID] {
			found++
			groups[m.Group] = true
		}
		if reported[m.ID] || fifo && groups[m.Group] {
			all = append(all, m.ID)
		}
	}
	if found < len(reported) {
		return ids(batch)
	}
	return all
}

func ids(batch []queue.Message) []string {
	all := make([]string, len(batch))
	for i, m := range batch {
		all[i] = m.ID
	}
	return all
}
