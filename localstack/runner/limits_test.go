package runner_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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
				expect.Equal(t, "the number of items", len(page.Items), page.Count)
				expect.AtMost(t, "the items of a page", len(page.Items), 4)
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

// write writes a template next to the one in testdata, so that it finds its code.
func write(t *testing.T, src string) string {
	t.Helper()
	f := expect.Value(os.CreateTemp("testdata", "template-*.yaml"))(t)
	t.Cleanup(func() { os.Remove(f.Name()) })
	expect.OK(t, expect.ErrOf(f.WriteString(src)))
	expect.OK(t, f.Close())
	return filepath.ToSlash(f.Name())
}

func TestTemplatesThatAreRefused(t *testing.T) {
	const fn = "    Type: AWS::Serverless::Function\n    Properties:\n      CodeUri: fn\n      Runtime: provided.al2023\n"
	const mapping = "  M: {Type: AWS::Lambda::EventSourceMapping, Properties: {FunctionName: !Ref F, EventSourceArn: !GetAtt Q.Arn, "
	const reads = "      Policies: [{Statement: [{Effect: Allow, Action: 'sqs:*', Resource: '*'}]}]\n"
	tests := map[string]struct{ resources, want string }{
		"an unknown type":               {"  A: {Type: AWS::S3::Bucket}", "resource A: resource type AWS::S3::Bucket is not supported"},
		"an unknown runtime":            {"  F: {Type: AWS::Serverless::Function, Properties: {CodeUri: fn, Runtime: go1.x}}", `runtime "go1.x" is not supported`},
		"an unknown event":              {"  F:\n" + fn + "      Events: {E: {Type: SNS}}", `type "SNS" is not supported`},
		"a URL with IAM":                {"  F:\n" + fn + "      FunctionUrlConfig: {AuthType: AWS_IAM}", `AuthType "AWS_IAM" are not supported`},
		"a circle through a URL":        {"  F:\n" + fn + "      FunctionUrlConfig: {AuthType: NONE}\n      Environment: {Variables: {U: !GetAtt FUrl.FunctionUrl}}", "circular reference: F > F"},
		"a circle of functions":         {"  F:\n" + fn + "      Environment: {Variables: {G: !Ref G}}\n  G:\n" + fn + "      Environment: {Variables: {F: !Ref F}}", "circular reference: F > G > F"},
		"a circle in a policy":          {"  F:\n" + fn + "      Policies: [{Statement: [{Resource: !GetAtt F.Arn}]}]", "circular reference: F > F"},
		"a queue of another stack":      {"  F:\n" + fn + "  M: {Type: AWS::Lambda::EventSourceMapping, Properties: {FunctionName: !Ref F, EventSourceArn: arn:aws:sqs:::other}}", "the template has no queue"},
		"a large batch of a FIFO":       {"  Q: {Type: AWS::SQS::Queue, Properties: {FifoQueue: true}}\n  F:\n" + fn + reads + mapping + "BatchSize: 100}}", "batches of at most 10"},
		"a short visibility":            {"  Q: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 2}}\n  F:\n" + fn + reads + mapping + "BatchSize: 1}}", "visibility timeout (2s) is shorter"},
		"a queue through SAM":           {"  F:\n" + fn + "      Events: {E: {Type: SQS, Properties: {}}}", "only AWS::Lambda::EventSourceMapping"},
		"a mapping without permissions": {"  Q: {Type: AWS::SQS::Queue}\n  F:\n" + fn + mapping + "BatchSize: 1}}", "F is not authorized to perform: sqs:ReceiveMessage"},
		"a policy that is not known":    {"  F:\n" + fn + "      Policies: [AWSLambda_FullAccess]", "resource F: policies that are not a list"},
		"managed instances":             {"  F:\n" + fn + "      CapacityProviderConfig: {Arn: a, PerExecutionEnvironmentMaxConcurrency: 2}", "needs an alias, MemorySize of at least 2048"},
		"a role of its own":             {"  R: {Type: AWS::IAM::Role}\n  F:\n" + fn + "      Role: !GetAtt R.Arn", "only that of another function"},
		"a cron schedule":               {"  F:\n" + fn + "      Events: {E: {Type: Schedule, Properties: {Schedule: \"cron(0 12 * * ? *)\"}}}", "only rate("},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(t, nil)
			o.Template = write(t, "Resources:\n"+tc.resources+"\n")
			stack, err := runner.Start(t.Context(), o)
			if err == nil {
				stack.Close()
			}
			expect.Error(t, "the start", err, tc.want)
		})
	}
}

func TestWithoutAnEndpointTheStartSaysWhatToDo(t *testing.T) {
	for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL_KMS"} {
		t.Setenv(name, "")
	}
	_, err := runner.Start(t.Context(), runner.Options{Template: "testdata/template.yaml"})
	expect.Error(t, "the error", err, "set AWS_ENDPOINT_URL")
}
