package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
)

// Options configure a [Sender]. Zero values are the defaults.
type Options struct {
	Guard *Guard
	// UserAgent is name/version; mcp-events/dev by default.
	UserAgent string
	// RootCAs replaces the system's certificate authorities.
	RootCAs *x509.CertPool
	// Identity adds v1a signatures; nil adds none.
	Identity *Identity
	// ConnsPerHost bounds the connections to one host and port, busy or idle (128).
	// A request over it waits, within its own timeout.
	ConnsPerHost int
	// MaxConns bounds the open connections to all hosts together, busy or idle (by
	// default what [descriptors.Outgoing] leaves for them). At the bound idle ones are
	// closed; then a request waits, within its own timeout, and is [Internal]
	// after it. ConnsPerHost and the idle connections are at most half of it.
	MaxConns int
	// Now is the clock.
	Now func() time.Time
}

// Sender posts webhooks. It is safe for concurrent use; connections are reused
// over calls, by HTTP/2 where the endpoint offers it.
type Sender struct {
	guard     *Guard
	transport *http.Transport
	identity  *Identity
	userAgent []string
	now       func() time.Time
	targets   *bounded.Map[string, *url.URL]
	places    *places
	connect   func(ctx context.Context, network, address string) (net.Conn, error)
}

// Request is one attempt of one delivery.
type Request struct {
	// URL is checked by the guard again at every attempt.
	URL string
	// ID is the webhook-id: the event's id, the same over all attempts.
	ID string
	// SubscriptionID is the X-MCP-Subscription-Id.
	SubscriptionID string
	// Body is sent as it is: JSON, at most [MaxBody] bytes. It must not be changed
	// until a second after Send returned: a cancelled write may still read it.
	Body []byte
	// Keys sign, each with a v1 signature; without keys there is none.
	Keys [][]byte
	// RawSecret adds X-Hub-Signature-256.
	RawSecret []byte
	// Timeout bounds the whole exchange, from resolving the name to the end of the
	// answer ([DefaultTimeout]).
	Timeout time.Duration
	// Trace is sent along, if there is one.
	Trace trace.Context
	// At is the time of this attempt, for webhook-timestamp; zero is now.
	At time.Time
}

// maxIdle is how many idle connections to all hosts together are kept.
const maxIdle = 512

// NewSender makes a sender. Close ends its idle connections.
func NewSender(o Options) *Sender {
	o.MaxConns = cmp.Or(o.MaxConns, descriptors.Outgoing())
	o.ConnsPerHost = min(cmp.Or(o.ConnsPerHost, 128), max(1, o.MaxConns/2))
	o.Guard = cmp.Or(o.Guard, &Guard{})
	o.UserAgent = cmp.Or(o.UserAgent, "mcp-events/dev")
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Sender{
		guard: o.Guard, identity: o.Identity, userAgent: []string{o.UserAgent}, now: o.Now,
		targets: bounded.NewMap[string, *url.URL](8192),
	}
	s.places = newPlaces(o.MaxConns, s.Close)
	s.connect = s.bounded(s.guard.DialContext)
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		RootCAs:            o.RootCAs,
		NextProtos:         []string{"h2", "http/1.1"},
		ClientSessionCache: tls.NewLRUClientSessionCache(1024),
	}
	s.transport = &http.Transport{
		DialContext: s.connect, // and no proxy of the environment
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.dialTLS(ctx, network, address, config)
		},
		TLSClientConfig:        config,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // an answer is bounded as it comes, not as it unpacks
		MaxConnsPerHost:        o.ConnsPerHost,
		MaxIdleConnsPerHost:    o.ConnsPerHost,
		MaxIdleConns:           min(maxIdle, max(1, o.MaxConns/2)),
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: maxAnswerHeader,
		WriteBufferSize:        8 << 10, // headers and an ordinary body in one write
		HTTP2: &http.HTTP2Config{
			// A connection that went silent is found by a ping, not by one timeout after another.
			SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second, WriteByteTimeout: 10 * time.Second,
			MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20,
		},
	}
	return s
}

// Close ends idle connections. Calls of Send under way are not touched.
func (s *Sender) Close() { s.transport.CloseIdleConnections() }

func (s *Sender) dialTLS(ctx context.Context, network, address string, config *tls.Config) (net.Conn, error) {
	c, err := s.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address) // the name, never the address it resolved to
	tc := tls.Client(c, config)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, &stageError{stageTLS, err}
	}
	return tc, nil
}

var contentType = []string{"application/json"}

