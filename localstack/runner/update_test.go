package runner_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

// deployment is a stack with one function for each kind of change.
const deployment = `
Globals: {Function: {Runtime: provided.al2023, CodeUri: fn, Timeout: 10}}
Parameters:
  Note: {Type: String, Default: first}
  Colour: {Type: String, Default: red}
  Quiet: {Type: String, Default: "no"}
  Reserved: {Type: Number, Default: 0}
  Flavour: {Type: String, Default: vanilla}
  Adopted: {Type: String, Default: ""}
  Provider: {Type: String, Default: ""}
  Instances: {Type: Number, Default: 2}
Conditions:
  HasProvider: !Not [!Equals [!Ref Provider, ""]]
  MakesTable: !Equals [!Ref Adopted, ""]
  HasReserved: !Not [!Equals [!Ref Reserved, 0]]
Resources:
  Coloured:
    Type: AWS::Serverless::Function
    Properties: {AutoPublishAlias: live, VersionDescription: !Ref Colour, Environment: {Variables: {COLOUR: !Ref Colour}}}
  Noted:
    Type: AWS::Serverless::Function
    Properties: {AutoPublishAlias: live, VersionDescription: !Ref Note}
  Unpublished:
    Type: AWS::Serverless::Function
    Properties: {AutoPublishAlias: live, VersionDescription: always, Environment: {Variables: {QUIET: !Ref Quiet}}}
  Managed:
    Type: AWS::Serverless::Function
    Condition: HasProvider
    Properties:
      Role: !GetAtt ColouredRole.Arn
      MemorySize: 2048
      AutoPublishAlias: live
      VersionDescription: !Ref Instances
      Environment: {Variables: {INSTANCES: !Ref Instances}}
      PublishToLatestPublished: false
      CapacityProviderConfig: {Arn: !Ref Provider, PerExecutionEnvironmentMaxConcurrency: 2, ExecutionEnvironmentMemoryGiBPerVCpu: 2}
      FunctionScalingConfig: {MinExecutionEnvironments: !Ref Instances, MaxExecutionEnvironments: !Ref Instances}
      FunctionUrlConfig: {AuthType: NONE}
  Bounded:
    Type: AWS::Serverless::Function
    Properties: {ReservedConcurrentExecutions: !If [HasReserved, !Ref Reserved, !Ref AWS::NoValue], FunctionUrlConfig: {AuthType: NONE}}
  Table:
    Type: AWS::DynamoDB::Table
    Condition: MakesTable
    DeletionPolicy: RetainExceptOnCreate
    Properties:
      AttributeDefinitions: [{AttributeName: pk, AttributeType: S}]
      KeySchema: [{AttributeName: pk, KeyType: HASH}]
  CustomFunction:
    Type: AWS::Serverless::Function
    Properties: {}
  Custom:
    Type: Custom::Thing
    Properties: {ServiceToken: !GetAtt CustomFunction.Arn, Flavour: !Ref Flavour, Table: !If [MakesTable, !Ref Table, !Ref Adopted]}
Outputs:
  Colour: {Value: !Ref Colour}
  Managed: {Condition: HasProvider, Value: !GetAtt ManagedUrl.FunctionUrl}
  Table: {Value: !If [MakesTable, !Ref Table, !Ref Adopted]}
`

// orders records CloudFormation's requests to the custom resource, which refuses the flavor "bitter".
type orders struct {
	mu  sync.Mutex
	all []string
}

func (o *orders) handle(raw []byte) (string, error) {
	var e cfn.Event
	if err := json.Unmarshal(raw, &e); err != nil {
		return "", err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	was, _ := e.OldResourceProperties["Flavour"].(string)
	now, _ := e.ResourceProperties["Flavour"].(string)
	o.all = append(o.all, strings.TrimSpace(string(e.RequestType)+" "+strings.TrimSpace(was+" "+now)))
	if now == "bitter" && e.RequestType != cfn.RequestDelete {
		return "", errors.New("too bitter")
	}
	return `"x"`, nil
}

func (o *orders) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.all
	o.all = nil
	return all
}

func startDeployment(t *testing.T) (*runner.Stack, *orders, runner.Options) {
	t.Helper()
	custom := &orders{}
	o := options(t, sink{"CustomFunction": custom.handle})
	o.Template = write(t, deployment)
	return start(t, o), custom, o
}

