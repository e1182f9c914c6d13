package runner_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/uuid"

	"mcpevents/localstack/internal/testfn"
	"mcpevents/localstack/runner"
	"mcpevents/test/awslocal"
)

// TestMain makes this binary the functions of testdata/template.yaml. What is no
// [testfn.Call] they send to the test, and answer with what it says.
func TestMain(m *testing.M) {
	testfn.Main(func(ctx context.Context, event json.RawMessage) (any, error) {
		var custom cfn.Event
		if err := json.Unmarshal(event, &custom); err == nil && custom.ResponseURL != "" {
			return cfn.LambdaWrap(func(ctx context.Context, e cfn.Event) (string, map[string]any, error) {
				answer, err := ask(ctx, event)
				return "id-of-" + e.LogicalResourceID, map[string]any{"Name": string(answer)}, err
			})(ctx, custom)
		}
		return ask(ctx, event)
	})
	os.Exit(awslocal.Main(m))
}

func ask(ctx context.Context, event json.RawMessage) (json.RawMessage, error) {
	url := os.Getenv("SINK") + "/" + os.Getenv("AWS_SESSION_TOKEN")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(event))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(string(answer))
	}
	return answer, err
}

// sink is the test's end of its functions: by logical id, what an event is answered with.
type sink map[string]func(event []byte) (string, error)

func (s sink) start(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event, err := io.ReadAll(r.Body)
		f := s[strings.TrimPrefix(r.URL.Path, "/")]
		if err != nil || f == nil {
			fmt.Fprint(w, `""`)
			return
		}
		answer, err := f(event)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func options(t *testing.T, s sink) runner.Options {
	t.Helper()
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS)
	bin, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return runner.Options{
		Template: "testdata/template.yaml", Name: "t" + uuid.NewString()[:8], Region: awslocal.Region,
		Endpoints: runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS},
		Env:       map[string]string{testfn.Variable: "1", "SINK": s.start(t)},
		Binaries:  map[string]string{"fn": bin},
		Output:    testWriter{t},
	}
}

func start(t *testing.T, o runner.Options) *runner.Stack {
	t.Helper()
	stack, err := runner.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stack.Close)
	return stack
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func named(sinks ...sink) sink {
	out := sink{"CustomFunction": func([]byte) (string, error) { return `"vanilla"`, nil }}
	for _, s := range sinks {
		for k, v := range s {
			out[k] = v
		}
	}
	return out
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("did not come about in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func send(t *testing.T, c *sqs.Client, url string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}
		if strings.HasSuffix(url, ".fifo") {
			group, _, _ := strings.Cut(body, "-")
			in.MessageGroupId, in.MessageDeduplicationId = aws.String(group), aws.String(body)
		}
		if _, err := c.SendMessage(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
}

// seen collects bodies of messages and fails the ones it is told to, once each.
type seen struct {
	mu     sync.Mutex
	bodies []string
	fail   map[string]int // body to how often it fails
}

// handle fails a message and, as a function of a FIFO queue must, all after it
// in its group.
func (s *seen) handle(event []byte) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch events.SQSEvent
	if err := json.Unmarshal(event, &batch); err != nil {
		return "", err
	}
	failed := map[string]bool{}
	response := events.SQSEventResponse{BatchItemFailures: []events.SQSBatchItemFailure{}}
	for _, r := range batch.Records {
		group := r.Attributes["MessageGroupId"]
		if s.fail[r.Body] > 0 {
			s.fail[r.Body]--
			s.bodies = append(s.bodies, r.Body+" failed")
			failed[group] = group != ""
			response.BatchItemFailures = append(response.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: r.MessageId})
			continue
		}
		if failed[group] {
			response.BatchItemFailures = append(response.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: r.MessageId})
			continue
		}
		s.bodies = append(s.bodies, r.Body)
	}
	b, err := json.Marshal(response)
	return string(b), err
}

func (s *seen) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

func (s *seen) of(group string) (out []string) {
	for _, body := range s.all() {
		if strings.HasPrefix(body, group+"-") {
			out = append(out, body)
		}
	}
	return out
}

