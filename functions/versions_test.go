package functions_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// eventPath are the functions that read or write the messages of an event, in order, and their packages.
var eventPath = [][2]string{
	{"PublishFunction", "publish"}, {"FanoutFunction", "fanout"}, {"DispatchFunction", "dispatch"}, {"RetryFunction", "retry"},
}

// builds returns the executables of the functions in this version and in a simulated next release, which writes
// messages of the next version and reads the messages of both versions.
func builds(t *testing.T) (today, next map[string]string) {
	t.Helper()
	today, next = map[string]string{}, map[string]string{}
	dir := t.TempDir()
	replace := map[string]string{}
	for file, constant := range map[string]string{
		"../shared/events/delivery/task/message.go": "const Version = 1",
		"../shared/events/event/event.go":           "const messageVersion = 1",
	} {
		path := expect.Value(filepath.Abs(file))(t)
		src, err := os.ReadFile(path)
		if err != nil || strings.Count(string(src), constant+"\n") != 1 {
			t.Fatalf("%s has no %q, %v: this test does not know how to make a next version", file, constant, err)
		}
		changed := filepath.Join(dir, filepath.Base(file))
		expect.OK(t, os.WriteFile(changed, []byte(strings.Replace(string(src), constant, strings.TrimSuffix(constant, "1")+"2", 1)), 0o600))
		replace[path] = changed
	}
	b := expect.Value(json.Marshal(map[string]any{"Replace": replace}))(t)
	overlay := filepath.Join(dir, "overlay.json")
	expect.OK(t, os.WriteFile(overlay, b, 0o600))
	for _, fn := range eventPath {
		path := filepath.Join(dir, fn[1])
		cmd := exec.CommandContext(t.Context(), "go", "build", "-tags=lambda.norpc", "-ldflags=-s -w", "-overlay", overlay, "-o", path, "./"+fn[1])
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", fn[1], err, b)
		}
		today[fn[0]], next[fn[0]] = harness.Functions(t)["functions/"+fn[1]], path
	}
	return today, next
}

// TestDeployAndRollBackUnderTraffic (AWS-06) replaces the functions one by one while events flow, in the order in
// which the most messages reach a function that is too old for them. All events must be delivered, without dead
// letters.
func TestDeployAndRollBackUnderTraffic(t *testing.T) {
	t.Parallel()
	today, next := builds(t)
	stack := deploy(t, func(o *runner.Options) {
		o.Env = map[string]string{"MCPEVENTS_RETRY_SCHEDULE": "0s,1s,1s,1s,1s"}
	})
	var mu sync.Mutex
	tried, done := map[string]bool{}, map[string]bool{}
	target, hooks := endpoint(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("Webhook-Id")
		if strings.HasSuffix(id, "0") && !tried[id] { // so that there are retries, too
			tried[id] = true
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		done[id] = true
	})
	go func() {
		for range hooks { // counted above
		}
	}()
	const uris = 4
	for n := range uris {
		rpc(t, stack.URL(), "resources/subscriptions/register", fmt.Sprintf(`"uris":["event://chat/versions/c%d/message"],"targetUri":%q`, n, target))
	}
	var accepted atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			body := fmt.Sprintf(`{"uri":"event://chat/versions/c%d/message","id":"v-%d","data":{"user":"a","text":"b","id":"%d"}}`, n%uris, n, n)
			resp, err := http.Post(stack.URL()+"/events", "application/json", strings.NewReader(body))
			if err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusAccepted {
				t.Errorf("publish: got %d", resp.StatusCode)
				return
			}
			accepted.Add(1)
		}
	}()
	flow := func(events int64) {
		t.Helper()
		until := accepted.Load() + events
		eventually(t, "events flow", func() bool { return accepted.Load() >= until })
	}
	delivered := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(done)
	}
	left := func(function string) int64 {
		return stack.Requests()[function]["SQS"]["ChangeMessageVisibilityBatch"].Requests
	}
	flow(50)
	for _, fn := range eventPath { // writers before readers
		stack.Deploy(fn[0], next[fn[0]])
		flow(50)
		if reader := map[string]string{"PublishFunction": "FanoutFunction", "FanoutFunction": "DispatchFunction"}[fn[0]]; reader != "" {
			eventually(t, "AWS-06 a message is left for a newer "+reader, func() bool { return left(reader) > 0 })
		}
	}
	for i := range eventPath { // readers before writers
		fn := eventPath[len(eventPath)-1-i]
		stack.Deploy(fn[0], today[fn[0]])
		flow(50)
	}
	close(stop)
	<-stopped
	total := int(accepted.Load())
	t.Logf("%d events published, %d delivered at the end of the rollback", total, delivered())
	// Messages of the next release wait until it is deployed again.
	for _, fn := range eventPath {
		stack.Deploy(fn[0], next[fn[0]])
	}
	harness.Within(t, 2*harness.Patience, func() bool { return delivered() >= total })
	if got := delivered(); got != total {
		t.Errorf("AWS-06 %d of %d events were lost", total-got, total)
	}
	c := sqs.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.SQS).SQS))
	for _, dead := range []string{"DeadQueue", "EventsDeadQueue"} {
		url := stack.QueueURL(dead)
		out := expect.Value(c.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{
			QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages},
		}))(t)
		expect.Equal(t, "AWS-06: the dead letters in "+dead, out.Attributes["ApproximateNumberOfMessages"], "0")
	}
	expect.AtMost(t, "AWS-06 the dead letters in the list", letters(t, stack, ""), 0)
}
