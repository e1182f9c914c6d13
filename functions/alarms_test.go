package functions_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/tools/docs/page"
)

// alarms returns the alarms in the template, as text.
func alarms(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	resources := at(tree(t), "Resources")
	for i := 0; i < len(resources.Content); i += 2 {
		if r := resources.Content[i+1]; value(at(r, "Type")) == "AWS::CloudWatch::Alarm" {
			all[resources.Content[i].Value] = strings.Join(strings.Fields(written(t, *at(r, "Properties"))), " ")
		}
	}
	return all
}

// charts returns the metrics on the dashboard, with namespace, name and dimensions separated by spaces. It expands
// CloudWatch's shorthand: "." repeats the value at the same place of the previous metric, and "..." repeats all values up
// to the remaining ones.
func charts(t *testing.T) (metrics []string) {
	t.Helper()
	var body struct {
		Widgets []struct {
			Properties struct {
				Metrics [][]any `json:"metrics"`
			} `json:"properties"`
		} `json:"widgets"`
	}
	text := at(tree(t), "Resources", "Dashboard", "Properties", "DashboardBody").Content[0]
	expect.OK(t, json.Unmarshal([]byte(value(text)), &body), "parse the dashboard")
	for _, w := range body.Widgets {
		var previous []string
		for _, m := range w.Properties.Metrics {
			var parts []string
			for _, part := range m {
				if text, ok := part.(string); ok { // not the options
					parts = append(parts, text)
				}
			}
			if parts[0] == "..." {
				parts = slices.Concat(previous[:len(previous)-len(parts)+1], parts[1:])
			}
			for i, part := range parts {
				if part == "." {
					parts[i] = previous[i]
				}
			}
			metrics, previous = append(metrics, strings.Join(parts, " ")), parts
		}
	}
	return metrics
}

