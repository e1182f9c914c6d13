package functions_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestRunbook follows docs/how-to/restore-on-aws.md: a stack adopts the tables and the key of another one. The
// DynamoDB emulator has no backups, so copies replace restored tables.
func TestRunbook(t *testing.T) {
	old := deploy(t, nil)
	target, hooks := endpoint(t, nil)
	uri, secret := register(t, old, target)
	publish(t, old, 1)
	wait(t, "the webhook", hooks)
	names := old.Outputs()
	prefix := strings.TrimSuffix(names["SettingsTable"], "SettingsTable")
	old.Close()

	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	db := dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB))
	parameters := map[string]string{"Auth": "none", "AllowInsecureTargets": "true"}
	for _, table := range store.Tables() {
		id := strings.ToUpper(string(table[:1])) + string(table[1:]) + "Table"
		parameters[id+"Arn"] = restored(t, db, prefix+id, prefix+id+"-restored")
	}
	alias := "alias/" + strings.TrimSuffix(prefix, "-") + "-SealingKey"
	key, err := kms.NewFromConfig(awslocal.Config(ends.MiniStack)).DescribeKey(t.Context(), &kms.DescribeKeyInput{KeyId: &alias})
	if err != nil {
		t.Fatal(err)
	}
	parameters["SealingKeyArn"] = *key.KeyMetadata.Arn

	d, _ := readDeployment(t)
	for name, arn := range parameters {
		if strings.HasSuffix(name, "Arn") && !matches(d.Parameters[name].AllowedPattern, arn) {
			t.Errorf("the template refuses %s=%s", name, arn)
		}
	}
	stack := deployCopy(t, ends, strings.TrimSuffix(prefix, "-")+"-b", awslocal.Region, parameters)
	t.Run("AWS-12 the stack does not create its own tables", func(t *testing.T) {
		for _, table := range store.Tables() {
			id := strings.TrimSuffix(prefix, "-") + "-b-" + strings.ToUpper(string(table[:1])) + string(table[1:]) + "Table"
			if _, err := db.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &id}); err == nil {
				t.Errorf("the stack created the table %s", id)
			}
		}
	})
	t.Run("AWS-12 existing subscriptions get webhooks with their old signature keys", func(t *testing.T) {
		id := publish(t, stack, 2)
		hook := wait(t, "the webhook", hooks)
		if got := hook.header.Get("Webhook-Id"); got != id {
			t.Errorf("got webhook-id %q, want %q", got, id)
		}
		if err := webhook.Verify(hook.header, hook.body, secret); err != nil {
			t.Error(err)
		}
		deregister(t, stack, uri)
	})
	for _, denied := range stack.Denied() {
		t.Errorf("a permission is missing: %s", denied)
	}
}

// restored copies a table, as a restore would, and then does step 3 of the runbook. It returns the ARN.
func restored(t *testing.T, db *dynamodb.Client, from, to string) (arn string) {
	t.Helper()
	ctx := t.Context()
	was, err := db.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &from})
	if err != nil {
		t.Fatal(err)
	}
	made, err := db.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &to, KeySchema: was.Table.KeySchema, AttributeDefinitions: was.Table.AttributeDefinitions, BillingMode: types.BillingModePayPerRequest,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := dynamodb.NewTableExistsWaiter(db).Wait(ctx, &dynamodb.DescribeTableInput{TableName: &to}, time.Minute); err != nil {
		t.Fatal(err)
	}
	pages := dynamodb.NewScanPaginator(db, &dynamodb.ScanInput{TableName: &from})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range page.Items {
			if _, err := db.PutItem(ctx, &dynamodb.PutItemInput{TableName: &to, Item: item}); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = db.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName: &to, TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String("exp"), Enabled: aws.Bool(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.UpdateTable(ctx, &dynamodb.UpdateTableInput{TableName: &to, DeletionProtectionEnabled: aws.Bool(true)}); err != nil {
		t.Fatal(err)
	}
	return *made.TableDescription.TableArn
}

// The runbook mentions the parameters that exist.
func TestTheRunbookNamesParameters(t *testing.T) {
	text, err := os.ReadFile("../docs/how-to/restore-on-aws.md")
	if err != nil {
		t.Fatal(err)
	}
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
	stack, err := runner.Start(t.Context(), runner.Options{
		Template: "../template.yaml", Name: name, Region: region, Parameters: parameters,
		Endpoints: runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack, SSM: ends.MiniStack},
		Binaries:  harness.Functions(t),
		Output:    lines{t}, Speed: 60,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stack.Close() })
	return stack
}