func TestAFailedStart(t *testing.T) {
	t.Parallel()
	custom := &orders{}
	o := options(t, sink{"CustomFunction": custom.handle})
	o.Template = write(t, deployment)
	hasTable := func() bool {
		t.Helper()
		db := dynamodb.NewFromConfig(awslocal.Config(o.Endpoints.DynamoDB))
		_, err := db.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: aws.String(o.Name + "-Table")})
		if missing := new(types.ResourceNotFoundException); err != nil && !errors.As(err, &missing) {
			t.Fatal(err)
		}
		return err == nil
	}
	fail := func() {
		t.Helper()
		o.Parameters = map[string]string{"Flavour": "bitter"}
		if stack, err := runner.Start(t.Context(), o); err == nil {
			stack.Close()
			t.Error("the start succeeded")
		}
		o.Parameters = nil
	}
	t.Run("AWS-12 the failed first deployment of a stack deletes what it created", func(t *testing.T) {
		fail()
		expect.List(t, "the requests of the custom resource", custom.take(), []string{"Create bitter", "Delete bitter"})
		expect.True(t, "the table is removed", !hasTable())
	})
	t.Run("a stack that existed keeps its table if a start fails", func(t *testing.T) {
		start(t, o).Close()
		custom.take()
		fail()
		expect.List(t, "the requests of the custom resource", custom.take(), []string{"Create bitter"})
		expect.True(t, "the table is kept", hasTable())
	})
}

func update(t *testing.T, stack *runner.Stack, parameters map[string]string) {
	t.Helper()
	expect.OK(t, stack.Update(t.Context(), parameters), "update", parameters)
}

// process returns the id of a function's process.
func process(t *testing.T, stack *runner.Stack, id string) *os.Process {
	t.Helper()
	b := expect.Value(stack.Invoke(t.Context(), id, testfn.Call{Do: "pid"}.JSON()))(t)
	pid := expect.Value(strconv.Atoi(string(b)))(t)
	return expect.Value(os.FindProcess(pid))(t)
}

func runs(p *os.Process) bool { return p.Signal(syscall.Signal(0)) == nil }

