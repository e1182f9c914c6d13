package forward_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/mcp-events/mcpevents/functions/internal/forward"
)

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

func TestLambda(t *testing.T) {
	for name, tc := range map[string]struct {
		statuses []int
		code     string
		requests int
		fails    bool
	}{
		"AWS-08 a throttled invocation is retried, because the function did not run": {[]int{429, 429, 200}, "TooManyRequestsException", 3, false},
		"AWS-08 an invocation that stays throttled fails":                            {[]int{429, 429, 429, 429, 429}, "TooManyRequestsException", 4, true},
		"an invocation that may have run is not repeated":                            {[]int{500, 200}, "ServiceException", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests := 0
				client := doer(func(*http.Request) (*http.Response, error) {
					status := tc.statuses[requests]
					requests++
					header := http.Header{}
					if status != http.StatusOK {
						header.Set("X-Amzn-Errortype", tc.code)
					}
					return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(`{}`))}, nil
				})
				invoke := forward.Lambda(aws.Config{
					Region: "eu-central-1", RetryMaxAttempts: 5, HTTPClient: client,
					Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
						return aws.Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil
					}),
				}, "register")
				_, err := invoke(t.Context(), []byte(`{}`))
				if (err != nil) != tc.fails || requests != tc.requests {
					t.Errorf("got error %v after %d requests, want an error: %t, after %d", err, requests, tc.fails, tc.requests)
				}
			})
		})
	}
}
