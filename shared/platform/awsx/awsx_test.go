package awsx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

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
			expect.Fault(t, "the environment", expect.ErrOf(load(getenv)), fault.Invalid)
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
	expect.Equal(t, "the requests to the common endpoint", all.requests, 1)
	expect.Equal(t, "the requests to the endpoint of SQS", own.requests, 1)
}

func TestRequestBodiesAreReadWithoutWriteTo(t *testing.T) {
	s := &server{}
	req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, s.start(t), &writesItself{Reader: strings.NewReader("body")}))(t)
	req.ContentLength = 4
	expect.Value(NewHTTPClient(requestLimit).Do(req))(t).Body.Close()
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
	expect.OK(t, expect.ErrOf(dynamodb.NewFromConfig(cfg).PutItem(context.Background(), &dynamodb.PutItemInput{
		TableName: aws.String("t"), Item: map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: "a"}},
	})))
}

func send(t *testing.T, cfg aws.Config, body string) {
	t.Helper()
	_, err := sqs.NewFromConfig(cfg, func(o *sqs.Options) { o.DisableMessageChecksumValidation = true }).
		SendMessage(context.Background(), &sqs.SendMessageInput{QueueUrl: aws.String("http://x/q"), MessageBody: &body})
	expect.OK(t, err)
}

func TestKindOf(t *testing.T) {
	tests := map[string]struct {
		err  error
		want fault.Kind
	}{
		"an ended context":          {context.DeadlineExceeded, fault.Unavailable},
		"the network":               {errors.New("connection refused"), fault.Unavailable},
		"a failure of the service":  {&smithy.GenericAPIError{Code: "InternalFailure", Fault: smithy.FaultServer}, fault.Unavailable},
		"throttling":                {&smithy.GenericAPIError{Code: "ThrottlingException", Fault: smithy.FaultClient}, fault.Unavailable},
		"a rejected request":        {&smithy.GenericAPIError{Code: "ValidationException", Fault: smithy.FaultClient}, fault.Internal},
		"no permission":             {&smithy.GenericAPIError{Code: "AccessDeniedException"}, fault.Internal},
		"a code with status 503":    {answered(503, &smithy.GenericAPIError{Code: "Unknown"}), fault.Unavailable},
		"a code with status 400":    {answered(400, &smithy.GenericAPIError{Code: "Unknown"}), fault.Internal},
		"an error with a kind":      {fmt.Errorf("wrapped: %w", fault.New(fault.TooLarge, "item")), fault.TooLarge},
		"an error of kind internal": {fault.New(fault.Internal, "broken item"), fault.Internal},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "the kind", KindOf(tt.err), tt.want)
		})
	}
}

func answered(status int, err error) error {
	return &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: &http.Response{StatusCode: status}}, Err: err,
	}}
}

// silent returns a configuration whose connections never answer, and the number of requests.
func silent(t *testing.T) (cfg aws.Config, requests *int) {
	requests = new(int)
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		*requests++
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		return ours, nil
	}}
	t.Cleanup(transport.CloseIdleConnections)
	endpoint := "http://aws.example"
	return aws.Config{
		Region: "eu-central-1", BaseEndpoint: &endpoint, RetryMaxAttempts: 2, HTTPClient: client{limit: requestLimit, HTTPClient: &http.Client{Transport: transport}},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil
		}),
	}, requests
}

func TestSilentConnections(t *testing.T) {
	for name, tc := range map[string]struct {
		call func(ctx context.Context, cfg aws.Config) error
		most time.Duration // of both attempts and the pause between them
	}{
		"a read of a table": {func(ctx context.Context, cfg aws.Config) error {
			_, err := dynamodb.NewFromConfig(cfg).Query(ctx, &dynamodb.QueryInput{TableName: aws.String("t")})
			return err
		}, 18 * time.Second},
		"a message to a queue": {func(ctx context.Context, cfg aws.Config) error {
			_, err := sqs.NewFromConfig(cfg).SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: cfg.BaseEndpoint, MessageBody: aws.String("m")})
			return err
		}, 18 * time.Second},
		"a long poll of a queue, which waits for 20 s": {func(ctx context.Context, cfg aws.Config) error {
			_, err := sqs.NewFromConfig(cfg).ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: cfg.BaseEndpoint, WaitTimeSeconds: 20})
			return err
		}, 60 * time.Second},
	} {
		t.Run("AWS requests on a silent connection are tried again: "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				cfg, requests := silent(t)
				began := time.Now()
				err := tc.call(ctx, cfg)
				expect.Error(t, "the error", err)
				expect.Equal(t, "the requests", *requests, 2)
				expect.AtMost(t, "the time that it took", time.Since(began), tc.most)
				synctest.Wait()
			})
		})
	}
}

func TestResponseBodiesCanBeReadAfterDo(t *testing.T) {
	c := client{limit: requestLimit, HTTPClient: doer(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("body"))}, nil
	})}
	req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://aws.example", http.NoBody))(t)
	resp := expect.Value(c.Do(req))(t)
	expect.Equal(t, "the body", string(expect.Value(io.ReadAll(resp.Body))(t)), "body")
	expect.OK(t, resp.Body.Close())
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

func TestAnInvocationUsesNoIdleConnection(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) }))
	t.Cleanup(srv.Close)
	c := NewHTTPClient(requestLimit)
	call := func(path string) (connection string) {
		resp := expect.Value(c.Do(expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, strings.NewReader("{}")))(t)))(t)
		defer resp.Body.Close()
		return string(expect.Value(io.ReadAll(resp.Body))(t))
	}
	const invoke = "/2015-03-31/functions/register/invocations"
	first := call(invoke)
	expect.True(t, "the second invocation uses another connection", call(invoke) != first)
	first = call("/")
	expect.Equal(t, "the connection of a second request of another kind", call("/"), first)
}
