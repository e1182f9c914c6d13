package functions_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/expect"
)

// AWS-08 and AWS-19: with a quota of 10 and the defaults, events arrive and calls are answered while the maximum
// number of streams is open. Another stream is accepted, because it replaces its caller's oldest stream.
func TestStreamsLeaveANewAccountEnoughForEvents(t *testing.T) {
	t.Parallel()
	stack := deploy(t, func(o *runner.Options) {
		delete(o.Parameters, "StreamConcurrency")
		o.Concurrency = 10
	})
	target, hooks := endpoint(t, nil)
	uri, _ := register(t, stack, target)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const params = `"notifications":{"resourceSubscriptions":["event://ci/build-finished"]}`
	var streams []<-chan string
	for range 2 {
		stream := listen(ctx, t, stack.URL(), params)
		expect.Receive(t, "the acknowledgement", stream)
		streams = append(streams, stream)
	}
	for n := range 30 {
		publishRepeatedly(t, stack, n+1)
	}
	for range 30 {
		expect.Receive(t, "the webhook", hooks)
		for _, stream := range streams {
			expect.Receive(t, "the notification", stream)
		}
	}
	expect.Receive(t, "the acknowledgement of one more", listen(ctx, t, stack.URL(), params))
	deregister(t, stack, uri)
}

// publishRepeatedly sends an event of a build until it is accepted, as a publisher does. Lambda answers 429 while all 10
// invocations are in use: two streams, six workers, the function retry, and an earlier request to publish that has not ended.
func publishRepeatedly(t *testing.T, stack *runner.Stack, number int) {
	t.Helper()
	body := `{"uri":"event://ci/build-finished","data":` + fmt.Sprintf(build, number) + `}`
	eventually(t, "the event is accepted", func() bool {
		switch resp := post(t, stack.URL()+"/events", body, nil, nil); resp.StatusCode {
		case http.StatusAccepted:
			return true
		case http.StatusTooManyRequests:
			return false
		default:
			t.Fatalf("got %d for event %d", resp.StatusCode, number)
			return false
		}
	})
}

// TestMessagesOfTheInbox: AWS-21. By default retry reads the inbox, so that no function is invoked only for this.
func TestMessagesOfTheInbox(t *testing.T) {
	t.Parallel()
	const message = `{"uri":"event://ci/build-finished","id":"from-inbox","data":{"build":1,"status":"passed"}}`
	t.Run("AWS-21 given the defaults, when a program sends to the inbox, then retry publishes the event", func(t *testing.T) {
		stack := deploy(t, nil)
		target, hooks := endpoint(t, nil)
		register(t, stack, target)
		enqueue(t, stack, "InboxQueue", message)
		expect.Equal(t, "the webhook-id", expect.Receive(t, "the webhook", hooks).header.Get("Webhook-Id"), "from-inbox")
		expect.AtMost(t, "the invocations of publish", stack.Stats()["PublishFunction"].Invocations, 0)
	})
	t.Run("AWS-21 given a message that waits for retry, when InboxConcurrency is set, then publish receives the message", func(t *testing.T) {
		stack := deploy(t, func(o *runner.Options) { o.Speed = 0.01 }) // so that retry does not run
		target, hooks := endpoint(t, nil)
		register(t, stack, target)
		enqueue(t, stack, "InboxQueue", message)
		update(t, stack, map[string]string{"InboxConcurrency": "2"})
		expect.Equal(t, "the webhook-id", expect.Receive(t, "the webhook", hooks).header.Get("Webhook-Id"), "from-inbox")
		if n := stack.Stats()["PublishFunction"].Invocations; n == 0 {
			t.Error("publish was not invoked, want one invocation for the batch")
		}
	})
}
