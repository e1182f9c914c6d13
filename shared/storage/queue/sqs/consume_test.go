package sqs

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/awslocal"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // the tests wait for emulators; -parallel asks for another number
	os.Exit(awslocal.Main(m))
}

var created atomic.Int64

// open makes queues of the test's own at the endpoint.
func open(t testing.TB, endpoint string) *Queues {
	t.Helper()
	client := sqs.NewFromConfig(awslocal.Config(endpoint))
	urls, err := create(t.Context(), client, fmt.Sprintf("t%d-%d-", time.Now().UnixNano(), created.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	return New(client, urls, slog.New(slog.DiscardHandler))
}

func send(t *testing.T, q *Queues, name queue.Name, group string, bodies ...string) {
	t.Helper()
	var msgs []queue.Outgoing
	for _, body := range bodies {
		msgs = append(msgs, queue.Outgoing{Body: []byte(body), Group: group})
	}
	if err := q.Send(t.Context(), name, msgs...); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkSendAndConsume(b *testing.B) {
	q := open(b, awslocal.Start(b, awslocal.SQS).SQS)
	body := []byte(`{"data":"` + strings.Repeat("x", 900) + `"}`)
	for b.Loop() {
		msgs := make([]queue.Outgoing, 10)
		for i := range msgs {
			msgs[i].Body = body
		}
		if err := q.Send(b.Context(), queue.Deliveries, msgs...); err != nil {
			b.Fatal(err)
		}
	}
	left := atomic.Int64{}
	left.Store(int64(10 * b.N))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	err := q.Consume(ctx, queue.Deliveries, func(_ context.Context, batch []queue.Message) ([]string, error) {
		if left.Add(-int64(len(batch))) <= 0 {
			cancel()
		}
		return nil, nil
	}, queue.ConsumeOptions{Concurrency: 4})
	if err != nil {
		b.Fatal(err)
	}
}
