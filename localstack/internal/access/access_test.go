package access_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/test/expect"
)

const policies = `[{"Statement":[
	{"Sid":"Read","Effect":"Allow","Action":["dynamodb:GetItem","dynamodb:Batch*"],"Resource":"arn:table"},
	{"Sid":"Own","Effect":"Allow","Action":"dynamodb:PutItem","Resource":["arn:table"],"Condition":{"ForAllValues:StringLike":{"dynamodb:LeadingKeys":["i#*","exact"]}}},
	{"Sid":"Key","Effect":"Allow","Action":["kms:Decrypt"],"Resource":"arn:key","Condition":{"StringEquals":{"kms:EncryptionContext:purpose":"keyset"}}},
	{"Sid":"Send","Effect":"Allow","Action":["sqs:SendMessage"],"Resource":"arn:queue/*"}
]}]`

func TestPolicy(t *testing.T) {
	p := expect.Value(access.Parse([]byte(policies)))(t)
	context := func(purpose string) map[string]string { return map[string]string{"purpose": purpose} }
	tests := map[string]struct {
		request access.Request
		want    bool
	}{
		"an action by its name":           {access.Request{Action: "dynamodb:GetItem", Resource: "arn:table"}, true},
		"an action matched by a pattern":  {access.Request{Action: "dynamodb:BatchWriteItem", Resource: "arn:table"}, true},
		"another action":                  {access.Request{Action: "dynamodb:DeleteItem", Resource: "arn:table"}, false},
		"another resource":                {access.Request{Action: "dynamodb:GetItem", Resource: "arn:table2"}, false},
		"keys that are allowed":           {access.Request{Action: "dynamodb:PutItem", Resource: "arn:table", LeadingKeys: []string{"i#1", "exact"}}, true},
		"one key of several that is not":  {access.Request{Action: "dynamodb:PutItem", Resource: "arn:table", LeadingKeys: []string{"i#1", "p#1"}}, false},
		"a key that only begins alike":    {access.Request{Action: "dynamodb:PutItem", Resource: "arn:table", LeadingKeys: []string{"exactly"}}, false},
		"an encryption context":           {access.Request{Action: "kms:Decrypt", Resource: "arn:key", EncryptionContext: context("keyset")}, true},
		"another encryption context":      {access.Request{Action: "kms:Decrypt", Resource: "arn:key", EncryptionContext: context("other")}, false},
		"no encryption context":           {access.Request{Action: "kms:Decrypt", Resource: "arn:key"}, false},
		"a resource matched by a pattern": {access.Request{Action: "sqs:SendMessage", Resource: "arn:queue/a/b"}, true},
		"a resource that is not in it":    {access.Request{Action: "sqs:SendMessage", Resource: "arn:queue"}, false},
		"an unknown resource has no name": {access.Request{Action: "sqs:SendMessage"}, false},
		"names are case-sensitive":        {access.Request{Action: "dynamodb:getitem", Resource: "arn:table"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "it is allowed", len(p.Allowing(tc.request)) > 0, tc.want)
		})
	}
	if len((access.Policy{}).Allowing(access.Request{Action: "a", Resource: "b"})) > 0 {
		t.Error("the zero policy allows a request")
	}
}

func TestPoliciesThatAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ src, want string }{
		"a managed policy":     {`["AmazonSQSFullAccess"]`, "not supported"},
		"a policy template":    {`[{"DynamoDBCrudPolicy":{"TableName":"x"}}]`, "not supported"},
		"a denial":             {`[{"Statement":[{"Sid":"S","Effect":"Deny"}]}]`, `statement "S": effect "Deny"`},
		"an unknown condition": {`[{"Statement":[{"Effect":"Allow","Condition":{"Bool":{"aws:SecureTransport":"true"}}}]}]`, "condition Bool of aws:SecureTransport"},
		"an unknown member":    {`[{"Statement":[{"Effect":"Allow","NotAction":"x"}]}]`, "NotAction"},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, "the policy", expect.ErrOf(access.Parse([]byte(tc.src))), tc.want)
		})
	}
}

// names makes ARNs by adding a prefix.
type names struct{}

func (names) Table(name string) (arn, key string) { return "arn:" + name, "pk" }
func (names) Queue(url string) string             { return "arn:" + url }
func (names) Key(id string) string                { return "arn:" + id }
func (names) Parameter(name string) string        { return "arn:parameter" + name }

