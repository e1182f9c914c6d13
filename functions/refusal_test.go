package functions_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// AWS-02: a deployment fails, with the reason, if the functions would not start with its settings.
// AWS-12: a first deployment that fails leaves nothing behind.
func TestAFirstDeploymentThatFails(t *testing.T) {
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	for name, tc := range map[string]struct {
		parameters     map[string]string
		resource, want string
	}{
		"an unknown setting": {map[string]string{"ExtraSettings": "quotas=3"}, "Keys", `unknown setting "quotas"`},
		"an issuer":          {map[string]string{"Auth": "jwt", "JwtIssuer": "http://login.example.com", "JwtAudience": "https://events.example.com/mcp"}, "Keys", "not https"},
		"a reservation":      {map[string]string{"StreamReservedConcurrency": "101"}, "StreamFunction", "below its minimum value"},
	} {
		t.Run("AWS-02 AWS-12 "+name, func(t *testing.T) {
			name := "t" + uuid.NewString()[:8]
			keys := enabledKeys(t, ends.MiniStack)
			stack, err := runner.Start(t.Context(), runner.Options{
				Template: "../template.yaml", Name: name, Region: awslocal.Region, Parameters: tc.parameters, Binaries: harness.Functions(t),
				Endpoints: runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack, SSM: ends.MiniStack},
				Output:    lines{t},
			})
			if err == nil {
				stack.Close()
				t.Fatal("the deployment succeeded")
			}
			expect.Contains(t, "the error", err.Error(), "resource "+tc.resource+":", tc.want)
			if left := resourcesOf(t, ends, name); len(left) > 0 {
				t.Errorf("the failed deployment left %v", left)
			}
			expect.List(t, "the keys after the failed deployment", enabledKeys(t, ends.MiniStack), keys)
		})
	}
}

// resourcesOf returns the tables, queues and key aliases whose names begin with a stack's name.
func resourcesOf(t *testing.T, ends awslocal.Endpoints, stack string) (all []string) {
	t.Helper()
	tables, err := dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB)).ListTables(t.Context(), &dynamodb.ListTablesInput{ExclusiveStartTableName: &stack})
	expect.OK(t, err)
	all = tables.TableNames
	queues, err := sqs.NewFromConfig(awslocal.Config(ends.SQS)).ListQueues(t.Context(), &sqs.ListQueuesInput{QueueNamePrefix: &stack})
	expect.OK(t, err)
	for _, url := range queues.QueueUrls {
		all = append(all, url[strings.LastIndex(url, "/")+1:])
	}
	aliases := expect.Value(kms.NewFromConfig(awslocal.Config(ends.MiniStack)).ListAliases(t.Context(), &kms.ListAliasesInput{}))(t)
	for _, a := range aliases.Aliases {
		all = append(all, strings.TrimPrefix(*a.AliasName, "alias/"))
	}
	return slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, stack) })
}

// enabledKeys returns the ids of the keys whose deletion is not scheduled.
func enabledKeys(t *testing.T, endpoint string) (ids []string) {
	t.Helper()
	client := kms.NewFromConfig(awslocal.Config(endpoint))
	list := expect.Value(client.ListKeys(t.Context(), &kms.ListKeysInput{}))(t)
	for _, k := range list.Keys {
		d := expect.Value(client.DescribeKey(t.Context(), &kms.DescribeKeyInput{KeyId: k.KeyId}))(t)
		if d.KeyMetadata.KeyState == types.KeyStateEnabled {
			ids = append(ids, *k.KeyId)
		}
	}
	slices.Sort(ids)
	return ids
}
