package awsx

import (
	"io"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

const (
	connectTimeout = 3 * time.Second
	// maxIdle connections to a service are kept. The SDK's 10 are too few for a
	// dispatch that records a page of outcomes at once.
	maxIdle = 100
)

// NewHTTPClient returns the HTTP client of a configuration. It bounds
// connecting, not answering: an SQS long poll takes 20 seconds, and every caller
// has a context.
//
// It also mends a race of the SDK. As soon as an answer's header is there, the
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
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = body{req.Body}
	}
	return c.HTTPClient.Do(req)
}

// body has no WriteTo.
type body struct{ r io.ReadCloser }

func (b body) Read(p []byte) (int, error) { return b.r.Read(p) }
func (b body) Close() error               { return b.r.Close() }