func TestRequests(t *testing.T) {
	const dynamo = "DynamoDB_20120810."
	request := func(action, resource string, keys ...string) access.Request {
		return access.Request{Action: action, Resource: resource, LeadingKeys: keys}
	}
	tests := map[string]struct {
		target, body string
		want         []access.Request
	}{
		"one item": {
			dynamo + "GetItem", `{"TableName":"t","Key":{"pk":{"S":"a"},"sk":{"S":"-"}}}`,
			[]access.Request{request("dynamodb:GetItem", "arn:t", "a")},
		},
		"a put": {
			dynamo + "PutItem", `{"TableName":"t","Item":{"pk":{"S":"a"},"n":{"N":"1"}}}`,
			[]access.Request{request("dynamodb:PutItem", "arn:t", "a")},
		},
		"a query": {
			dynamo + "Query", `{"TableName":"t","KeyConditionExpression":"pk = :a AND sk BETWEEN :b AND :c","ExpressionAttributeValues":{":a":{"S":"x"},":b":{"S":"y"}}}`,
			[]access.Request{request("dynamodb:Query", "arn:t", "x")},
		},
		"a query with a placeholder": {
			dynamo + "Query", `{"TableName":"t","KeyConditionExpression":"(#k = :a)","ExpressionAttributeNames":{"#k":"pk"},"ExpressionAttributeValues":{":a":{"S":"x"}}}`,
			[]access.Request{request("dynamodb:Query", "arn:t", "x")},
		},
		"a batch to read": {
			dynamo + "BatchGetItem", `{"RequestItems":{"t":{"Keys":[{"pk":{"S":"a"}},{"pk":{"S":"b"}}],"ConsistentRead":true},"u":{"Keys":[{"pk":{"S":"c"}}]}}}`,
			[]access.Request{request("dynamodb:BatchGetItem", "arn:t", "a", "b"), request("dynamodb:BatchGetItem", "arn:u", "c")},
		},
		"a batch to write": {
			dynamo + "BatchWriteItem", `{"RequestItems":{"t":[{"PutRequest":{"Item":{"pk":{"S":"a"}}}},{"DeleteRequest":{"Key":{"pk":{"S":"b"}}}}]}}`,
			[]access.Request{request("dynamodb:BatchWriteItem", "arn:t", "a", "b")},
		},
		"a transaction": {
			dynamo + "TransactWriteItems", `{"TransactItems":[{"Put":{"TableName":"t","Item":{"pk":{"S":"a"}}}},{"ConditionCheck":{"TableName":"t","Key":{"pk":{"S":"b"}}}},{"Put":{"TableName":"t","Item":{"pk":{"S":"c"}}}}]}`,
			[]access.Request{request("dynamodb:PutItem", "arn:t", "a", "c"), request("dynamodb:ConditionCheckItem", "arn:t", "b")},
		},
		"messages": {
			"AmazonSQS.SendMessageBatch", `{"QueueUrl":"http://q"}`,
			[]access.Request{request("sqs:SendMessage", "arn:http://q")},
		},
		"a key": {
			"TrentService.Decrypt", `{"KeyId":"k","EncryptionContext":{"a":"b"}}`,
			[]access.Request{{Action: "kms:Decrypt", Resource: "arn:k", EncryptionContext: map[string]string{"a": "b"}}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := expect.Value(access.Requests(tc.target, []byte(tc.body), names{}))(t)
			byResource := cmpopts.SortSlices(func(a, b access.Request) bool { return a.Resource+a.Action < b.Resource+b.Action })
			if diff := cmp.Diff(tc.want, got, byResource, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	for name, target := range map[string]string{"another service": "AmazonSNS.Publish", "broken JSON": dynamo + "PutItem"} {
		expect.Error(t, name, expect.ErrOf(access.Requests(target, []byte("{"), names{})))
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("DynamoDB_20120810.TransactWriteItems", []byte(`{"TransactItems":[{"Put":{"TableName":"t","Item":{"pk":{"S":"a"}}}}]}`))
	f.Add("DynamoDB_20120810.BatchGetItem", []byte(`{"RequestItems":{"t":{"Keys":[{"pk":{"S":"a"}}]}}}`))
	f.Add("AmazonSQS.SendMessage", []byte(`{"QueueUrl":"http://q"}`))
	f.Fuzz(func(_ *testing.T, target string, body []byte) {
		_, _ = access.Requests(target, body, names{})
	})
}
