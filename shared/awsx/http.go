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
	// requestLimit bounds an attempt of a request, so that a connection that went silent does not take the whole time of
	// the caller. DynamoDB, SQS, KMS and SSM answer within milliseconds. The SDK repeats the request on another connection.
	requestLimit = 5 * time.Second
	// receiveLimit is longer, because such a request may wait up to 20 s for messages.
	receiveLimit = 20*time.Second + requestLimit
	// invokeLimit is longer still, because such a request waits for a function, which may run for 60 s.
	invokeLimit = 60*time.Second + requestLimit
	// maxIdle connections to a service are kept. The SDK's 10 are too few for a
	// dispatch that records a page of outcomes at once.
	maxIdle = 100
)

// NewHTTPClient returns the HTTP client of a configuration. It bounds connecting and each attempt of a request, see
// [limitOf].
//
// It also works around a race of the SDK. As soon as an answer's header is there, the
// SDK closes the request's body, and the body's WriteTo then returns [io.EOF] as an
// error. If net/http is just asking whether the body has come to its end, as it
// does with an answer within microseconds, it takes that for a broken body and
// drops the connection with the answer on it. The SDK repeats the request; with an
// emulator on this machine and the race detector that were 9 of 3,000 requests, and a
// receive among them hides its messages. Without WriteTo, net/http reads, and a
// closed body just ends.
func NewHTTPClient() aws.HTTPClient {
	return client{awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = connectTimeout }).
		WithTransportOptions(func(t *http.Transport) { t.MaxIdleConns, t.MaxIdleConnsPerHost = maxIdle, maxIdle })}
}

type client struct{ aws.HTTPClient }

func (c client) Do(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), limitOf(req))
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

// limitOf returns how long an attempt of a request may take until the response's body is read.
func limitOf(req *http.Request) time.Duration {
	switch {
	case strings.HasSuffix(req.Header.Get("X-Amz-Target"), ".ReceiveMessage"):
		return receiveLimit
	case strings.HasSuffix(req.URL.Path, "/invocations"):
		return invokeLimit
	}
	return requestLimit
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