func TestAlarms(t *testing.T) {
	all := alarms(t)
	t.Run("OPS-14 the runbook has a heading for each alarm, and none for others", func(t *testing.T) {
		page := expect.Value(os.ReadFile("../docs/runbook.md"))(t)
		var headings, names []string
		for _, section := range strings.Split(string(page), "\n## ")[1:] {
			name, text, _ := strings.Cut(section, "\n")
			if !strings.HasSuffix(name, "Alarm") {
				continue // for all alarms
			}
			headings = append(headings, name)
			for _, part := range []string{"**Means:**", "**Look:**", "**Do:**"} {
				expect.Contains(t, name, text, part)
			}
		}
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(headings)
		slices.Sort(names)
		expect.List(t, "the headings of the runbook", headings, names)
	})
	t.Run("OPS-14 each alarm's description links to its heading in the runbook", func(t *testing.T) {
		for name := range all {
			link := "https://github.com/mcp-events/mcpevents/blob/main/docs/runbook.md#" + strings.ToLower(name)
			if text := value(at(tree(t), "Resources", name, "Properties", "AlarmDescription")); !strings.HasSuffix(text, " See "+link) {
				t.Errorf("the description of %s is %q, want one that ends with a link to %s", name, text, link)
			}
		}
	})
	t.Run("OPS-14 the runbook begins with a table of all alarms and helpers that bash can read", func(t *testing.T) {
		p := expect.Value(page.Read("../docs/runbook.md"))(t)
		src := expect.Value(os.ReadFile(p.Path))(t)
		top, _, _ := strings.Cut(string(src), "\n## ")
		for name := range all {
			expect.Contains(t, "the table of the page, with "+name, top, "| ["+name+"](#"+strings.ToLower(name)+") | ")
		}
		helpers := p.Blocks[0].Text
		cmd := exec.CommandContext(t.Context(), "bash", "-n")
		cmd.Stdin = strings.NewReader(helpers)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		resources, outputs := at(tree(t), "Resources"), at(tree(t), "Outputs")
		// Lambda's own lines about a timeout, a crash or a failed start have no level.
		expect.Contains(t, "the helper problems", helpers, `($.level = "ERROR")`, `($.level = "WARN")`, `($.type = "platform.*")`)
		expect.Equal(t, "the level from which Lambda writes its own lines", value(at(tree(t), "Globals", "Function", "LoggingConfig", "SystemLogLevel")), "WARN")
		for variable, suffix := range map[string]string{"f": "Function", "q": "Queue"} {
			m := regexp.MustCompile("for " + variable + " in ([^;]+); do").FindStringSubmatch(helpers)
			if m == nil {
				t.Fatalf("no loop over %s", variable)
			}
			for name := range strings.FieldsSeq(m[1]) {
				if at(resources, name+suffix) == nil {
					t.Errorf("the template has no %s", name+suffix)
				}
			}
		}
		for _, absent := range []string{"none", "ManagedStreamFunction"} { // which belongs to a parameter
			cmd := exec.CommandContext(t.Context(), "bash", "-c", `aws() { case "$*" in *`+absent+"*) return 1;; *) echo 0;; esac; }\n"+helpers+"\nfunctions Errors")
			printed := expect.Value(cmd.Output())(t)
			var got, want []string
			for line := range strings.Lines(string(printed)) {
				name, _, _ := strings.Cut(line, " ")
				got = append(got, name+"Function")
			}
			for _, m := range regexp.MustCompile(`Value: !Ref (\w+)`).FindAllStringSubmatch(all["ErrorsAlarm"], -1) {
				if m[1] != absent {
					want = append(want, m[1])
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			expect.List(t, "the functions that the helper prints", got, want)
		}
		for _, m := range regexp.MustCompile(`\$\(out (\w+)\)`).FindAllStringSubmatch(helpers, -1) {
			if at(outputs, m[1]) == nil {
				t.Errorf("the template has no output %s", m[1])
			}
		}
	})
	t.Run("OPS-14 no alarm has more metrics than CloudWatch accepts", func(t *testing.T) {
		for name, alarm := range all {
			expect.AtMost(t, "the metrics of "+name, strings.Count(alarm, "MetricStat:"), 10)
		}
	})
	t.Run("OPS-14 each alarm reaches the topic or the address", func(t *testing.T) {
		for name, alarm := range all {
			for _, member := range []string{"AlarmActions", "OKActions"} {
				if !strings.Contains(alarm, member+": !If [HasAlarmTopic, [!Ref AlarmTopicArn], !If [HasAlarmEmail, [!Ref AlarmTopic], !Ref 'AWS::NoValue']]") {
					t.Errorf("%s has no %s", name, member)
				}
			}
		}
	})
	t.Run("OPS-14 WHK-20 each queue and each important metric has an alarm", func(t *testing.T) {
		text := ""
		for _, alarm := range all {
			text += alarm
		}
		for _, q := range []string{"InboxQueue", "EventsQueue", "DeliveriesQueue", "SlowQueue", "DeadQueue", "EventsDeadQueue"} {
			expect.Contains(t, "the alarms, with one of "+q, text, "!GetAtt "+q+".QueueName")
		}
		for _, name := range []string{
			metric.DeadLetters, metric.EndpointsFailing, metric.FirstAttemptLag, metric.LogClockSkew, metric.LogLateEntries,
			"Errors", "Throttles", "RecursiveInvocationsDropped", "ConcurrentExecutions", "ApproximateAgeOfOldestMessage",
		} {
			expect.Contains(t, name, text, "MetricName: "+name)
		}
		for _, q := range []string{"InboxQueue", "EventsQueue", "DeliveriesQueue", "SlowQueue"} {
			expect.Contains(t, "the alarm for the depth of "+q, all["DepthAlarm"],
				"MetricName: ApproximateNumberOfMessagesVisible, Dimensions: [{Name: QueueName, Value: !GetAtt "+q+".QueueName}]")
		}
		for _, q := range []string{"DeadQueue", "EventsDeadQueue"} { // at the first message
			expect.Contains(t, q+"Alarm", all[q+"Alarm"], "!GetAtt "+q+".QueueName", "Threshold: 1,")
		}
	})
	t.Run("OPS-14 a dead letter raises an alarm although retry removes it from its queue", func(t *testing.T) {
		for _, name := range []string{"DeadQueueAlarm", "EventsDeadQueueAlarm"} {
			expect.Contains(t, name, all[name], "MetricName: NumberOfMessagesReceived", "Statistic: Sum")
		}
	})
	t.Run("AWS-20 HttpErrorsAlarm watches every function URL", func(t *testing.T) {
		urls := 0
		d, _ := readDeployment(t)
		for id, r := range d.Resources {
			if r.Properties.FunctionURLConfig != nil {
				urls++
				expect.Contains(t, "HttpErrorsAlarm", all["HttpErrorsAlarm"], "MetricName: Url5xxCount, Dimensions: [{Name: FunctionName, Value: !Ref "+id+"}]")
			}
		}
		expect.AtLeast(t, "the function URLs", urls, 1)
	})
	t.Run("AWS-20 Lambda forwards metrics regardless of LogLevel", func(t *testing.T) {
		// Lambda drops lines below its own level, and treats lines without a level as INFO. The functions filter
		// their log themselves.
		expect.Equal(t, "ApplicationLogLevel", value(at(tree(t), "Globals", "Function", "LoggingConfig", "ApplicationLogLevel")), "DEBUG")
	})
	t.Run("OPS-14 the dashboard is JSON and shows what the alarms watch of queues, functions, endpoints, streams and the log", func(t *testing.T) {
		shown := charts(t)
		for _, q := range []string{"Inbox", "Events", "Deliveries", "Slow", "Dead"} {
			expect.Has(t, "the dashboard's metrics", shown, "AWS/SQS ApproximateAgeOfOldestMessage QueueName ${"+q+"Queue.QueueName}")
			expect.Has(t, "the dashboard's metrics", shown, "AWS/SQS ApproximateNumberOfMessagesVisible QueueName ${"+q+"Queue.QueueName}")
		}
		for alarm, name := range map[string]string{
			"ErrorsAlarm": "Errors", "ThrottlesAlarm": "Throttles", "RecursionAlarm": "RecursiveInvocationsDropped", "StreamsAlarm": "ConcurrentExecutions",
		} {
			functions := regexp.MustCompile(`Value: !(?:Ref|If \[HasCapacityProvider, !Ref) (\w+)`).FindAllStringSubmatch(all[alarm], -1)
			for _, f := range functions {
				if strings.HasSuffix(f[1], "StreamFunction") {
					f[1] = "Endpoint" // the function that serves the MCP endpoint
				}
				expect.Has(t, "the dashboard's metrics", shown, "AWS/Lambda "+name+" FunctionName ${"+f[1]+"}")
			}
			expect.AtLeast(t, "the functions that "+alarm+" watches", len(functions), 1)
		}
		for _, name := range []string{metric.DeadLetters, metric.EndpointsFailing, metric.LogClockSkew, metric.LogLateEntries} {
			expect.Has(t, "the dashboard's metrics", shown, "mcp-events "+name+" stack ${AWS::StackName}")
		}
	})
	t.Run("OPS-14 alarms and charts use only metrics that exist", func(t *testing.T) {
		source := expect.Value(os.ReadFile("../template.yaml"))(t)
		for _, name := range regexp.MustCompile(`mcpevents_[a-z_]+`).FindAllString(string(source), -1) {
			expect.True(t, "the metric "+name+" exists", slices.ContainsFunc(metric.Table, func(d metric.Definition) bool { return d.Name == name }))
		}
	})
}

// OPS-14: StreamsAlarm goes off when all streams that a deployment allows are open, also with few of them.
func TestStreamsAlarmIsReached(t *testing.T) {
	alarm := at(tree(t), "Resources", "StreamsAlarm", "Properties")
	threshold := expect.Value(strconv.ParseFloat(value(at(alarm, "Threshold")), 64))(t)
	formula := value(at(alarm, "Metrics").Content[0].Content[5].Content[0])
	for concurrency := 2; concurrency <= 1000; concurrency++ {
		expression := expect.Value(parser.ParseExpr(strings.ReplaceAll(formula, "${Limit}", strconv.Itoa(concurrency))))(t)
		most := app.NewSharedLeases(&app.Core{Limits: config.Limits{StreamConcurrency: int64(concurrency)}}, 1).Fleet
		for used, on := range map[int64]bool{most: true, most * 89 / 100: false} {
			if got := compute(t, expression, float64(used)); got >= threshold != on {
				t.Errorf("with a concurrency of %d and %d of %d streams open, the alarm is on: %t, want %t", concurrency, used, most, !on, on)
			}
		}
	}
}

// compute returns the value of an expression of metric math, in which used is a metric.
func compute(t *testing.T, e ast.Expr, used float64) float64 {
	switch e := e.(type) {
	case *ast.BasicLit:
		return expect.Value(strconv.ParseFloat(e.Value, 64))(t)
	case *ast.Ident:
		expect.Equal(t, "the metric", e.Name, "used")
		return used
	case *ast.CallExpr:
		expect.Equal(t, "the function", fmt.Sprint(e.Fun), "FLOOR")
		return math.Floor(compute(t, e.Args[0], used))
	case *ast.BinaryExpr:
		x, y := compute(t, e.X, used), compute(t, e.Y, used)
		switch e.Op {
		case token.ADD:
			return x + y
		case token.MUL:
			return x * y
		case token.QUO:
			return x / y
		}
	}
	t.Fatalf("unknown part of an expression: %T", e)
	return 0
}

// restored copies a table, as a restore would, and then does step 3 of the runbook. It returns the ARN.
func restored(t *testing.T, db *dynamodb.Client, from, to string) (arn string) {
	t.Helper()
	ctx := t.Context()
	was := expect.Value(db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &from}))(t)
	made := expect.Value(db.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &to, KeySchema: was.Table.KeySchema, AttributeDefinitions: was.Table.AttributeDefinitions, BillingMode: types.BillingModePayPerRequest,
	}))(t)
	expect.OK(t, dynamodb.NewTableExistsWaiter(db).Wait(ctx, &dynamodb.DescribeTableInput{TableName: &to}, time.Minute))
	pages := dynamodb.NewScanPaginator(db, &dynamodb.ScanInput{TableName: &from})
	for pages.HasMorePages() {
		page := expect.Value(pages.NextPage(ctx))(t)
		for _, item := range page.Items {
			expect.OK(t, expect.ErrOf(db.PutItem(ctx, &dynamodb.PutItemInput{TableName: &to, Item: item})))
		}
	}
	setProperties(t, db, to)
	return *made.TableDescription.TableArn
}