func TestAStackServesItsFunctions(t *testing.T) {
	o := options(t, named())
	o.Parameters = map[string]string{"Greeting": "servus"}
	o.Env["EXTRA"] = "over"
	stack := start(t, o)

	t.Run("outputs", func(t *testing.T) {
		want := map[string]string{"Url": stack.FunctionURL("StreamFunction"), "Thing": `"vanilla"`, "Queue": stack.QueueURL("Plain")}
		got := stack.Outputs()
		for k, v := range want {
			if got[k] != v || v == "" {
				t.Errorf("output %s: got %q, want %q", k, got[k], v)
			}
		}
		if len(got) != len(want) {
			t.Errorf("got outputs %v", got)
		}
	})
	t.Run("environment", func(t *testing.T) {
		b, err := stack.Invoke(t.Context(), "BufferedFunction", testfn.Call{Do: "describe"}.JSON())
		if err != nil {
			t.Fatal(err)
		}
		var d testfn.Description
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		for k, want := range map[string]string{
			"GREETING": "servus", "EXTRA": "over", "TABLE": o.Name + "-Table", "PLAIN": stack.QueueURL("Plain"),
			"AWS_REGION": awslocal.Region, "AWS_LAMBDA_FUNCTION_NAME": o.Name + "-BufferedFunction",
		} {
			if d.Env[k] != want {
				t.Errorf("%s: got %q, want %q", k, d.Env[k], want)
			}
		}
	})
	t.Run("one function calls another by the SDK", func(t *testing.T) { invokeBySDK(t, stack, o.Name) })
	t.Run("the front leads to the functions", func(t *testing.T) {
		resp, err := http.Get(stack.URL() + "/any/path")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("got status %d", resp.StatusCode)
		}
	})
	t.Run("requests are counted", func(t *testing.T) {
		got := stack.Requests()["runner"]
		if got["DynamoDB"]["CreateTable"].Requests != 1 || got["SQS"]["CreateQueue"].Requests == 0 || got["SQS"]["CreateQueue"].BytesOut == 0 {
			t.Errorf("got %v", got)
		}
	})
}

