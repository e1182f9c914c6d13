// Package functions_test runs template.yaml with the real functions against
// emulators of AWS, and sees that they are wired: each function once, each by its own
// way in. What the system promises beyond that is tested in test/.
package functions_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/uuid"

	"mcpevents/localstack/runner"
	"mcpevents/shared/auth"
	"mcpevents/shared/catalog"
	"mcpevents/shared/store"
	"mcpevents/shared/store/dynamo"
	"mcpevents/shared/webhook"
	"mcpevents/test/awslocal"
)

func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }

// deploy brings the stack up with the project's catalog.
func deploy(t *testing.T, change func(*runner.Options)) *runner.Stack {
	t.Helper()
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	name := "t" + uuid.NewString()[:8]
	o := runner.Options{
		Template: "../template.yaml", Name: name, Region: awslocal.Region,
		Endpoints:  runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack},
		Parameters: map[string]string{"Auth": "none", "AllowInsecureTargets": "true"},
		Output:     lines{t}, Speed: 60,
	}
	if change != nil {
		change(&o)
	}
	stack, err := runner.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stack.Close()
		for _, denied := range stack.Denied() {
			t.Errorf("a permission is missing: %s", denied)
		}
	})
	src, err := os.ReadFile("../catalog.yaml")
	if err != nil {
		t.Fatal(err)
	}
	db := dynamo.New(dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB)), func(table store.Table) string {
		return name + "-" + strings.ToUpper(string(table[:1])) + string(table[1:]) + "Table"
	})
	if _, err := catalog.Apply(t.Context(), db, auth.DefaultWorkspace, src); err != nil {
		t.Fatal(err)
	}
	return stack
}

type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

const build = `{"build":%d,"status":"passed"}`

// received is a webhook.
type received struct {
	header http.Header
	body   []byte
}

// endpoint is a webhook endpoint.
func endpoint(t *testing.T) (url string, got <-chan received) {
	hooks := make(chan received, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			hooks <- received{r.Header, b}
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, hooks
}

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		t.Fatalf("did not come in time: %s", what)
		panic("unreachable")
	}
}

// post sends a JSON body and decodes the answer.
func post(t *testing.T, url, body string, header map[string]string, answer any) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer != nil {
		if err := json.Unmarshal(b, answer); err != nil {
			t.Fatalf("%d %s: %v", resp.StatusCode, b, err)
		}
	}
	return resp
}

// rpc calls a method of revision 2026-07-28 and returns its result.
func rpc(t *testing.T, base, method, params string) json.RawMessage {
	t.Helper()
	body, header := request(method, params)
	var answer struct {
		Result, Error json.RawMessage
	}
	post(t, base+"/mcp", body, header, &answer)
	if answer.Error != nil {
		t.Fatalf("%s: %s", method, answer.Error)
	}
	return answer.Result
}

func request(method, params string) (body string, header map[string]string) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	if params != "" {
		params += ","
	}
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + meta + `}}`, map[string]string{
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Accept": "application/json, text/event-stream",
	}
}

func TestDeployment(t *testing.T) {
	stack := deploy(t, nil)
	target, hooks := endpoint(t)

	raw := rpc(t, stack.URL(), "resources/subscriptions/register", `"uris":["event://ci/build-finished"],"targetUri":"`+target+`"`)
	t.Logf("%s", raw)
	var registered struct {
		Subscription struct {
			URI           string `json:"uri"`
			WebhookSecret struct {
				Key string `json:"key"`
			} `json:"webhookSecret"`
		} `json:"subscription"`
	}
	if err := json.Unmarshal(raw, &registered); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := listen(t, ctx, stack.URL(), `"notifications":{"resourceSubscriptions":["event://ci/build-finished"]}`)
	wait(t, "the acknowledgement", stream)

	t.Run("an event of POST /events", func(t *testing.T) {
		var accepted struct{ Accepted []struct{ ID string } }
		resp := post(t, stack.URL()+"/events", `{"uri":"event://ci/build-finished","data":`+fmt.Sprintf(build, 1)+`}`, nil, &accepted)
		if resp.StatusCode != http.StatusAccepted || len(accepted.Accepted) != 1 {
			t.Fatalf("got %d %v", resp.StatusCode, accepted)
		}
		hook := wait(t, "the webhook", hooks)
		if got := hook.header.Get("Webhook-Id"); got != accepted.Accepted[0].ID {
			t.Errorf("got webhook-id %q, want %q", got, accepted.Accepted[0].ID)
		}
		if err := webhook.Verify(hook.header, hook.body, registered.Subscription.WebhookSecret.Key); err != nil {
			t.Error(err)
		}
		if got := wait(t, "the notification", stream); !strings.Contains(got, accepted.Accepted[0].ID) {
			t.Errorf("got %s", got)
		}
	})
	t.Run("an event of the inbox", func(t *testing.T) {
		url, body := stack.QueueURL("InboxQueue"), `{"uri":"event://ci/build-finished","id":"from-inbox","data":`+fmt.Sprintf(build, 2)+`}`
		c := sqs.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.SQS).SQS))
		if _, err := c.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}); err != nil {
			t.Fatal(err)
		}
		if got := wait(t, "the webhook", hooks).header.Get("Webhook-Id"); got != "from-inbox" {
			t.Errorf("got webhook-id %q", got)
		}
		if got := wait(t, "the notification", stream); !strings.Contains(got, "from-inbox") {
			t.Errorf("got %s", got)
		}
	})
	for id, s := range stack.Stats() {
		t.Logf("%s: %+v", id, s)
	}
}

// listen opens a stream of 2026-07-28 and passes on its data lines.
func listen(t *testing.T, ctx context.Context, base, params string) <-chan string {
	t.Helper()
	body, header := request("subscriptions/listen", params)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("got %d %s %s", resp.StatusCode, got, b)
	}
	data := make(chan string, 100)
	go func() {
		defer resp.Body.Close()
		scan := bufio.NewScanner(resp.Body)
		for scan.Scan() {
			if text, ok := strings.CutPrefix(scan.Text(), "data: "); ok {
				data <- text
			}
		}
	}()
	return data
}
