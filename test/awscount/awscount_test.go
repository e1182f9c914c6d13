package awscount

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestCounter(t *testing.T) {
	var counter Counter
	counter.Capacity = true
	s := &server{}
	cfg := s.start(t)
	counter.Attach(&cfg)
	put(t, cfg)
	before := counter.Snapshot()

	s.failures = 1
	put(t, cfg)
	send(t, cfg, strings.Repeat("x", 100<<10))

	got := counter.Snapshot().Since(before)
	for service, operations := range got {
		for operation, count := range operations {
			if count.BytesOut < 50 || count.BytesIn == 0 {
				t.Errorf("%s %s: %d bytes out, %d in", service, operation, count.BytesOut, count.BytesIn)
			}
			count.BytesOut, count.BytesIn = 0, 0
			operations[operation] = count
		}
	}
	want := Counts{
		"DynamoDB": {"PutItem": {Calls: 1, Requests: 2, Chunks: 2, Units: 1.5}},
		"SQS":      {"SendMessage": {Calls: 1, Requests: 1, Chunks: 2}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	expect.Equal(t, "the requests", got.Requests(), 3)

	text := expect.Value(json.Marshal(&counter))(t)
	var back Counts
	if err := json.Unmarshal(text, &back); err != nil || back["DynamoDB"]["PutItem"].Calls != 2 {
		t.Errorf("%s, %v", text, err)
	}
}

func TestCounterCountsFailedCalls(t *testing.T) {
	var counter Counter
	s := &server{failures: 10}
	cfg := s.start(t)
	cfg.RetryMaxAttempts = 1
	counter.Attach(&cfg)
	if _, err := dynamodb.NewFromConfig(cfg).ListTables(t.Context(), nil); err == nil {
		t.Fatal("no error")
	}
	got := counter.Snapshot()["DynamoDB"]["ListTables"]
	if got.Calls != 1 || got.Requests != 1 || got.Errors != 1 {
		t.Errorf("got %+v", got)
	}
}

// server answers requests to DynamoDB and SQS, and fails the next requests if failures is positive.
type server struct{ failures int }

func (s *server) start(t *testing.T) aws.Config {
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return aws.Config{Region: "us-east-1", BaseEndpoint: &srv.URL, Credentials: credentials.NewStaticCredentialsProvider("a", "s", "")}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	switch {
	case s.failures > 0:
		s.failures--
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, `{"__type":"InternalServerError"}`)
	case strings.Contains(r.Header.Get("X-Amz-Target"), "SendMessage"):
		io.WriteString(w, `{"MessageId":"1"}`)
	default:
		io.WriteString(w, `{"ConsumedCapacity":{"TableName":"t","CapacityUnits":1.5}}`)
	}
}

func put(t *testing.T, cfg aws.Config) {
	t.Helper()
	_, err := dynamodb.NewFromConfig(cfg).PutItem(context.Background(), &dynamodb.PutItemInput{
		TableName: aws.String("t"), Item: map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: "a"}},
	})
	expect.OK(t, err)
}

func send(t *testing.T, cfg aws.Config, body string) {
	t.Helper()
	_, err := sqs.NewFromConfig(cfg, func(o *sqs.Options) { o.DisableMessageChecksumValidation = true }).
		SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: aws.String("http://x/q"), MessageBody: &body})
	expect.OK(t, err)
}