// bodyOf is of a type that net/http knows to be in memory: only then it writes headers and body at once.
func bodyOf(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// Check refuses a target early; see [Guard.CheckURL].
func (s *Sender) Check(target string) error {
	_, err := s.guard.CheckURL(target)
	return err
}

// Send makes one attempt. It follows no redirect, uses no proxy of the
// environment, reads at most 16 KiB of the answer and returns within the timeout,
// whatever the endpoint does. If the endpoint closed a kept connection just as the request
// went out, or the sender closed one as idle just as the answer arrived, Send repeats the
// request once on another connection. The endpoint can then see the same webhook-id twice.
func (s *Sender) Send(ctx context.Context, r Request) Outcome {
	started := time.Now()
	o := Outcome{}
	resp, failure := s.post(ctx, &r, nil)
	if failure != nil {
		o.Status, o.Category, o.Err = resp.status, failure.Category, failure
	} else if o.Status, o.Category = resp.status, ofStatus(resp.status); o.Category != "" {
		o.Err = &Failure{o.Category, "status " + strconv.Itoa(o.Status)}
		o.RetryAfter = ParseRetryAfter(resp.retryAfter, s.now())
	}
	o.Took = time.Since(started)
	return o
}

type answer struct {
	status     int
	retryAfter string
	body       []byte
}

// post makes the exchange. If keep is not nil the answer's body, up to [maxAnswer],
// is appended to it, else it is passed over.
func (s *Sender) post(parent context.Context, r *Request, keep []byte) (answer, *Failure) {
	target, failure := s.target(r.URL)
	if failure != nil {
		return answer{}, failure
	}
	if len(r.Body) > MaxBody {
		// As final as if the endpoint had said so itself.
		return answer{status: http.StatusRequestEntityTooLarge}, &Failure{HTTP4xx, "the body is larger than 256 KiB and was not sent"}
	}
	req := http.Request{
		Method: http.MethodPost, URL: target, Host: target.Host, Header: s.header(r),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: int64(len(r.Body)), Body: bodyOf(r.Body),
		GetBody: onceAgain(r.Body),
	}
	return s.exchange(parent, &req, r.Timeout, keep)
}

// onceAgain gives the transport a body for one more connection. It would otherwise go on through all that are kept, and an
// endpoint that takes a request and closes without an answer would get it from each.
func onceAgain(body []byte) func() (io.ReadCloser, error) {
	again := false
	return func() (io.ReadCloser, error) {
		if again {
			return nil, io.EOF // as if this connection had ended the attempt
		}
		again = true
		return bodyOf(body), nil
	}
}

// exchange runs a request and reads its answer, all within the timeout.
func (s *Sender) exchange(parent context.Context, req *http.Request, timeout time.Duration, keep []byte) (answer, *Failure) {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	ctx, x := follow(ctx, timeout)
	defer x.end()
	resp, err := s.transport.RoundTrip(req.WithContext(ctx))
	if endedAsIdle(err) && req.GetBody != nil {
		if body, used := req.GetBody(); used == nil {
			req.Body = body
			resp, err = s.transport.RoundTrip(req.WithContext(ctx))
		}
	}
	if err != nil {
		return answer{}, diagnose(parent, x, err)
	}
	a := answer{status: resp.StatusCode}
	if a.status == http.StatusSwitchingProtocols {
		_ = resp.Body.Close() // it is the bare connection, which no context ends
		return a, nil
	}
	// An end of the body within the bound leaves the connection fit for reuse; Close ends it otherwise.
	if ofStatus(a.status) != "" {
		a.retryAfter = resp.Header.Get("Retry-After")
	}
	limited := io.LimitReader(resp.Body, maxAnswer+1)
	if keep != nil {
		buf := bytes.NewBuffer(keep)
		_, err = buf.ReadFrom(limited)
		a.body = buf.Bytes()
	} else if resp.Body != http.NoBody {
		_, err = io.Copy(io.Discard, limited)
	}
	_ = resp.Body.Close()
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return answer{}, diagnose(parent, x, ctx.Err())
	case errors.Is(err, errExcess):
		return answer{}, diagnose(parent, x, err)
	}
	return a, nil // a body that broke off does not undo the status
}

// endedAsIdle reports whether net/http closed a connection as idle before RoundTrip had the answer that came on it. It marks a
// connection as idle first, and then hands over an answer without a body. The endpoint is not to blame, and the status is lost.
// net/http does not export these errors.
func endedAsIdle(err error) bool {
	return err != nil && (strings.HasSuffix(err.Error(), "http: CloseIdleConnections called") ||
		strings.HasSuffix(err.Error(), "http: putIdleConn: too many idle connections"))
}

// header returns the header fields of docs/reference/webhooks.md and no others, in the spelling of that page.
func (s *Sender) header(r *Request) http.Header {
	at := r.At
	if at.IsZero() {
		at = s.now()
	}
	values := make([]string, 0, 5)
	one := func(v string) []string {
		values = append(values, v)
		return values[len(values)-1 : len(values) : len(values)]
	}
	h := http.Header{
		"Content-Type":     contentType,
		"User-Agent":       s.userAgent,
		HeaderID:           one(r.ID),
		HeaderTimestamp:    one(strconv.FormatInt(at.Unix(), 10)),
		HeaderSubscription: one(r.SubscriptionID),
		// Present and empty, it is not sent, but tells the transport that the request may
		// be repeated on a fresh connection when a kept one turns out to be closed. That is
		// ordinary after an instance was frozen between two invocations.
		"Idempotency-Key": {},
	}
	signature := Sign(r.Keys, r.ID, at, r.Body)
	if s.identity != nil {
		signature = strings.TrimPrefix(signature+" "+s.identity.Sign(r.ID, at, r.Body), " ")
	}
	if signature != "" {
		h[HeaderSignature] = one(signature)
	}
	if len(r.RawSecret) > 0 {
		h[HeaderHubSignature] = one(signHub(r.RawSecret, r.Body))
	}
	r.Trace.AddTo(h)
	return h
}

// target is the checked URL of a raw one. It is shared and must not be changed.
func (s *Sender) target(raw string) (*url.URL, *Failure) {
	if u, ok := s.targets.Get(raw); ok {
		return u, nil
	}
	u, reason := s.guard.check(raw)
	if reason != "" {
		return nil, &Failure{Blocked, "the target URL " + reason}
	}
	s.targets.Put(raw, u)
	return u, nil
}
