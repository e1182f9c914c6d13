package awsx

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/test/expect"
)

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
				if err == nil || *requests != 2 {
					t.Errorf("got %v after %d requests, want an error after 2", err, *requests)
				}
				if took := time.Since(began); took > tc.most {
					t.Errorf("took %v, want at most %v", took, tc.most)
				}
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
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "body" {
		t.Errorf("got %q, %v, want body", b, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }
