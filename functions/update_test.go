package functions_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// together lists the parameters that the template's rules allow only in combination, or that have no effect by themselves,
// with their new values.
var together = []struct {
	names  []string
	values map[string]string
}{
	{[]string{"JwtIssuer", "JwtAudience", "JwtJwksUrl", "JwtPrincipalClaim", "JwtWorkspaceClaim"}, map[string]string{
		"Auth": "jwt", "JwtIssuer": "https://old.example.com", "JwtAudience": "https://old.example/mcp",
	}},
	{[]string{"FrontDomain", "FrontCertificateArn", "FrontWebAclArn"}, map[string]string{
		"FrontDomain": "old.example.com", "FrontCertificateArn": "arn:aws:acm:us-east-1:123456789012:certificate/0",
	}},
	{[]string{"SourceEventBus"}, map[string]string{"SourceEventPattern": `{"source":["shop"]}`}},
	{[]string{"TrafficShift"}, map[string]string{"GradualDeployment": "true"}},
	{[]string{"StreamConcurrency", "StreamSeconds"}, map[string]string{"StreamCapacityProvider": changed["StreamCapacityProvider"]}},
}

// TestUpdatesOfARunningStack changes each parameter of a running stack by itself, and back, with a plain deployment
// after each change.
func TestUpdatesOfARunningStack(t *testing.T) {
	t.Parallel()
	d, _ := readDeployment(t)
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	stack := deploy(t, func(o *runner.Options) {
		o.Endpoints.SQS, o.Endpoints.EventBridge, o.Endpoints.SNS = ends.MiniStack, ends.MiniStack, ends.MiniStack
		o.Parameters, o.Speed = nil, 0.01
	})
	prefix := strings.TrimSuffix(stack.Outputs()["SettingsTable"], "SettingsTable")
	db := dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB))
	cfg := awslocal.Config(ends.MiniStack)
	topic := expect.Value(sns.NewFromConfig(cfg).CreateTopic(t.Context(), &sns.CreateTopicInput{Name: &prefix}))(t)
	bus := prefix + "bus"
	expect.OK(t, expect.ErrOf(eventbridge.NewFromConfig(cfg).CreateEventBus(t.Context(), &eventbridge.CreateEventBusInput{Name: &bus})))

	values := maps.Clone(changed)
	values["SourceTopicArn"], values["SourceEventBus"] = *topic.TopicArn, bus
	done := map[string]bool{}
	change := func(t *testing.T, name string, base map[string]string) {
		done[name] = true
		before, ok := base[name]
		if !ok {
			before = *d.Parameters[name].Default
		}
		after := values[name]
		for _, other := range d.Parameters[name].AllowedValues {
			if other != before {
				after = other
			}
		}
		for _, value := range []string{after, before} {
			parameters := maps.Clone(base)
			if parameters == nil {
				parameters = map[string]string{}
			}
			parameters[name] = value
			if broken := broken(t, d, parameters); len(broken) > 0 {
				t.Fatalf("the template's rules refuse %v: %v", parameters, broken)
			}
			if err := stack.Update(t.Context(), map[string]string{name: value}); err != nil {
				t.Fatalf("%s=%s: %v", name, value, err)
			}
			if value == after {
				checkPlainDeployment(t, stack)
			}
		}
	}
	for _, group := range together {
		back := map[string]string{}
		for name := range group.values {
			back[name] = *d.Parameters[name].Default
		}
		expect.OK(t, stack.Update(t.Context(), group.values))
		for _, name := range group.names {
			t.Run("AWS-17 "+name, func(t *testing.T) { change(t, name, group.values) })
		}
		expect.OK(t, stack.Update(t.Context(), back))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Parameters)) {
		if !done[name] && !strings.HasSuffix(name, "TableArn") && name != "SealingKeyArn" {
			t.Run("AWS-17 "+name, func(t *testing.T) { change(t, name, nil) })
		}
	}
	t.Run("AWS-17 changes reach the functions", func(t *testing.T) {
		update(t, stack, map[string]string{"Retention": "48h", "StreamSeconds": "600"})
		for id, variable := range map[string]string{"FanoutFunction": "MCPEVENTS_LOG_RETENTION", "StreamFunction": "MCPEVENTS_STREAM_MAX_AGE"} {
			want := map[string]string{"FanoutFunction": "48h", "StreamFunction": "600s"}[id]
			expect.Equal(t, variable+" of "+id, stack.Environment(id)[variable], want)
		}
	})

	// The stack leaves an adopted table or key only with the confirmation. Even then, a deployment fails if it leaves keys that stored
	// secrets need.
	adopted := []string{"DeliveriesTableArn", "LogTableArn", "SessionsTableArn", "SubscriptionsTableArn", "SealingKeyArn", "KeysTableArn", "SettingsTableArn"}
	for _, name := range adopted {
		done[name] = true
		t.Run("AWS-17, AWS-18 "+name, func(t *testing.T) {
			id, isTable := strings.CutSuffix(name, "TableArn")
			function, variable := "AdminFunction", "MCPEVENTS_TABLE_"+strings.ToUpper(id)
			if id == "Keys" || !isTable {
				function = "DispatchFunction"
			}
			own, arn := stack.Environment(function)[variable], stack.Environment(function)["MCPEVENTS_KEY_ID"]
			if isTable {
				arn = restored(t, db, own, own+"-restored")
			}
			update(t, stack, map[string]string{name: arn})
			checkPlainDeployment(t, stack)
			checkRefused(t, stack, map[string]string{name: ""}, name+" is no longer set, so the stack would leave "+arn)
			switch {
			case id == "Keys":
				checkRefused(t, stack, map[string]string{name: "", "LeaveAdopted": "true"}, "must be tables of one deployment")
			case isTable:
				update(t, stack, map[string]string{name: "", "LeaveAdopted": "true"})
				if got := stack.Environment(function)[variable]; got == arn || got == own {
					t.Errorf("the functions have table %s, want a new one", got)
				}
				update(t, stack, map[string]string{"LeaveAdopted": "false"})
			}
		})
	}
	for name := range d.Parameters {
		expect.True(t, "the test changes "+name, done[name])
	}
}

