// Package functions_test runs template.yaml with the real functions against emulators of AWS. It checks that the
// functions are connected correctly, by using each of them once. The tests in test/ check everything else.
package functions_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/catalog/catalogtest"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/dynamo"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) {
	code := awslocal.Main(m)
	if differences := compareCalls(); code == 0 && len(differences) > 0 {
		fmt.Printf("tools/permissions/calls.tsv: %s\n", strings.Join(differences, "\n"))
		code = 1
	}
	os.Exit(code)
}

// deploy deploys the stack with the project's catalog.
func deploy(t *testing.T, change func(*runner.Options)) *runner.Stack {
	t.Helper()
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	name := "t" + uuid.NewString()[:8]
	o := runner.Options{
		Template: "../template.yaml", Name: name, Region: awslocal.Region,
		Endpoints:  runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack, SSM: ends.MiniStack},
		Parameters: map[string]string{"Auth": "none", "AllowInsecureTargets": "true", "StreamConcurrency": "100"},
		Binaries:   harness.Functions(t),
		Output:     lines{t}, Speed: 60,
	}
	if change != nil {
		change(&o)
	}
	stack := expect.Value(runner.Start(t.Context(), o))(t)
	noteCalls(t, stack)
	t.Cleanup(func() {
		stack.Close()
		for _, denied := range stack.Denied() {
			// While a deployment replaces a table, old processes still use the old one, for which their role no
			// longer has permission.
			if _, table, ok := strings.Cut(denied, ":table/"); ok && !isOfStack(stack, table) {
				continue
			}
			t.Errorf("a permission is missing: %s", denied)
		}
	})
	src := expect.Value(os.ReadFile("../catalog.yaml"))(t)
	cat := expect.Value(catalog.Parse(src))(t)
	expect.OK(t, catalogtest.Store(t.Context(), database(t, stack), auth.DefaultWorkspace, cat))
	return stack
}

// isOfStack reports whether text begins with the name of a table that the stack uses.
func isOfStack(stack *runner.Stack, text string) bool {
	for _, function := range []string{"AdminFunction", "KeysFunction"} { // which use all tables together
		for variable, table := range stack.Environment(function) {
			if strings.HasPrefix(variable, "MCPEVENTS_TABLE_") && strings.HasPrefix(text, table[strings.LastIndex(table, "/")+1:]+`"`) {
				return true
			}
		}
	}
	return false
}

// database returns the stack's store, as the operator's command opens it.
func database(t *testing.T, stack *runner.Stack) store.DB {
	t.Helper()
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	name := strings.TrimSuffix(stack.Outputs()["SettingsTable"], "SettingsTable")
	return dynamo.New(dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB)), func(table store.Table) string {
		return name + strings.ToUpper(string(table[:1])) + string(table[1:]) + "Table"
	})
}

type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

const build = `{"build":%d,"status":"passed"}`

func TestDeployment(t *testing.T) {
	t.Parallel()
	stack := deploy(t, func(o *runner.Options) {
		o.Env = map[string]string{"MCPEVENTS_RETRY_SCHEDULE": "0s,1s,1s", "MCPEVENTS_EVENTS_RETRY_SCHEDULE": "0s,1s,1s"}
		o.Timeouts = map[string]time.Duration{"RelayFunction": relayTime}
	})
	t.Run("after a rotation, secrets can be opened before and after they are sealed again", func(t *testing.T) { rotated(t, stack) })
	t.Run("SRC-01 publish reads a source's secret", func(t *testing.T) { sourced(t, stack) })
	t.Run("retry runs on its schedule", func(t *testing.T) {
		eventually(t, "retry has run", func() bool {
			s := stack.Stats()["RetryFunction"]
			return s.Invocations-s.Throttles > 1 && s.Errors == 0
		})
	})
	for id, s := range stack.Stats() {
		expect.AtMost(t, "the failures of "+id, s.Errors, 0)
	}
	t.Run("a backend's tools and notifications are relayed, even if relay dies", func(t *testing.T) { relayed(t, stack) })
	t.Run("GWN-20, GWN-21, GWN-22 a backend's events are received, even if relay dies", func(t *testing.T) { backendEvents(t, stack) })
	t.Run("GWN-21, GWN-22 publish receives the webhooks of a backend, even if relay dies", func(t *testing.T) { backendWebhooks(t, stack) })
}

// publish sends an event of a build and returns its id.
func publish(t *testing.T, stack *runner.Stack, number int) string {
	t.Helper()
	var answer struct{ Accepted []struct{ ID string } }
	resp := post(t, stack.URL()+"/events", `{"uri":"event://ci/build-finished","data":`+fmt.Sprintf(build, number)+`}`, nil, &answer)
	if resp.StatusCode != http.StatusAccepted || len(answer.Accepted) != 1 {
		t.Fatalf("got %d %v", resp.StatusCode, answer)
	}
	return answer.Accepted[0].ID
}

// register registers a webhook for builds and returns its URI and secret.
func register(t *testing.T, stack *runner.Stack, target string) (uri, secret string) {
	t.Helper()
	var answer struct {
		Subscription struct {
			URI           string `json:"uri"`
			WebhookSecret struct {
				Key string `json:"key"`
			} `json:"webhookSecret"`
		} `json:"subscription"`
	}
	raw := rpc(t, stack.URL(), "resources/subscriptions/register", `"uris":["event://ci/build-finished"],"targetUri":"`+target+`"`)
	expect.OK(t, json.Unmarshal(raw, &answer))
	return answer.Subscription.URI, answer.Subscription.WebhookSecret.Key
}

func deregister(t *testing.T, stack *runner.Stack, uri string) {
	t.Helper()
	rpc(t, stack.URL(), "resources/subscriptions/deregister", `"uri":"`+uri+`"`)
}

func enqueue(t *testing.T, stack *runner.Stack, queue, body string) {
	t.Helper()
	url := stack.QueueURL(queue)
	in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}
	if strings.HasSuffix(url, ".fifo") {
		id := uuid.NewString()
		in.MessageGroupId, in.MessageDeduplicationId = &id, &id
	}
	c := sqs.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.SQS).SQS))
	expect.OK(t, expect.ErrOf(c.SendMessage(t.Context(), in)))
}

// letters counts the dead letters of a queue, or of all queues for "", up to a page of them.
func letters(t *testing.T, stack *runner.Stack, queue string) int {
	t.Helper()
	resp := expect.Value(http.Get(stack.URL() + "/admin/v1/dead-letters?queue=" + queue))(t)
	defer resp.Body.Close()
	var list struct{ Items []json.RawMessage }
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("got %d, %v", resp.StatusCode, err)
	}
	return len(list.Items)
}

func rotated(t *testing.T, stack *runner.Stack) {
	target, hooks := endpoint(t, nil)
	uri, secret := register(t, stack, target)
	for _, step := range []string{"add", "promote"} {
		expect.OK(t, expect.ErrOf(stack.Invoke(t.Context(), "KeysFunction", []byte(`{"rotate":"`+step+`"}`))))
	}
	signed := func(n int) {
		t.Helper()
		publish(t, stack, n)
		if hook := expect.Receive(t, "the webhook", hooks); webhook.Verify(hook.header, hook.body, secret) != nil {
			t.Error("the webhook is not signed with the secret")
		}
	}
	signed(7)
	answer := expect.Value(stack.Invoke(t.Context(), "KeysFunction", []byte(`{"rotate":"drop"}`)))(t)
	expect.Contains(t, "the answer", string(answer), `"phase":"wait"`)
	signed(8)
	deregister(t, stack, uri)
}
