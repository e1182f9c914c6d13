package functions_test

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/test/expect"
)

// list is a value or a list of values. A reference is represented by its text, e.g. "KeysTable.Arn".
type list []string

func (l *list) UnmarshalYAML(n *yaml.Node) error {
	if n.Tag == "!If" { // the stack's own resource, or an adopted one
		n = n.Content[1]
	}
	if n.Kind == yaml.ScalarNode {
		*l = list{n.Value}
		return nil
	}
	return n.Decode((*[]string)(l))
}

type resource struct {
	Type                string `yaml:"Type"`
	DeletionPolicy      string `yaml:"DeletionPolicy"`
	UpdateReplacePolicy string `yaml:"UpdateReplacePolicy"`
	Properties          struct {
		Environment environmentOf        `yaml:"Environment"`
		Settings    map[string]yaml.Node `yaml:"Settings"`
		Version     string               `yaml:"Version"`
		Adopted     []string             `yaml:"Adopted"`

		Role     string `yaml:"Role"`
		Timeout  string `yaml:"Timeout"`
		Policies []struct {
			Statement []statement `yaml:"Statement"`
		} `yaml:"Policies"`
		RecursiveLoop                string    `yaml:"RecursiveLoop"`
		ReservedConcurrentExecutions yaml.Node `yaml:"ReservedConcurrentExecutions"`
		FunctionURLConfig            *struct {
			InvokeMode string `yaml:"InvokeMode"`
		} `yaml:"FunctionUrlConfig"`

		FunctionName          string               `yaml:"FunctionName"`
		EventSourceArn        string               `yaml:"EventSourceArn"`
		FunctionResponseTypes []string             `yaml:"FunctionResponseTypes"`
		ScalingConfig         map[string]yaml.Node `yaml:"ScalingConfig"`
		Enabled               yaml.Node            `yaml:"Enabled"`

		Events map[string]struct {
			Type string `yaml:"Type"`
		} `yaml:"Events"`
		EventInvokeConfig struct {
			MaximumRetryAttempts     *int `yaml:"MaximumRetryAttempts"`
			MaximumEventAgeInSeconds int  `yaml:"MaximumEventAgeInSeconds"`
		} `yaml:"EventInvokeConfig"`

		VisibilityTimeout    int            `yaml:"VisibilityTimeout"`
		RedrivePolicy        map[string]any `yaml:"RedrivePolicy"`
		SqsManagedSseEnabled bool           `yaml:"SqsManagedSseEnabled"`
		FifoQueue            bool           `yaml:"FifoQueue"`
		DeduplicationScope   string         `yaml:"DeduplicationScope"`
		FifoThroughputLimit  string         `yaml:"FifoThroughputLimit"`

		BillingMode             string          `yaml:"BillingMode"`
		TimeToLiveSpecification map[string]any  `yaml:"TimeToLiveSpecification"`
		PointInTimeRecovery     map[string]bool `yaml:"PointInTimeRecoverySpecification"`
		DeletionProtection      string          `yaml:"DeletionProtectionEnabled"`
	} `yaml:"Properties"`
}

// statement is a statement in one of a function's policies.
type statement struct {
	Sid       string         `yaml:"Sid"`
	Action    list           `yaml:"Action"`
	Resource  list           `yaml:"Resource"`
	Condition map[string]any `yaml:"Condition"`
}

// partitions returns the keys that a statement is limited to, as text, and whether it is limited.
func (s statement) partitions() (keys string, bound bool) {
	like, bound := s.Condition["ForAllValues:StringLike"].(map[string]any)
	return fmt.Sprint(like["dynamodb:LeadingKeys"]), bound
}

// statements returns the statements of each function, by its id.
func statements(resources map[string]resource) iter.Seq2[string, statement] {
	return func(yield func(string, statement) bool) {
		for id, r := range resources {
			for _, p := range r.Properties.Policies {
				for _, st := range p.Statement {
					if !yield(id, st) {
						return
					}
				}
			}
		}
	}
}

// granted lists the functions that may perform one of the actions on a resource.
func granted(resources map[string]resource, on string, actions ...string) (functions []string) {
	for id, st := range statements(resources) {
		if slices.Contains(st.Resource, on) && slices.ContainsFunc(st.Action, func(a string) bool { return len(actions) == 0 || slices.Contains(actions, a) }) {
			functions = append(functions, id)
		}
	}
	slices.Sort(functions)
	return slices.Compact(functions)
}

