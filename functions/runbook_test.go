package functions_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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
