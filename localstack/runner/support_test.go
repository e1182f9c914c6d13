package runner_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestMain makes this binary act as the functions of testdata/template.yaml. They forward events that are not a
// [testfn.Call] to the test and return its response.
func TestMain(m *testing.M) {
	testfn.Main(func(ctx context.Context, event json.RawMessage) (any, error) {
		var custom cfn.Event
		if err := json.Unmarshal(event, &custom); err == nil && custom.ResponseURL != "" {
			return cfn.LambdaWrap(func(ctx context.Context, e cfn.Event) (string, map[string]any, error) {
				answer, err := ask(ctx, event)
				return "id-of-" + e.LogicalResourceID, map[string]any{"Name": string(answer)}, err
			})(ctx, custom)
		}
		answer, err := ask(ctx, event)
		if err == nil && os.Getenv("HOP_TO") != "" {
			return hop(ctx, event)
		}
		return answer, err
	})
	os.Exit(awslocal.Main(m))
}

// hop sends a message with a decreased number to the function's own queue, until the number is 0.
func hop(ctx context.Context, event json.RawMessage) (any, error) {
	var batch events.SQSEvent
	if err := json.Unmarshal(event, &batch); err != nil {
		return nil, err
	}
	cfg, err := awsx.Load()
	if err != nil {
		return nil, err
	}
	client, url := sqs.NewFromConfig(cfg), os.Getenv("HOP_TO")
	for _, r := range batch.Records {
		left, err := strconv.Atoi(r.Body)
		if err != nil {
			return nil, err
		}
		if left == 0 {
			continue
		}
		// Send a batch, as the real functions do.
		if _, err := client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: []types.SendMessageBatchRequestEntry{
			{Id: aws.String("0"), MessageBody: aws.String(strconv.Itoa(left - 1))},
		}}); err != nil {
			return nil, err
		}
	}
	return events.SQSEventResponse{BatchItemFailures: []events.SQSBatchItemFailure{}}, nil
}

func ask(ctx context.Context, event json.RawMessage) (json.RawMessage, error) {
	url := os.Getenv("SINK") + "/" + os.Getenv("AWS_SESSION_TOKEN")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(event))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(string(answer))
	}
	return answer, err
}

// sink receives the functions' events in the test. It maps logical ids to functions that return the response.
type sink map[string]func(event []byte) (string, error)

func (s sink) start(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event, err := io.ReadAll(r.Body)
		f := s[strings.TrimPrefix(r.URL.Path, "/")]
		if err != nil || f == nil {
			fmt.Fprint(w, `""`)
			return
		}
		answer, err := f(event)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func options(t *testing.T, s sink) runner.Options {
	t.Helper()
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS)
	bin := expect.Value(os.Executable())(t)
	return runner.Options{
		Template: "testdata/template.yaml", Name: "t" + uuid.NewString()[:8], Region: awslocal.Region,
		Endpoints: runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS},
		Env:       map[string]string{testfn.Variable: "1", "SINK": s.start(t)},
		Binaries:  map[string]string{"fn": bin},
		Output:    testWriter{t},
	}
}

func start(t *testing.T, o runner.Options) *runner.Stack {
	t.Helper()
	stack := expect.Value(runner.Start(t.Context(), o))(t)
	t.Cleanup(stack.Close)
	return stack
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func named(sinks ...sink) sink {
	out := sink{"CustomFunction": func([]byte) (string, error) { return `"vanilla"`, nil }}
	for _, s := range sinks {
		for k, v := range s {
			out[k] = v
		}
	}
	return out
}

func send(t *testing.T, c *sqs.Client, url string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}
		if strings.HasSuffix(url, ".fifo") {
			group, _, _ := strings.Cut(body, "-")
			in.MessageGroupId, in.MessageDeduplicationId = aws.String(group), aws.String(body)
		}
		expect.OK(t, expect.ErrOf(c.SendMessage(t.Context(), in)))
	}
}

// seen collects the bodies of messages, and fails some of them a given number of times.
type seen struct {
	mu     sync.Mutex
	bodies []string
	fail   map[string]int // number of failures by body
}

// handle fails a message and, as required for FIFO queues, all later messages of its group.
func (s *seen) handle(event []byte) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var batch events.SQSEvent
	if err := json.Unmarshal(event, &batch); err != nil {
		return "", err
	}
	failed := map[string]bool{}
	response := events.SQSEventResponse{BatchItemFailures: []events.SQSBatchItemFailure{}}
	for _, r := range batch.Records {
		group := r.Attributes["MessageGroupId"]
		if s.fail[r.Body] > 0 {
			s.fail[r.Body]--
			s.bodies = append(s.bodies, r.Body+" failed")
			failed[group] = group != ""
			response.BatchItemFailures = append(response.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: r.MessageId})
			continue
		}
		if failed[group] {
			response.BatchItemFailures = append(response.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: r.MessageId})
			continue
		}
		s.bodies = append(s.bodies, r.Body)
	}
	b, err := json.Marshal(response)
	return string(b), err
}

func (s *seen) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

func (s *seen) of(group string) (out []string) {
	for _, body := range s.all() {
		if strings.HasPrefix(body, group+"-") {
			out = append(out, body)
		}
	}
	return out
}