func TestEnvironmentNamesOnlyWhatThePolicyAllows(t *testing.T) {
	d, _ := readDeployment(t)
	resourceOf := func(variable string) string {
		if table, ok := strings.CutPrefix(variable, "MCPEVENTS_TABLE_"); ok {
			return table[:1] + strings.ToLower(table[1:]) + "Table.Arn"
		}
		if q, ok := strings.CutPrefix(variable, "MCPEVENTS_QUEUE_"); ok {
			name := ""
			for _, word := range strings.Split(strings.TrimSuffix(q, "_URL"), "_") {
				name += word[:1] + strings.ToLower(word[1:])
			}
			return name + "Queue.Arn"
		}
		return ""
	}
	for variable := range d.Globals.Function.Environment.Variables {
		expect.Equal(t, "the resource that all functions get the name of", resourceOf(variable), "")
	}
	for id, r := range d.Resources {
		if r.Type != "AWS::Serverless::Function" {
			continue
		}
		t.Run(id, func(t *testing.T) {
			if owner, shared := strings.CutSuffix(r.Properties.Role, "Role.Arn"); shared {
				id = owner
			}
			var got, want []string
			for variable := range r.Properties.Environment.Variables {
				if name := resourceOf(variable); name != "" {
					got = append(got, name)
				}
			}
			for of, st := range statements(d.Resources) {
				for _, name := range st.Resource {
					if of == id && (strings.HasSuffix(name, "Table.Arn") || strings.HasSuffix(name, "Queue.Arn")) {
						want = append(want, name)
					}
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			want = slices.Compact(want)
			expect.List(t, "the names in the environment", got, want)
		})
	}
}

func TestWhoMayDoWhat(t *testing.T) {
	d, _ := readDeployment(t)
	resources := d.Resources
	const (
		put, update, remove, batch = "dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:BatchWriteItem"
		receive, send              = "sqs:ReceiveMessage", "sqs:SendMessage"
	)
	tests := map[string]struct {
		on      string
		actions []string
		want    string
	}{
		"the private keyset is for dispatch and keys":                                          {"KeysTable.Arn", nil, "DispatchFunction KeysFunction"},
		"only they use the key that wraps it":                                                  {"SealingKey.Arn", nil, "DispatchFunction KeysFunction"},
		"and only keys writes it":                                                              {"KeysTable.Arn", []string{put, update, remove, batch}, "KeysFunction"},
		"publish, relay and retry send to the events queue, and fanout copies":                 {"EventsQueue.Arn", []string{send}, "FanoutFunction PublishFunction RelayFunction RetryFunction"},
		"only publish and retry receive from the inbox":                                        {"InboxQueue.Arn", []string{receive}, "PublishFunction RetryFunction"},
		"only fanout receives from it":                                                         {"EventsQueue.Arn", []string{receive}, "FanoutFunction"},
		"stream sends to the inbox, and others return failed messages":                         {"InboxQueue.Arn", []string{send}, "AdminFunction DispatchFunction RetryFunction StreamFunction"},
		"only dispatch receives deliveries":                                                    {"DeliveriesQueue.Arn", []string{receive}, "DispatchFunction"},
		"settings are written by keys, switches by admin, types by relay":                      {"SettingsTable.Arn", []string{put, update, batch}, "AdminFunction KeysFunction RelayFunction"},
		"retry and admin remove announcements and switches":                                    {"SettingsTable.Arn", []string{remove}, "AdminFunction RetryFunction"},
		"a subscription is never removed by stream":                                            {"SubscriptionsTable.Arn", []string{remove, batch}, "AdminFunction DeregisterFunction DispatchFunction RegisterFunction RetryFunction"},
		"sessions are stream's, relay's its leases, admin erases, and register records demand": {"SessionsTable.Arn", nil, "AdminFunction PublishFunction RegisterFunction RelayFunction StreamFunction"},
		"publish only adds to the sessions table, and admin removes in batches":                {"SessionsTable.Arn", []string{remove, update}, "RelayFunction StreamFunction"},
		"stream hands over to register and to deregister":                                      {"RegisterFunction.Alias", nil, "StreamFunction"},
		"only functions for backends and sources read secrets":                                 {"arn:${AWS::Partition}:ssm:${AWS::Region}:${AWS::AccountId}:parameter${SecretsPrefix}*", nil, "PublishFunction RelayFunction StreamFunction"},
		"admin removes the notices of erased principals":                                       {"LogTable.Arn", []string{batch}, "AdminFunction FanoutFunction"},
		"no function deletes from the log, whose items expire":                                 {"LogTable.Arn", []string{remove}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "the functions", strings.Join(granted(resources, tc.on, tc.actions...), " "), tc.want)
		})
	}
	t.Run("CNV-06 only stream writes consents, and apart from them only counters", func(t *testing.T) {
		var written []string
		for id, st := range statements(resources) {
			if id == "StreamFunction" && slices.Contains(st.Resource, "SubscriptionsTable.Arn") && slices.Contains(st.Action, put) {
				keys, _ := st.partitions()
				written = append(written, keys)
			}
		}
		expect.Equal(t, "the partitions that stream writes", strings.Join(written, " "), "[shapes#*] [consent#*]")
	})
	t.Run("SRC-04 in the deliveries table, publish only reads ids of sources and writes outcomes of their requests", func(t *testing.T) {
		may := map[string]string{}
		for id, st := range statements(resources) {
			if id == "PublishFunction" && slices.Contains(st.Resource, "DeliveriesTable.Arn") {
				keys, _ := st.partitions()
				may[keys] = strings.Join(st.Action, " ")
			}
		}
		if len(may) != 2 || may["[sn#*]"] != strings.Join([]string{"dynamodb:GetItem dynamodb:BatchGetItem", put, remove, batch}, " ") || may["[so#*]"] != put {
			t.Errorf("got %q", may)
		}
	})
	t.Run("OPS-08 only admin accesses the audit trail, and can only read and append", func(t *testing.T) {
		var may []string
		for id, st := range statements(resources) {
			keys, bound := st.partitions()
			reaches := !bound || strings.Contains(keys, "audit")
			reads := slices.Equal(st.Action, []string{"dynamodb:GetItem", "dynamodb:BatchGetItem"}) // of the catalog, with fixed keys
			if slices.Contains(st.Resource, "SettingsTable.Arn") && reaches && !reads {
				may = append(may, fmt.Sprint(id, st.Action))
			}
		}
		expect.Equal(t, "the functions that may", strings.Join(may, " "), "AdminFunction[dynamodb:Query dynamodb:PutItem]")
	})
	t.Run("AWS-10 only fanout may write the whole log, and some functions are limited to partitions everywhere", func(t *testing.T) {
		for id, st := range statements(resources) {
			writes := slices.ContainsFunc(st.Action, func(a string) bool { return slices.Contains([]string{put, update, remove, batch}, a) })
			for _, on := range st.Resource {
				bound := writes && on == "LogTable.Arn" && id != "FanoutFunction" ||
					id == "RelayFunction" && strings.HasSuffix(on, "Table.Arn") || id == "StreamFunction" && on == "SubscriptionsTable.Arn"
				if bound && st.Condition == nil {
					t.Errorf("%s: statement %s is not limited to partitions", id, st.Sid)
				}
			}
		}
	})
	t.Run("AWS-10 there are no wildcards", func(t *testing.T) {
		for id, st := range statements(resources) {
			for _, text := range slices.Concat(st.Action, st.Resource) {
				// The operator chooses the secrets, below a prefix.
				if strings.Contains(text, "*") && !strings.HasSuffix(text, ":parameter${SecretsPrefix}*") {
					t.Errorf("%s: statement %s has a wildcard: %s", id, st.Sid, text)
				}
			}
		}
	})
}