// variable returns an environment variable of a running function.
func variable(t *testing.T, stack *runner.Stack, id, name string) string {
	t.Helper()
	b := expect.Value(stack.Invoke(t.Context(), id, testfn.Call{Do: "describe"}.JSON()))(t)
	var d testfn.Description
	expect.OK(t, json.Unmarshal(b, &d))
	return d.Env[name]
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	stack, custom, o := startDeployment(t)
	expect.List(t, "the requests of the custom resource at the start", custom.take(), []string{"Create vanilla"})
	noted, coloured := process(t, stack, "Noted"), process(t, stack, "Coloured")

	t.Run("a changed function gets new processes, and an unchanged one keeps its own", func(t *testing.T) {
		update(t, stack, map[string]string{"Colour": "blue"})
		if got := variable(t, stack, "Coloured", "COLOUR"); got != "blue" || stack.Outputs()["Colour"] != "blue" {
			t.Errorf("got %q, and the outputs %v, want blue", got, stack.Outputs())
		}
		expect.Eventually(t, "the process of the changed function ends", func() bool { return !runs(coloured) })
		expect.True(t, "the process of the unchanged function runs", runs(noted))
	})
	t.Run("an update without parameters keeps the changed ones and changes no resource", func(t *testing.T) {
		coloured = process(t, stack, "Coloured")
		custom.take()
		update(t, stack, nil)
		expect.Equal(t, "COLOUR", variable(t, stack, "Coloured", "COLOUR"), "blue")
		expect.True(t, "the process of an unchanged function runs", runs(coloured))
		expect.Len(t, "the requests to the custom resource", custom.take(), 0)
	})
	t.Run("AWS-17 an update fails, and is rolled back, if only the description of a version changes", func(t *testing.T) {
		err := stack.Update(t.Context(), map[string]string{"Note": "second", "Colour": "green"})
		expect.Error(t, "the error", err, "resource Noted: CREATE_FAILED: A version for this Lambda function exists ( 1 )")
		expect.Equal(t, "COLOUR after the rollback", variable(t, stack, "Coloured", "COLOUR"), "blue")
		update(t, stack, map[string]string{"Colour": "red"}) // the parameters of the failed update are not kept
		expect.True(t, "the process of an unchanged function runs", runs(noted))
	})
	t.Run("without a new version the alias keeps the old configuration", func(t *testing.T) {
		update(t, stack, map[string]string{"Quiet": "yes"})
		expect.Equal(t, "QUIET", variable(t, stack, "Unpublished", "QUIET"), "no")
	})
	t.Run("an update that a custom resource refuses is rolled back", func(t *testing.T) {
		expect.Error(t, "the update", stack.Update(t.Context(), map[string]string{"Flavour": "bitter", "Colour": "black"}), "too bitter")
		expect.List(t, "the requests of the custom resource", custom.take(), []string{"Update vanilla bitter"})
		expect.Equal(t, "COLOUR after the rollback", variable(t, stack, "Coloured", "COLOUR"), "red")
	})
	t.Run("a table that leaves the stack is retained, and a new one is empty", func(t *testing.T) {
		own := stack.Outputs()["Table"]
		update(t, stack, map[string]string{"Adopted": "another"})
		update(t, stack, map[string]string{"Adopted": ""})
		if got := stack.Outputs()["Table"]; got == own || got == "another" {
			t.Errorf("the stack has table %s after it left %s, want a new one", got, own)
		}
		db := dynamodb.NewFromConfig(awslocal.Config(o.Endpoints.DynamoDB))
		expect.OK(t, expect.ErrOf(db.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &own})), "the old table")
	})
	t.Run("a table that a failed update created is deleted", func(t *testing.T) {
		update(t, stack, map[string]string{"Adopted": "another"})
		expect.Error(t, "the update", stack.Update(t.Context(), map[string]string{"Adopted": "", "Flavour": "bitter"}))
		expect.Equal(t, "the table", stack.Outputs()["Table"], "another")
		db := dynamodb.NewFromConfig(awslocal.Config(o.Endpoints.DynamoDB))
		if _, err := db.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: aws.String(o.Name + "-Table-3")}); err == nil {
			t.Error("the table still exists")
		}
	})
	t.Run("a reservation can be added and removed while an invocation runs", func(t *testing.T) {
		gate := testfn.NewGate(t)
		held := make(chan error, 1)
		go func() {
			_, err := stack.Invoke(t.Context(), "Bounded", testfn.Call{Do: "pid", Gate: gate.URL}.JSON())
			held <- err
		}()
		gate.Arrived(t)
		status := func() int {
			t.Helper()
			resp := expect.Value(http.Get(stack.FunctionURL("Bounded")))(t)
			resp.Body.Close()
			return resp.StatusCode
		}
		update(t, stack, map[string]string{"Reserved": "0"})
		if err := stack.Update(t.Context(), map[string]string{"Reserved": "101"}); err == nil || !strings.Contains(err.Error(), "below its minimum value") {
			t.Errorf("a reservation of more than half the quota: got error %v", err)
		}
		update(t, stack, map[string]string{"Reserved": "100"})
		update(t, stack, map[string]string{"Reserved": "0"})
		expect.Differ(t, "the status without a reservation", status(), http.StatusTooManyRequests)
		gate.Open()
		expect.OK(t, <-held)
	})
	t.Run("AWS-17 a function on managed instances comes and goes with its parameter", func(t *testing.T) {
		for range 2 {
			update(t, stack, map[string]string{"Provider": "arn"})
			url := stack.Outputs()["Managed"]
			expect.Differ(t, "URL", url, "")
			expect.Equal(t, "URL of the function", url, stack.FunctionURL("Managed"))
			expect.Equal(t, "the concurrent requests of a process", variable(t, stack, "Managed", "AWS_LAMBDA_MAX_CONCURRENCY"), "2")
			expect.Equal(t, "the function whose policies it has", variable(t, stack, "Managed", "AWS_SESSION_TOKEN"), "Coloured")
			gone := process(t, stack, "Managed")
			update(t, stack, map[string]string{"Provider": ""})
			if _, err := http.Get(url); err == nil || runs(gone) || stack.FunctionURL("Managed") != "" {
				t.Errorf("the function still serves %s, %v", url, err)
			}
		}
	})
	t.Run("a change of the number of instances reaches the function", func(t *testing.T) {
		update(t, stack, map[string]string{"Provider": "arn"})
		update(t, stack, map[string]string{"Instances": "1"})
		if first, second := process(t, stack, "Managed"), process(t, stack, "Managed"); first.Pid != second.Pid {
			t.Error("a second process has started")
		}
		expect.Error(t, "the update", stack.Update(t.Context(), map[string]string{"Instances": "3", "Flavour": "bitter"}))
		expect.Equal(t, "the instances after the rollback", variable(t, stack, "Managed", "INSTANCES"), "1")
		update(t, stack, map[string]string{"Provider": ""})
	})
	t.Run("a function that a failed update added is removed", func(t *testing.T) {
		expect.Error(t, "the update", stack.Update(t.Context(), map[string]string{"Provider": "arn", "Reserved": "101"}))
		expect.Equal(t, "the URL of the function", stack.FunctionURL("Managed"), "")
	})
	t.Run("a parameter that the template does not have is refused", func(t *testing.T) {
		expect.Error(t, "the update", stack.Update(t.Context(), map[string]string{"Color": "red"}), `no parameter "Color"`)
	})
}
