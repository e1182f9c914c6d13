package keyresource

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestAnAdoptedTableIsLeftOnlyWithConfirmation(t *testing.T) {
	const arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/restored"
	of := func(table, key, leave string) map[string]any {
		p := properties(map[string]any{"MCPEVENTS_AUTH": "keys"})
		p["Adopted"], p["LeaveAdopted"] = []any{table, "", "", "", "", "", key}, leave
		return p
	}
	before := properties(map[string]any{"MCPEVENTS_AUTH": "keys"})
	for name, tc := range map[string]struct {
		status, request string
		old, new        map[string]any
		refused         string
	}{
		"a table is adopted":                         {"UPDATE_IN_PROGRESS", "Update", of("", "", "false"), of(arn, "", "false"), ""},
		"another table is adopted":                   {"UPDATE_IN_PROGRESS", "Update", of(arn, "", "false"), of(arn+"2", "", "false"), ""},
		"a deployment keeps the table":               {"UPDATE_IN_PROGRESS", "Update", of(arn, "", "false"), of(arn, "", "false"), ""},
		"a deployment leaves the table":              {"UPDATE_IN_PROGRESS", "Update", of(arn, "", "false"), of("", "", "false"), "SubscriptionsTableArn"},
		"a deployment leaves the key":                {"UPDATE_IN_PROGRESS", "Update", of(arn, "key", "false"), of(arn, "", "false"), "SealingKeyArn"},
		"with confirmation":                          {"UPDATE_IN_PROGRESS", "Update", of(arn, "", "false"), of("", "", "true"), ""},
		"the adoption is rolled back":                {"UPDATE_ROLLBACK_IN_PROGRESS", "Update", of(arn, "", "false"), of("", "", "false"), ""},
		"CloudFormation does not say":                {"", "Update", of(arn, "", "false"), of("", "", "false"), ""},
		"a stack of the previous version is updated": {"UPDATE_IN_PROGRESS", "Update", before, of("", "", "false"), ""},
		"a stack is created":                         {"CREATE_IN_PROGRESS", "Create", nil, of("", "", "false"), ""},
	} {
		t.Run("AWS-18 "+name, func(t *testing.T) {
			_, open := database(t)
			got := stackIn(t, tc.status, open, map[string]any{"RequestType": tc.request, "ResourceProperties": tc.new, "OldResourceProperties": tc.old})
			if tc.refused == "" && got.Status != cfn.StatusSuccess {
				t.Errorf("got %+v", got)
			}
			if tc.refused != "" && (got.Status != cfn.StatusFailed || !strings.Contains(got.Reason, tc.refused) || !strings.Contains(got.Reason, "LeaveAdopted=true")) {
				t.Errorf("got %+v, want a refusal that names %s and the confirmation", got, tc.refused)
			}
		})
	}
}

func TestTheStatusOfAStackIsRead(t *testing.T) {
	var form string
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		form = r.Form.Encode() + " " + r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`<DescribeStacksResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult><Stacks><member><StackName>s</StackName><StackStatus>UPDATE_ROLLBACK_IN_PROGRESS</StackStatus></member></Stacks></DescribeStacksResult></DescribeStacksResponse>`))
	}))
	defer cloud.Close()
	t.Setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", cloud.URL)
	cfg := aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")}
	expect.Equal(t, "the status", expect.Value(ReadStatus(t.Context(), cfg, "arn:stack"))(t), "UPDATE_ROLLBACK_IN_PROGRESS")
	expect.Contains(t, "the request", form, "Action=DescribeStacks", "StackName=arn%3Astack", "/eu-central-1/cloudformation/aws4_request")
}
