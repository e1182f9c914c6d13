package awsx

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestLoad(t *testing.T) {
	tests := map[string]struct {
		env        func(string) string
		wantRegion string
		wantKey    string
		wantBase   string
		wantTries  int
	}{
		"the environment of Lambda": {
			env:        env(envRegion, "eu-central-1", envAccessKey, "AKIA", envSecretKey, "s", envSessionToken, "t"),
			wantRegion: "eu-central-1", wantKey: "AKIA", wantTries: defaultAttempts,
		},
		"an emulator on this machine needs no credentials": {
			env:        env(EnvEndpoint, "http://127.0.0.1:4566"),
			wantRegion: "us-east-1", wantKey: "test", wantBase: "http://127.0.0.1:4566", wantTries: defaultAttempts,
		},
		"settings win over the defaults for an emulator": {
			env:        env(EnvEndpoint, "http://localhost:4566", envDefaultRegion, "eu-west-1", envAccessKey, "A", envSecretKey, "s", envAttempts, "9"),
			wantRegion: "eu-west-1", wantKey: "A", wantBase: "http://localhost:4566", wantTries: 9,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := expect.Value(load(tt.env))(t)
			creds := expect.Value(cfg.Credentials.Retrieve(t.Context()))(t)
			if cfg.Region != tt.wantRegion || creds.AccessKeyID != tt.wantKey ||
				aws.ToString(cfg.BaseEndpoint) != tt.wantBase || cfg.RetryMaxAttempts != tt.wantTries {
				t.Errorf("got %s, %s, %s, %d, want %s, %s, %s, %d", cfg.Region, creds.AccessKeyID, aws.ToString(cfg.BaseEndpoint), cfg.RetryMaxAttempts,
					tt.wantRegion, tt.wantKey, tt.wantBase, tt.wantTries)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	tests := map[string]func(string) string{
		"no region":                            env(envAccessKey, "A", envSecretKey, "s"),
		"no credentials":                       env(envRegion, "us-east-1"),
		"no credentials for a remote endpoint": env(envRegion, "us-east-1", EnvEndpoint, "https://vpce.example"),
		"an endpoint that is not a URL":        env(EnvEndpoint, "127.0.0.1:4566"),
		"a number of attempts that is text":    env(EnvEndpoint, "http://127.0.0.1:1", envAttempts, "many"),
	}
	for name, getenv := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := load(getenv); !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v, want an invalid environment", err)
			}
		})
	}
}

func TestAServiceMayHaveItsOwnEndpoint(t *testing.T) {
	all, own := &server{}, &server{}
	cfg := expect.Value(load(env(EnvEndpoint, all.start(t), EnvEndpoint+"_SQS", own.start(t))))(t)
	// The SDK itself checks whether these variables are set.
	t.Setenv(EnvEndpoint, "http://127.0.0.1:1")
	t.Setenv(EnvEndpoint+"_SQS", "http://127.0.0.1:1")
	send(t, cfg, "hello")
	put(t, cfg)
	if all.requests != 1 || own.requests != 1 {
		t.Errorf("got %d requests to the common endpoint and %d to that of SQS, want one each", all.requests, own.requests)
	}
}

func TestRequestBodiesAreReadWithoutWriteTo(t *testing.T) {
	s := &server{}
	req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, s.start(t), &writesItself{Reader: strings.NewReader("body")}))(t)
	req.ContentLength = 4
	resp := expect.Value(NewHTTPClient(requestLimit).Do(req))(t)
	resp.Body.Close()
	expect.Equal(t, "bytes at the server", s.received, 4)
}

// writesItself is like a closed body of the SDK.
type writesItself struct{ io.Reader }

func (*writesItself) WriteTo(io.Writer) (int64, error) { return 0, io.EOF }
func (*writesItself) Close() error                     { return nil }

// server answers requests of SQS and DynamoDB.
type server struct {
	requests int
	received int64
}

func (s *server) start(t *testing.T) string {
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return srv.URL
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.received, _ = io.Copy(io.Discard, r.Body)
	s.requests++
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if strings.Contains(r.Header.Get("X-Amz-Target"), "SendMessage") {
		io.WriteString(w, `{"MessageId":"1"}`)
	} else {
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