// setProperties sets the properties that DynamoDB does not restore.
func setProperties(t *testing.T, db *dynamodb.Client, table string) {
	t.Helper()
	expect.OK(t, expect.ErrOf(db.UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{
		TableName: &table, TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String("exp"), Enabled: aws.Bool(true)},
	})))
	expect.OK(t, expect.ErrOf(db.UpdateTable(t.Context(), &dynamodb.UpdateTableInput{TableName: &table, DeletionProtectionEnabled: aws.Bool(true)})))
}

// The runbook mentions the parameters that exist.
func TestTheRunbookNamesParameters(t *testing.T) {
	text := expect.Value(os.ReadFile("../docs/how-to/restore-on-aws.md"))(t)
	d, _ := readDeployment(t)
	for name := range d.Parameters {
		if (strings.HasSuffix(name, "TableArn") || name == "SealingKeyArn") && !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/how-to/restore-on-aws.md does not mention %s", name)
		}
	}
}

// deployCopy deploys the template again, for example with copied tables and keys. The stack ends with the test.
func deployCopy(t *testing.T, ends awslocal.Endpoints, name, region string, parameters map[string]string) *runner.Stack {
	t.Helper()
	stack := expect.Value(runner.Start(t.Context(), runner.Options{
		Template: "../template.yaml", Name: name, Region: region, Parameters: parameters,
		Endpoints: runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack, SSM: ends.MiniStack},
		Binaries:  harness.Functions(t),
		Output:    lines{t}, Speed: 60,
	}))(t)
	t.Cleanup(func() { stack.Close() })
	return stack
}