func update(t *testing.T, stack *runner.Stack, parameters map[string]string) {
	t.Helper()
	expect.OK(t, stack.Update(t.Context(), parameters), "update", parameters)
}

// checkPlainDeployment checks that an update without parameters changes no function and no output.
func checkPlainDeployment(t *testing.T, stack *runner.Stack) {
	t.Helper()
	state := func() map[string]map[string]string {
		all := map[string]map[string]string{"outputs": stack.Outputs()}
		for id := range stack.Stats() {
			all[id] = stack.Environment(id)
		}
		return all
	}
	before := state()
	update(t, stack, nil)
	for id, after := range state() {
		expect.Map(t, "the environment of "+id+" after a plain deployment", before[id], after)
	}
}

// checkRefused checks that an update fails with the reason and is rolled back.
func checkRefused(t *testing.T, stack *runner.Stack, parameters map[string]string, reason string) {
	t.Helper()
	before := stack.Environment("DispatchFunction")
	err := stack.Update(t.Context(), parameters)
	if err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), "roll back") {
		t.Errorf("update %v: got error %v, want %q in it and a rollback", parameters, err, reason)
	}
	expect.Map(t, "the environment of dispatch after the rollback", before, stack.Environment("DispatchFunction"))
	checkPlainDeployment(t, stack)
}

// TestARestoredTableIsKept follows docs/how-to/restore-on-aws.md: a subscription is lost, and its table is restored and
// adopted. TestUpdatesOfARunningStack tests the deployments of all tables.
func TestARestoredTableIsKept(t *testing.T) {
	t.Parallel()
	stack := deploy(t, nil)
	target, hooks := endpoint(t, nil)
	uri, secret := register(t, stack, target)
	db := dynamodb.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.DynamoDB).DynamoDB))
	own := stack.Outputs()["SubscriptionsTable"]
	arn := restored(t, db, own, own+"-restored")
	deregister(t, stack, uri)

	t.Run("AWS-12 AWS-18 the subscriptions of an adopted table get webhooks, also after another deployment", func(t *testing.T) {
		for build, parameters := range []map[string]string{{"SubscriptionsTableArn": arn}, {"Retention": "48h"}} {
			update(t, stack, parameters)
			id := publish(t, stack, build+1)
			hook := expect.Receive(t, "the webhook", hooks)
			expect.Equal(t, "webhook-id", hook.header.Get("Webhook-Id"), id)
			expect.OK(t, webhook.Verify(hook.header, hook.body, secret))
		}
	})
	deregister(t, stack, uri)
}

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
			expect.Len(t, "the resources of the failed deployment", resourcesOf(t, ends, name), 0)
			expect.List(t, "the keys after the failed deployment", enabledKeys(t, ends.MiniStack), keys)
		})
	}
}

// resourcesOf returns the tables, queues and key aliases whose names begin with a stack's name.
func resourcesOf(t *testing.T, ends awslocal.Endpoints, stack string) (all []string) {
	t.Helper()
	tables := expect.Value(dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB)).ListTables(t.Context(), &dynamodb.ListTablesInput{ExclusiveStartTableName: &stack}))(t)
	all = tables.TableNames
	queues := expect.Value(sqs.NewFromConfig(awslocal.Config(ends.SQS)).ListQueues(t.Context(), &sqs.ListQueuesInput{QueueNamePrefix: &stack}))(t)
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