func TestAFunctionMayDoWhatItsPoliciesAllow(t *testing.T) {
	o := options(t, named())
	stack := start(t, o)
	table := o.Name + "-Table"
	tests := map[string]struct {
		function, request string
		allowed           bool
	}{
		"an action that it has":           {"BufferedFunction", `GetItem {"TableName":"` + table + `","Key":{"pk":{"S":"a"}}}`, true},
		"an action on keys of its own":    {"BufferedFunction", `PutItem {"TableName":"` + table + `","Item":{"pk":{"S":"own#1"}}}`, true},
		"an action on another's keys":     {"BufferedFunction", `PutItem {"TableName":"` + table + `","Item":{"pk":{"S":"other#1"}}}`, false},
		"an action that it does not have": {"BufferedFunction", `DeleteItem {"TableName":"` + table + `","Key":{"pk":{"S":"own#1"}}}`, false},
		"a function without policies":     {"StreamFunction", `GetItem {"TableName":"` + table + `","Key":{"pk":{"S":"a"}}}`, false},
	}
	denied := 0
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := stack.Invoke(t.Context(), tc.function, testfn.Call{Do: "dynamodb", Text: tc.request}.JSON())
			if err != nil {
				t.Fatal(err)
			}
			want := `"200 `
			if !tc.allowed {
				want = `"400 {\"__type\":\"com.amazon.coral.service#AccessDeniedException\"`
				denied++
			}
			if !strings.HasPrefix(string(got), want) {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
	if got := stack.Denied(); len(got) != denied || !strings.Contains(strings.Join(got, "\n"), "BufferedFunction is not authorized to perform: dynamodb:DeleteItem") {
		t.Errorf("got %q", got)
	}
	if got := stack.Requests()["BufferedFunction"]["DynamoDB"]; got["GetItem"].Requests != 1 || got["PutItem"].Requests != 1 || got["DeleteItem"].Requests != 0 {
		t.Errorf("got counts %v", got)
	}
}

func invokeBySDK(t *testing.T, stack *runner.Stack, name string) {
	b, err := stack.Invoke(t.Context(), "BufferedFunction", testfn.Call{Do: "describe"}.JSON())
	if err != nil {
		t.Fatal(err)
	}
	var d testfn.Description
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	client := awslambda.NewFromConfig(awslocal.Config(d.Env["AWS_ENDPOINT_URL_LAMBDA"]))
	invoke := func(function string, kind lambdatypes.InvocationType, c testfn.Call) (*awslambda.InvokeOutput, error) {
		return client.Invoke(t.Context(), &awslambda.InvokeInput{FunctionName: &function, InvocationType: kind, Payload: c.JSON()})
	}
	for _, function := range []string{name + "-StreamFunction", "arn:aws:lambda:us-east-1:000000000000:function:" + name + "-StreamFunction"} {
		out, err := invoke(function, "", testfn.Call{Do: "describe"})
		if err != nil {
			t.Fatal(err)
		}
		if out.StatusCode != 200 || out.FunctionError != nil || !strings.Contains(string(out.Payload), function[strings.LastIndex(function, ":")+1:]) {
			t.Errorf("got %d %v %s", out.StatusCode, out.FunctionError, out.Payload)
		}
	}
	out, err := invoke(name+"-StreamFunction", lambdatypes.InvocationTypeRequestResponse, testfn.Call{Do: "error", Text: "no luck"})
	if err != nil || aws.ToString(out.FunctionError) != "Unhandled" || !strings.Contains(string(out.Payload), "no luck") {
		t.Errorf("got %+v, %v", out, err)
	}
	if out, err := invoke(name+"-StreamFunction", lambdatypes.InvocationTypeEvent, testfn.Call{Do: "pid"}); err != nil || out.StatusCode != 202 {
		t.Errorf("got %+v, %v", out, err)
	}
	_, err = invoke("nobody", "", testfn.Call{Do: "pid"})
	if _, ok := errors.AsType[*lambdatypes.ResourceNotFoundException](err); !ok {
		t.Errorf("got error %v, want ResourceNotFoundException", err)
	}
}

func TestThrottlingReachesTheCallers(t *testing.T) {
	gate := testfn.NewGate(t)
	o := options(t, named())
	o.Parameters = map[string]string{"Reserved": "1"}
	stack := start(t, o)
	if stack.Outputs()["Hidden"] != "yes" {
		t.Error("a condition that holds left its output out")
	}
	busy := make(chan error, 1)
	go func() {
		_, err := stack.Invoke(context.Background(), "BufferedFunction", testfn.Call{Do: "pid", Gate: gate.URL}.JSON())
		busy <- err
	}()
	gate.Arrived(t)
	resp, err := http.Get(stack.FunctionURL("BufferedFunction"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("got status %d, want 429", resp.StatusCode)
	}
	gate.Open()
	if err := <-busy; err != nil {
		t.Error(err)
	}
}

func TestSchedulesComeAtTheirRate(t *testing.T) {
	ticks := make(chan []byte, 100)
	o := options(t, named(sink{"ScheduledFunction": func(event []byte) (string, error) {
		select {
		case ticks <- event:
		default:
		}
		return "null", nil
	}}))
	o.Speed = 1200 // a minute is 50 ms
	start(t, o)
	for range 3 {
		select {
		case event := <-ticks:
			if !strings.Contains(string(event), `"detail-type":"Scheduled Event"`) {
				t.Errorf("got event %s", event)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no tick came in time")
		}
	}
}

func TestACustomResourceThatFailsStopsTheStart(t *testing.T) {
	o := options(t, sink{"CustomFunction": func([]byte) (string, error) { return "", errors.New("no vanilla") }})
	stack, err := runner.Start(t.Context(), o)
	if err == nil {
		stack.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "resource Custom: FAILED: no vanilla") {
		t.Errorf("got error %v", err)
	}
}

func TestACustomResourceGetsItsProperties(t *testing.T) {
	got := make(chan cfn.Event, 1)
	o := options(t, sink{"CustomFunction": func(b []byte) (string, error) {
		var e cfn.Event
		err := json.Unmarshal(b, &e)
		got <- e
		return `"x"`, err
	}})
	start(t, o)
	e := <-got
	if e.RequestType != cfn.RequestCreate || e.LogicalResourceID != "Custom" || e.ResourceType != "Custom::Thing" || e.ResourceProperties["Flavour"] != "hello" {
		t.Errorf("got %+v", e)
	}
}

func TestFunctionsAreBuilt(t *testing.T) {
	o := options(t, nil)
	var progress strings.Builder
	o.Template, o.Binaries, o.Progress = write(t, `
Resources:
  BuiltFunction:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: built, Runtime: provided.al2023}
`), nil, &progress
	o.Env = nil
	stack := start(t, o)
	got, err := stack.Invoke(t.Context(), "BuiltFunction", []byte("{}"))
	if err != nil || string(got) != `"built"` {
		t.Errorf("got %s, %v", got, err)
	}
	if !strings.Contains(progress.String(), "built  built (1 of 1, ") {
		t.Errorf("got progress %q", progress.String())
	}
}

// write puts a template beside the one of testdata, where its code is.
func write(t *testing.T, src string) string {
	t.Helper()
	f, err := os.CreateTemp("testdata", "template-*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if _, err := f.WriteString(src); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.ToSlash(f.Name())
}

func TestTemplatesThatAreRefused(t *testing.T) {
	const fn = "    Type: AWS::Serverless::Function\n    Properties:\n      CodeUri: fn\n      Runtime: provided.al2023\n"
	const mapping = "  M: {Type: AWS::Lambda::EventSourceMapping, Properties: {FunctionName: !Ref F, EventSourceArn: !GetAtt Q.Arn, "
	const reads = "      Policies: [{Statement: [{Effect: Allow, Action: 'sqs:*', Resource: '*'}]}]\n"
	tests := map[string]struct{ resources, want string }{
		"an unknown type":               {"  A: {Type: AWS::S3::Bucket}", "resource A: resource type AWS::S3::Bucket is not supported"},
		"an unknown runtime":            {"  F: {Type: AWS::Serverless::Function, Properties: {Runtime: go1.x}}", `runtime "go1.x" is not supported`},
		"an unknown event":              {"  F:\n" + fn + "      Events: {E: {Type: SNS}}", `type "SNS" is not supported`},
		"a URL with IAM":                {"  F:\n" + fn + "      FunctionUrlConfig: {AuthType: AWS_IAM}", `AuthType "AWS_IAM" are not supported`},
		"a circle through a URL":        {"  F:\n" + fn + "      FunctionUrlConfig: {AuthType: NONE}\n      Environment: {Variables: {U: !GetAtt FUrl.FunctionUrl}}", "circular reference: F > F"},
		"a circle of functions":         {"  F:\n" + fn + "      Environment: {Variables: {G: !Ref G}}\n  G:\n" + fn + "      Environment: {Variables: {F: !Ref F}}", "circular reference: F > G > F"},
		"a circle in a policy":          {"  F:\n" + fn + "      Policies: [{Statement: [{Resource: !GetAtt F.Arn}]}]", "circular reference: F > F"},
		"a queue of another stack":      {"  F:\n" + fn + "  M: {Type: AWS::Lambda::EventSourceMapping, Properties: {FunctionName: !Ref F, EventSourceArn: arn:aws:sqs:::other}}", "is none of the template's"},
		"a large batch of a FIFO":       {"  Q: {Type: AWS::SQS::Queue, Properties: {FifoQueue: true}}\n  F:\n" + fn + reads + mapping + "BatchSize: 100}}", "batches of at most 10"},
		"a short visibility":            {"  Q: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 2}}\n  F:\n" + fn + reads + mapping + "BatchSize: 1}}", "visibility timeout (2s) is shorter"},
		"a queue through SAM":           {"  F:\n" + fn + "      Events: {E: {Type: SQS, Properties: {}}}", "only AWS::Lambda::EventSourceMapping"},
		"a mapping without permissions": {"  Q: {Type: AWS::SQS::Queue}\n  F:\n" + fn + mapping + "BatchSize: 1}}", "F is not authorized to perform: sqs:ReceiveMessage"},
		"a policy that is not known":    {"  F:\n" + fn + "      Policies: [AWSLambda_FullAccess]", "resource F: policies that are not a list"},
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
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestWithoutAnEndpointTheStartSaysWhatToDo(t *testing.T) {
	for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL_KMS"} {
		t.Setenv(name, "")
	}
	_, err := runner.Start(t.Context(), runner.Options{Template: "testdata/template.yaml"})
	if err == nil || !strings.Contains(err.Error(), "set AWS_ENDPOINT_URL") {
		t.Errorf("got error %v", err)
	}
}
