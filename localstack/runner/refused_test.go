package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