// TestLoopDetection (AWS-03): only the functions that send to a queue from which they are invoked have RecursiveLoop:
// Allow.
func TestLoopDetection(t *testing.T) {
	d, _ := readDeployment(t)
	resources := d.Resources
	for id, r := range resources {
		if r.Type != "AWS::Serverless::Function" {
			continue
		}
		want := ""
		for _, m := range resources {
			if m.Type == "AWS::Lambda::EventSourceMapping" && strings.TrimSuffix(m.Properties.FunctionName, ".Alias") == id &&
				slices.Contains(granted(resources, m.Properties.EventSourceArn, "sqs:SendMessage"), id) {
				want = "Allow"
			}
		}
		expect.Equal(t, "AWS-03: RecursiveLoop of "+id, r.Properties.RecursiveLoop, want)
	}
}

// AWS-04: an invocation of the slow lane gets up to 100 deliveries. Package delivery shows that it attempts all of them.
func TestBatchesOfTheSlowLane(t *testing.T) {
	size := expect.Value(strconv.Atoi(value(at(tree(t), "Resources", "DispatchFromSlow", "Properties", "BatchSize"))))(t)
	expect.AtLeast(t, "the deliveries in a batch", size, 100)
}

// AWS-16: a scheduled invocation that fails or is throttled is not repeated, because the next minute's invocation does its work. By
// default, Lambda repeats a failed one twice, and keeps throttled ones for six hours. They would run together with later ones.
func TestScheduledInvocationsDoNotPileUp(t *testing.T) {
	d, _ := readDeployment(t)
	scheduled := 0
	for id, r := range d.Resources {
		for _, e := range r.Properties.Events {
			if e.Type != "Schedule" {
				continue
			}
			scheduled++
			c := r.Properties.EventInvokeConfig
			if c.MaximumRetryAttempts == nil || *c.MaximumRetryAttempts != 0 || c.MaximumEventAgeInSeconds != 60 {
				t.Errorf("AWS-16: %s: got %+v, want no retries and an age of up to 60 s", id, c)
			}
		}
	}
	expect.Equal(t, "the number of scheduled functions", scheduled, 2)
}

