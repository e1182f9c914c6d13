package functions_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
)

// AWS-08 and AWS-19: with a quota of 10 and the defaults, events arrive and calls are answered while all streams are open
// that may be. One more is accepted, because it replaces its caller's oldest.
func TestStreamsLeaveANewAccountEnoughForEvents(t *testing.T) {
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
		wait(t, "the acknowledgement", stream)
		streams = append(streams, stream)
	}
	for n := range 30 {
		publish(t, stack, n+1)
	}
	for range 30 {
		wait(t, "the webhook", hooks)
		for _, stream := range streams {
			wait(t, "the notification", stream)
		}
	}
	wait(t, "the acknowledgement of one more", listen(ctx, t, stack.URL(), params))
	deregister(t, stack, uri)
}

// TestTheQuotaIsDocumented: AWS-08. The README tells how to look the quota up, and leads to how to ask for more.
func TestTheQuotaIsDocumented(t *testing.T) {
	for file, commands := range map[string][]string{
		"../README.md":                    {"aws lambda get-account-settings", "docs/how-to/deploy-to-aws.md#concurrency"},
		"../docs/how-to/deploy-to-aws.md": {"# Concurrency", "aws service-quotas request-service-quota-increase", "StreamConcurrency"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commands {
			if !strings.Contains(string(text), c) {
				t.Errorf("%s says nothing of %q", file, c)
			}
		}
	}
}
