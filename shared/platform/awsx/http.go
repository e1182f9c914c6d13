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
	// maxIdle connections to a service are kept. The SDK's 10 are too few for a
	// dispatch that records a page of outcomes at once.
	maxIdle = 100
)

// NewHTTPClient returns the HTTP client of a configuration. It ends an attempt of a request after limit, or later if the
// request waits at the service, see [waitOf].
//
// It also works around a race of the SDK. As soon as an answer's header is there, the
// SDK closes the request's body, and the body's WriteTo then returns [io.EOF] as an
// error. If net/http is just asking whether the body has come to its end, as it
// does with an answer within microseconds, it takes that for a broken body and
// drops the connection with the answer on it. The SDK repeats the request; with an
// emulator on this machine and the race detector that were 9 of 3,000 requests, and a
// receive among them hides its messages. Without WriteTo, net/http reads, and a
// closed body just ends.
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
	ctx, cancel := context.WithTimeout(req.Context(), c.limit+waitOf(req))
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

// waitOf returns how long a request may wait at the service before it is answered.
func waitOf(req *http.Request) time.Duration {
	switch {
	case strings.HasSuffix(req.Header.Get("X-Amz-Target"), ".ReceiveMessage"):
		return receiveWait
	case strings.HasSuffix(req.URL.Path, "/invocations"):
		return invokeWait
	}
	return 0
}

// limited is a response's body that ends the time limit of its request when it is closed.
type limited struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (l limited) Close() error {
	defer l.cancel()
	return l.ReadCloser.Close()
}

// body has no WriteTo.
type body struct{ r io.ReadCloser }

func (b body) Read(p []byte) (int, error) { return b.r.Read(p) }
func (b body) Close() error               { return b.r.Close() }