// TestDataIsKept: AWS-12. Tables and keys remain when the stack is deleted, but not when a first deployment fails.
func TestDataIsKept(t *testing.T) {
	d, _ := readDeployment(t)
	tables := 0
	for id, r := range d.Resources {
		if kept := r.DeletionPolicy == "RetainExceptOnCreate" && r.UpdateReplacePolicy == "Retain"; (r.Type == "AWS::DynamoDB::Table" || r.Type == "AWS::KMS::Key") && !kept {
			t.Errorf("%s is not retained", id)
		}
		if r.Type != "AWS::DynamoDB::Table" {
			continue
		}
		tables++
		p := r.Properties
		if !p.PointInTimeRecovery["PointInTimeRecoveryEnabled"] || p.DeletionProtection != "DeletionProtection" || p.BillingMode != "PAY_PER_REQUEST" || p.TimeToLiveSpecification["AttributeName"] != "exp" {
			t.Errorf("%s: got %+v", id, p)
		}
	}
	expect.Equal(t, "the number of tables", tables, 6)
}

func TestQueuesFitTheirFunctions(t *testing.T) {
	d, _ := readDeployment(t)
	resources := d.Resources
	seconds := map[string]int{"": 30, "20": 20, "55": 55, "60": 60} // by the value in the template
	mapped := map[string]bool{}
	for id, r := range resources {
		if r.Type != "AWS::Lambda::EventSourceMapping" {
			continue
		}
		queue := strings.TrimSuffix(r.Properties.EventSourceArn, ".Arn")
		mapped[queue] = true
		timeout, ok := seconds[resources[strings.TrimSuffix(r.Properties.FunctionName, ".Alias")].Properties.Timeout]
		if got := resources[queue].Properties.VisibilityTimeout; !ok || got < 6*timeout {
			t.Errorf("%s: a visibility timeout of %d s is less than six times %d s", queue, got, timeout)
		}
		if !slices.Equal(r.Properties.FunctionResponseTypes, []string{"ReportBatchItemFailures"}) || r.Properties.ScalingConfig["MaximumConcurrency"].Kind == 0 {
			t.Errorf("%s: got %+v", id, r.Properties)
		}
	}
	for id, r := range resources {
		if r.Type != "AWS::SQS::Queue" {
			continue
		}
		p := r.Properties
		if !p.SqsManagedSseEnabled || mapped[id] != (p.RedrivePolicy != nil) {
			t.Errorf("%s: got %+v", id, p)
		}
		if p.FifoQueue && mapped[id] && (p.DeduplicationScope != "messageGroup" || p.FifoThroughputLimit != "perMessageGroupId") {
			t.Errorf("%s is not a high throughput queue", id)
		}
	}
	for name, p := range d.Parameters {
		expect.AtLeast(t, "the length of the description of "+name, len(p.Description), 20)
	}
	for _, id := range []string{"StreamFunction", "ManagedStreamFunction"} {
		if got := resources[id].Properties.FunctionURLConfig; got == nil || got.InvokeMode != "RESPONSE_STREAM" {
			t.Errorf("%s: got %+v", id, got)
		}
	}
}
