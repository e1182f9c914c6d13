// Package awsx makes the configuration of the AWS SDK that all AWS clients of a process share.
//
// Lambda passes the region, the credentials and the endpoints in environment variables, so this package reads no files and no metadata
// service. This makes a function's first request 3 ms faster and its archive 0.7 MB smaller. The command line uses package awsx/profile
// instead. Only main packages and the code that connects their parts call [Load].
package awsx

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Environment variables that [Load] reads. The AWS SDKs use the same names.
const (
	envRegion        = "AWS_REGION"
	envDefaultRegion = "AWS_DEFAULT_REGION"
	envAccessKey     = "AWS_ACCESS_KEY_ID"
	envSecretKey     = "AWS_SECRET_ACCESS_KEY"
	envSessionToken  = "AWS_SESSION_TOKEN"
	// EnvEndpoint is the variable with the base URL of all services, for example an emulator's URL. The variable with the suffix
	// "_DYNAMODB", "_SQS" or another service's name has the base URL of that service.
	EnvEndpoint = "AWS_ENDPOINT_URL"
	// envAttempts is the variable with the maximum number of attempts per request.
	envAttempts = "AWS_MAX_ATTEMPTS"
)

const defaultAttempts = 5

// Load returns the SDK configuration from environment variables. It fails if the credentials are missing, except for an emulator on this
// machine, because emulators accept any credentials.
func Load() (aws.Config, error) {
	return load(os.Getenv)
}

func load(getenv func(string) string) (aws.Config, error) {
	cfg := aws.Config{
		Region:           cmp.Or(getenv(envRegion), getenv(envDefaultRegion)),
		RetryMaxAttempts: defaultAttempts,
		ConfigSources:    []any{serviceEndpoints{getenv}},
		HTTPClient:       NewHTTPClient(requestLimit),
	}
	if text := getenv(envAttempts); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return aws.Config{}, fault.New(fault.Invalid, "%s must be a number from 1 to 100, not %q", envAttempts, text)
		}
		cfg.RetryMaxAttempts = n
	}
	local := false
	if base := getenv(EnvEndpoint); base != "" {
		u, err := url.Parse(base)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return aws.Config{}, fault.New(fault.Invalid, "%s is not a base URL", EnvEndpoint)
		}
		cfg.BaseEndpoint = &base
		local = isLoopback(u.Hostname())
	}

	creds := aws.Credentials{
		AccessKeyID:     getenv(envAccessKey),
		SecretAccessKey: getenv(envSecretKey),
		SessionToken:    getenv(envSessionToken),
		Source:          "environment",
	}
	if local && creds.AccessKeyID == "" {
		creds = aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test", Source: "emulator"}
	}
	if local && cfg.Region == "" {
		cfg.Region = "us-east-1"
	}
	switch {
	case cfg.Region == "":
		return aws.Config{}, fault.New(fault.Invalid, "%s is not set", envRegion)
	case creds.AccessKeyID == "" || creds.SecretAccessKey == "":
		return aws.Config{}, fault.New(fault.Invalid, "%s and %s are not both set", envAccessKey, envSecretKey)
	}
	cfg.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return creds, nil })
	return cfg, nil
}

type serviceEndpoints struct{ getenv func(string) string }

// GetServiceBaseEndpoint returns the base URL of a service if an environment variable sets one; see [EnvEndpoint]. The SDK looks for this
// method in the sources of its configuration.
func (s serviceEndpoints) GetServiceBaseEndpoint(_ context.Context, sdkID string) (string, bool, error) {
	name := strings.ToUpper(strings.ReplaceAll(sdkID, " ", "_"))
	if base := s.getenv(EnvEndpoint + "_" + name); base != "" {
		return base, true, nil
	}
	return "", false, nil
}

func isLoopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// KindOf returns the kind of an error of an AWS client. An error that already has a kind keeps it.
//
// Otherwise the kind is [fault.Unavailable] if a retry may help: the service did not answer, the service failed, or the SDK itself would
// retry. A request that the service rejects is [fault.Internal], because we check input before it reaches a client.
func KindOf(err error) fault.Kind {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return fault.KindOf(err)
	}
	api, answered := errors.AsType[smithy.APIError](err)
	if !answered || api.ErrorFault() == smithy.FaultServer {
		return fault.Unavailable
	}
	if _, throttled := retry.DefaultThrottleErrorCodes[api.ErrorCode()]; throttled {
		return fault.Unavailable
	}
	for _, r := range retry.DefaultRetryables { // these also look at the HTTP status
		if again := r.IsErrorRetryable(err); again.Bool() {
			return fault.Unavailable
		}
	}
	return fault.Internal
}

const (
	connectTimeout = 3 * time.Second
	// requestLimit limits one attempt of a request, because a connection can stop responding without an error. The SDK then repeats the
	// request on another connection. Two attempts of 8 s fit into the 18 s that a call of the function fanout may take.
	requestLimit = 8 * time.Second
	// receiveWait and invokeWait are added to requestLimit for requests whose response the service delays: until messages arrive, or
	// until the invoked function returns.
	receiveWait = 20 * time.Second
	invokeWait  = 60 * time.Second
	// maxIdle is the number of idle connections per service. The SDK's default of 10 is too small, because a dispatcher writes the
	// outcomes of many deliveries concurrently.
	maxIdle = 100
)

// NewHTTPClient returns an HTTP client for the SDK. It ends an attempt of a request after limit, or later if the service delays the
// response; see [longestWait].
//
// It also works around a race in the SDK, which closes a request's body when the header of the response arrives. If net/http still sends
// the body, the body's WriteTo then returns [io.EOF] as an error, net/http drops the connection with the response, and the SDK repeats
// the request. The messages of a repeated receive stay invisible until their visibility timeout. Our wrapper of the body has no WriteTo,
// so net/http calls Read, which does not fail when the body is closed.
func NewHTTPClient(limit time.Duration) aws.HTTPClient {
	return client{limit: limit, HTTPClient: awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = connectTimeout }).
		WithTransportOptions(func(t *http.Transport) { t.MaxIdleConns, t.MaxIdleConnsPerHost = maxIdle, maxIdle })}
}

type client struct {
	aws.HTTPClient
	limit time.Duration
}

func (c client) Do(req *http.Request) (*http.Response, error) {
	wait := longestWait(req)
	ctx, cancel := context.WithTimeout(req.Context(), c.limit+wait)
	req = req.WithContext(ctx)
	// A service may close an idle connection while Lambda has frozen this process. The SDK repeats a request that fails for this reason.
	// But it does not repeat an invocation, because the invocation may have taken effect. So the connection of an invocation is closed
	// afterwards, and the next invocation opens a new one.
	req.Close = wait == invokeWait
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = body{req.Body}
	}
	resp, err := c.HTTPClient.Do(req)
	if err != nil {
		cancel()
		return resp, err
	}
	resp.Body = limited{resp.Body, cancel}
	return resp, nil
}

func longestWait(req *http.Request) time.Duration {
	switch {
	case strings.HasSuffix(req.Header.Get("X-Amz-Target"), ".ReceiveMessage"):
		return receiveWait
	case strings.HasSuffix(req.URL.Path, "/invocations"):
		return invokeWait
	}
	return 0
}

// limited is a response body that also ends the timeout of its request when it is closed.
type limited struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (l limited) Close() error {
	defer l.cancel()
	return l.ReadCloser.Close()
}

// body is a request body without the method WriteTo; see [NewHTTPClient].
type body struct{ io.ReadCloser }
