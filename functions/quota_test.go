package functions_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
)

// AWS-08: with a quota of 10 and the defaults, events arrive and calls are answered while as many streams
// are open as may be; one more is refused and takes nothing from them.
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
	body, header := request("subscriptions/listen", params)
	resp := post(t, stack.URL()+"/mcp", body, header, nil)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one more stream: got %d %v", resp.StatusCode, resp.Header)
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
