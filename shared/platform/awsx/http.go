package awsx

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

const (
	connectTimeout = 3 * time.Second
	// requestLimit bounds an attempt of a request, because a connection can go silent. The SDK then repeats the request on
	// another connection, and both attempts fit into the 18 s that fanout has. DynamoDB, SQS, KMS and SSM usually answer
	// within milliseconds.
	requestLimit = 8 * time.Second
	// receiveWait and invokeWait extend the limit of requests that wait at the service: receiving waits for messages, and
	// invoking waits for a function, which may run for 60 s.
	receiveWait = 20 * time.Second
	invokeWait  = 60 * time.Second
	// maxIdle is the number of idle connections per service. The SDK's default of 10 is too small, because a dispatcher records a
	// page of outcomes concurrently.
	maxIdle = 100
)

// NewHTTPClient returns the HTTP client of a configuration. It ends an attempt of a request after limit, or later if the
// request waits at the service, see [longestWait].
//
// It also works around a race in the SDK. When the response's header arrives, the SDK closes the request's body, and the body's WriteTo
// then returns [io.EOF] as an error. If net/http is still checking whether the body has ended, because the response took only
// microseconds, it takes this for a broken body and drops the connection with the response. The SDK repeats the request. With an
// emulator on this machine and the race detector this happened to 9 of 3,000 requests, and messages of a repeated receive stay
// invisible. Our wrapper has no WriteTo, so net/http calls Read, and a closed body just ends.
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
	ctx, cancel := context.WithTimeout(req.Context(), c.limit+longestWait(req))
	req = req.WithContext(ctx)
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

// longestWait returns how long a request may wait at the service before it is answered.
func longestWait(req *http.Request) time.Duration {
	switch {
	case strings.HasSuffix(req.Header.Get("X-Amz-Target"), ".ReceiveMessage"):
		return receiveWait
	case strings.HasSuffix(req.URL.Path, "/invocations"):
		return invokeWait
	}
	return 0
}

// limited is a response body that releases the time limit of its request when it is closed.
type limited struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (l limited) Close() error {
	defer l.cancel()
	return l.ReadCloser.Close()
}

// body is a request body without WriteTo, see [NewHTTPClient].
type body struct{ r io.ReadCloser }

func (b body) Read(p []byte) (int, error) { return b.r.Read(p) }
func (b body) Close() error               { return b.r.Close() }
