package keyresource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// marked is a wrapper that marks wrapped data with a prefix.
type marked struct{}

func (marked) Wrap(_ context.Context, clear []byte) ([]byte, error) {
	return append([]byte("wrapped:"), clear...), nil
}

func (marked) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	clear, ok := bytes.CutPrefix(wrapped, []byte("wrapped:"))
	if !ok {
		return nil, errors.New("not wrapped")
	}
	return clear, nil
}

// stack sends an event of the resource to the handler and returns the report to CloudFormation.
func stack(t *testing.T, open opener, event map[string]any) (report cfn.Response) {
	t.Helper()
	return stackIn(t, "UPDATE_IN_PROGRESS", open, event)
}

// stackIn sends an event like stack, for a stack with the given status; "" means that CloudFormation does not answer.
func stackIn(t *testing.T, status string, open opener, event map[string]any) (report cfn.Response) {
	t.Helper()
	reports := 0
	cloud := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reports++
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			t.Error(err)
		}
	}))
	defer cloud.Close()
	event["ResponseURL"], event["LogicalResourceId"], event["RequestId"], event["StackId"] = cloud.URL, "Keys", "1", "s"
	raw := expect.Value(json.Marshal(event))(t)
	ask := func(_ context.Context, stackID string) (string, error) {
		if stackID != "s" || status == "" {
			return "", errors.New("no answer")
		}
		return status, nil
	}
	_, _ = Handler{Open: open, StackStatus: ask}.Handle(t.Context(), raw) // the report has the error
	expect.MustEqual(t, "the reports", reports, 1)
	return report
}

type opener = func() (store.DB, sealing.Wrapper, error)

func database(t *testing.T) (store.DB, opener) {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db, func() (store.DB, sealing.Wrapper, error) { return db, marked{}, nil }
}

func properties(settings any) map[string]any {
	return map[string]any{"ServiceToken": "arn", "ServiceTimeout": "120", "Settings": settings}
}

// AWS-02: settings with which the functions would not start fail the resource, and with it the deployment, with the
// reason. No keys are created.
func TestTheResourceRefusesWrongSettings(t *testing.T) {
	for want, settings := range map[string]any{"quotas": map[string]any{"MCPEVENTS_AUTH": "keys", "MCPEVENTS_SETTINGS": "quotas=1"}, "not a mapping": "text"} {
		for _, request := range []string{"Create", "Update"} {
			db, open := database(t)
			got := stack(t, open, map[string]any{"RequestType": request, "PhysicalResourceId": resourceID, "ResourceProperties": properties(settings)})
			if got.Status != cfn.StatusFailed || !strings.Contains(got.Reason, want) || got.PhysicalResourceID != resourceID {
				t.Errorf("%s: got %+v, want %q in the reason", request, got, want)
			}
			expect.Error(t, "a look at the keys after "+request, expect.ErrOf(cursors.Key(t.Context(), db)))
		}
	}
}

// The first event creates the keys, also if it is an update to other tables. Later events keep them.
func TestTheResourceCreatesTheKeysOnce(t *testing.T) {
	good := properties(map[string]any{"MCPEVENTS_AUTH": "keys", "MCPEVENTS_STREAM_CONCURRENCY": 7})
	for _, first := range []string{"Create", "Update"} {
		db, open := database(t)
		var before []byte
		for _, request := range []string{first, "Update", "Create"} {
			if got := stack(t, open, map[string]any{"RequestType": request, "ResourceProperties": good}); got.Status != cfn.StatusSuccess || got.PhysicalResourceID != resourceID {
				t.Fatalf("%s: got %+v", request, got)
			}
			key, err := cursors.Key(t.Context(), db)
			if err != nil || before != nil && !bytes.Equal(before, key) {
				t.Fatalf("%s: got the key %x after %x, %v", request, key, before, err)
			}
			before = key
			expect.OK(t, expect.ErrOf(sealing.Public(t.Context(), db)))
		}
	}
}

// AWS-02: a deletion always succeeds, whatever the properties are and even without tables.
func TestTheResourceCanAlwaysBeDeleted(t *testing.T) {
	gone := func() (store.DB, sealing.Wrapper, error) { return nil, nil, errors.New("there is no table") }
	for name, given := range map[string]any{
		"good settings":   properties(map[string]any{"MCPEVENTS_AUTH": "keys"}),
		"broken settings": properties(map[string]any{"MCPEVENTS_AUTH": "maybe"}),
		"no settings":     properties("text"),
		"no properties":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			got := stack(t, gone, map[string]any{"RequestType": "Delete", "PhysicalResourceId": "whatever", "ResourceProperties": given})
			expect.Equal(t, "the response's status", got.Status, cfn.StatusSuccess)
		})
	}
	if got := stack(t, gone, map[string]any{"RequestType": "Create", "ResourceProperties": properties(map[string]any{"MCPEVENTS_AUTH": "keys"})}); got.Status != cfn.StatusFailed || !strings.Contains(got.Reason, "there is no table") {
		t.Errorf("a creation without tables: got %+v", got)
	}
}

func TestAMisspelledOrderIsReported(t *testing.T) {
	for _, order := range []string{`{"rotation":"add"}`, `{}`, `null`} {
		_, err := Handler{}.Handle(t.Context(), json.RawMessage(order))
		if err == nil || !strings.Contains(err.Error(), `{"rotate":"add"}`) {
			t.Errorf("%s: got %v", order, err)
		}
	}
}

// AWS-11: new versions of the functions are published exactly when a setting changes.
func TestTheFingerprintFollowsTheSettings(t *testing.T) {
	_, open := database(t)
	of := func(auth, retention string) any {
		got := stack(t, open, map[string]any{"RequestType": "Update", "ResourceProperties": properties(map[string]any{"MCPEVENTS_AUTH": auth, "MCPEVENTS_LOG_RETENTION": retention})})
		if got.Status != cfn.StatusSuccess || got.Data["Fingerprint"] == "" {
			t.Fatalf("got %+v", got)
		}
		return got.Data["Fingerprint"]
	}
	first := of("keys", "24h")
	if of("keys", "24h") != first || of("none", "24h") == first || of("keys", "25h") == first {
		t.Error("the fingerprint does not follow the settings")
	}
}

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
