package runner_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestALoopOfAFunctionIsStoppedUnlessItIsAllowed(t *testing.T) {
	const hops = 30 // not counting the first invocation
	for name, tc := range map[string]struct {
		change  func(*runner.Options)
		invoked int
		dead    string // the message that is then dead-lettered
	}{
		"AWS-03 without Allow":         {func(*runner.Options) {}, 16, "14"},
		"AWS-03 with RecursiveLoop":    {func(o *runner.Options) { o.Parameters = map[string]string{"Recursion": "Allow"} }, 31, ""},
		"AWS-03 without the detection": {func(o *runner.Options) { o.AllowLoops = true }, 31, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, named())
			tc.change(&o)
			stack := start(t, o)
			c := sqs.NewFromConfig(awslocal.Config(o.Endpoints.SQS))
			send(t, c, stack.QueueURL("Loop"), fmt.Sprint(hops))
			expect.Eventually(t, "the chain goes as far as it may", func() bool { return stack.Stats()["LoopFunction"].Invocations >= tc.invoked })
			if tc.dead != "" {
				url := stack.QueueURL("Dead")
				expect.Eventually(t, "the message that was not handled is a dead letter", func() bool {
					out, err := c.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url})
					return err == nil && len(out.Messages) == 1 && *out.Messages[0].Body == tc.dead
				})
			}
			if got := stack.Stats()["LoopFunction"]; got.Invocations != tc.invoked || got.Errors > 0 || (got.Recursive == 1) != (tc.dead != "") {
				t.Errorf("got %+v, want %d invocations", got, tc.invoked)
			}
		})
	}
}

func TestFunctionsShareTheConcurrencyOfTheAccount(t *testing.T) {
	t.Run("AWS-08 a small account", func(t *testing.T) {
		gate := testfn.NewGate(t)
		got := &seen{}
		o := options(t, named(sink{"PlainFunction": got.handle}))
		o.Concurrency = 2
		stack := start(t, o)
		held := make(chan error, 2)
		for range 2 { // one function uses all of the concurrency
			go func() {
				_, err := stack.Invoke(t.Context(), "StreamFunction", testfn.Call{Do: "pid", Gate: gate.URL}.JSON())
				held <- err
			}()
			gate.Arrived(t)
		}
		resp := expect.Value(http.Get(stack.FunctionURL("BufferedFunction")))(t)
		resp.Body.Close()
		expect.Equal(t, "the status", resp.StatusCode, http.StatusTooManyRequests)
		send(t, sqs.NewFromConfig(awslocal.Config(o.Endpoints.SQS)), stack.QueueURL("Plain"), "patient")
		expect.Eventually(t, "the batch is throttled, again and again", func() bool { return stack.Stats()["PlainFunction"].Throttles > 2 })
		expect.Equal(t, "the batches over the account's concurrency", len(got.all()), 0)
		gate.Open()
		for range 2 {
			expect.OK(t, <-held)
		}
		expect.Eventually(t, "the batch is handled when there is room", func() bool { return len(got.all()) == 1 })
	})
	t.Run("AWS-08 a small account allows no reservations", func(t *testing.T) {
		o := options(t, named())
		o.Concurrency, o.Parameters = 10, map[string]string{"Reserved": "1"}
		stack, err := runner.Start(t.Context(), o)
		if err == nil {
			stack.Close()
		}
		expect.Error(t, "the start", err, "below its minimum value of [10]")
	})
}

func TestAQueryReadsAMegabyteAtMost(t *testing.T) {
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	for name, endpoint := range map[string]string{"DynamoDB Local": ends.DynamoDB, "MiniStack": ends.MiniStack} {
		t.Run(name, func(t *testing.T) {
			o := options(t, named())
			o.Endpoints.DynamoDB = endpoint
			stack := start(t, o)
			table, large := o.Name+"-Table", strings.Repeat("x", 300<<10)
			for n := range 5 {
				call(t, stack, fmt.Sprintf(`PutItem {"TableName":%q,"Item":{"pk":{"S":"own#1"},"sk":{"S":"%d"},"d":{"S":%q}}}`, table, n, large))
			}
			query := fmt.Sprintf(`Query {"TableName":%q,"KeyConditionExpression":"pk = :p","ExpressionAttributeValues":{":p":{"S":"own#1"}}`, table)
			start, seen, pages := "", 0, 0
			for {
				var page struct {
					Items            []json.RawMessage
					Count            int
					LastEvaluatedKey json.RawMessage
				}
				expect.OK(t, json.Unmarshal([]byte(call(t, stack, query+start+"}")), &page))
				seen, pages = seen+len(page.Items), pages+1
				if len(page.Items) != page.Count || len(page.Items) > 4 {
					t.Errorf("a page of %d items of 300 KiB, counted as %d", len(page.Items), page.Count)
				}
				if page.LastEvaluatedKey == nil || pages > 5 {
					break
				}
				start = `,"ExclusiveStartKey":` + string(page.LastEvaluatedKey)
			}
			expect.Equal(t, "the items", seen, 5)
			expect.AtLeast(t, "the pages", pages, 2)
		})
	}
}

// call makes a function send a request to DynamoDB and returns the response.
func call(t *testing.T, stack *runner.Stack, request string) string {
	t.Helper()
	raw := expect.Value(stack.Invoke(t.Context(), "BufferedFunction", testfn.Call{Do: "dynamodb", Text: request}.JSON()))(t)
	var answer string
	expect.OK(t, json.Unmarshal(raw, &answer))
	body, ok := strings.CutPrefix(answer, "200 ")
	if !ok {
		t.Fatalf("got %.300s", answer)
	}
	return body
}
