package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-sdk-go-v2/aws"
	awslambda "github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
		expect.Len(t, "the outputs", got, len(want))
	})
	t.Run("environment", func(t *testing.T) {
		b := expect.Value(stack.Invoke(t.Context(), "BufferedFunction", testfn.Call{Do: "describe"}.JSON()))(t)
		var d testfn.Description
		expect.OK(t, json.Unmarshal(b, &d))
		for k, want := range map[string]string{
			"GREETING": "servus", "EXTRA": "over", "TABLE": o.Name + "-Table", "PLAIN": stack.QueueURL("Plain"),
			"AWS_REGION": awslocal.Region, "AWS_LAMBDA_FUNCTION_NAME": o.Name + "-BufferedFunction",
		} {
			expect.Equal(t, k, d.Env[k], want)
		}
	})
	t.Run("one function calls another with the SDK", func(t *testing.T) { invokeBySDK(t, stack, o.Name) })
	t.Run("the front forwards requests to the functions", func(t *testing.T) {
		resp := expect.Value(http.Get(stack.URL() + "/any/path"))(t)
		defer resp.Body.Close()
		expect.Equal(t, "the status", resp.StatusCode, http.StatusOK)
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
		"an action that it has":           {"BufferedFunction", `GetItem {"TableName":"` + table + `","Key":{"pk":{"S":"a"},"sk":{"S":"-"}}}`, true},
		"an action on keys of its own":    {"BufferedFunction", `PutItem {"TableName":"` + table + `","Item":{"pk":{"S":"own#1"},"sk":{"S":"-"}}}`, true},
		"an action on another's keys":     {"BufferedFunction", `PutItem {"TableName":"` + table + `","Item":{"pk":{"S":"other#1"},"sk":{"S":"-"}}}`, false},
		"an action that it does not have": {"BufferedFunction", `DeleteItem {"TableName":"` + table + `","Key":{"pk":{"S":"own#1"},"sk":{"S":"-"}}}`, false},
		"a function without policies":     {"StreamFunction", `GetItem {"TableName":"` + table + `","Key":{"pk":{"S":"a"},"sk":{"S":"-"}}}`, false},
	}
	denied := 0
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := expect.Value(stack.Invoke(t.Context(), tc.function, testfn.Call{Do: "dynamodb", Text: tc.request}.JSON()))(t)
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
	b := expect.Value(stack.Invoke(t.Context(), "BufferedFunction", testfn.Call{Do: "describe"}.JSON()))(t)
	var d testfn.Description
	expect.OK(t, json.Unmarshal(b, &d))
	client := awslambda.NewFromConfig(awslocal.Config(d.Env["AWS_ENDPOINT_URL_LAMBDA"]))
	invoke := func(function string, kind lambdatypes.InvocationType, c testfn.Call) (*awslambda.InvokeOutput, error) {
		return client.Invoke(t.Context(), &awslambda.InvokeInput{FunctionName: &function, InvocationType: kind, Payload: c.JSON()})
	}
	for _, function := range []string{name + "-StreamFunction", "arn:aws:lambda:us-east-1:000000000000:function:" + name + "-StreamFunction"} {
		out := expect.Value(invoke(function, "", testfn.Call{Do: "describe"}))(t)
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
	expect.Equal(t, "an output whose condition holds", stack.Outputs()["Hidden"], "yes")
	busy := make(chan error, 1)
	go func() {
		_, err := stack.Invoke(context.Background(), "BufferedFunction", testfn.Call{Do: "pid", Gate: gate.URL}.JSON())
		busy <- err
	}()
	gate.Arrived(t)
	resp := expect.Value(http.Get(stack.FunctionURL("BufferedFunction")))(t)
	resp.Body.Close()
	expect.Equal(t, "the status", resp.StatusCode, http.StatusTooManyRequests)
	gate.Open()
	expect.OK(t, <-busy)
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
	o.Speed = 1200 // so that a minute takes 50 ms
	start(t, o)
	for range 3 {
		expect.Contains(t, "the event", string(expect.Receive(t, "a tick", ticks)), `"detail-type":"Scheduled Event"`)
	}
}

func TestACustomResourceThatFailsStopsTheStart(t *testing.T) {
	o := options(t, sink{"CustomFunction": func([]byte) (string, error) { return "", errors.New("no vanilla") }})
	stack, err := runner.Start(t.Context(), o)
	if err == nil {
		stack.Close()
	}
	expect.Error(t, "the start", err, "resource Custom: FAILED: no vanilla")
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
	expect.Equal(t, "the answer", string(expect.Value(stack.Invoke(t.Context(), "BuiltFunction", []byte("{}")))(t)), `"built"`)
	expect.Contains(t, "the progress", progress.String(), "built  built (1 of 1, ")
}
