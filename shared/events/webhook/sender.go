// Package webhook signs webhooks, sends them to endpoints, and seals the secrets with which it signs. All requests to addresses that a
// subscriber chose go through this package and its [Guard].
//
//	secret at rest ──[Opener]──▶ keys ──[Sign]──▶ headers ┐
//	                                                      ├─▶ [Sender] ─▶ [Guard] ─▶ endpoint
//	event, already serialized ───────────────────────────▶┘       └────▶ [Outcome]
//
// It also contains the receiver's side, [Verify] and [Challenge]. It does not use subscriptions or the store, because package delivery
// decides when to send, and how a failure affects a subscription. Of an endpoint's response, only the status, the requested delay, a
// [Category] and, for operators, the beginning of a failed response leave this package.
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
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
)

// Names of headers, spelled as they are sent (Standard Webhooks, and SEP-3415 for the subscription id).
const (
	HeaderID           = "webhook-id"
	HeaderTimestamp    = "webhook-timestamp"
	HeaderSignature    = "webhook-signature"
	HeaderSubscription = "X-MCP-Subscription-Id"
	// HeaderHubSignature is the header of an additional signature for subscribers with a raw secret (SEP-1803). Like the header of
	// GitHub's webhooks, it contains sha256=HEX.
	HeaderHubSignature = "X-Hub-Signature-256"
)

// Limits for a webhook request and its response.
const (
	// MaxBody is the maximum size of a sent body, in bytes.
	MaxBody         = 256 << 10
	maxURL          = 2048     // bytes of a target URL
	maxAnswer       = 16 << 10 // bytes of a response body that Send reads
	maxAnswerHeader = 32 << 10 // bytes of response headers, including 1xx responses
	defaultTimeout  = 20 * time.Second
	// MaxRetryAfter is the longest delay that an endpoint can request.
	MaxRetryAfter = 24 * time.Hour
)

// Options configure a [Sender]. Zero values are the defaults.
type Options struct {
	Guard *Guard
	// UserAgent is the User-Agent header, as NAME/VERSION. The default is mcp-events/dev.
	UserAgent string
	// RootCAs replaces the system's certificate authorities.
	RootCAs *x509.CertPool
	// Identity, if not nil, adds an ed25519 signature (v1a) to each webhook.
	Identity *Identity
	// ConnsPerHost limits the connections to one host and port (default 128). Further requests wait for a free connection within their
	// timeout.
	ConnsPerHost int
	// MaxConns limits the open connections, busy or idle, to all hosts together. The default is the result of [descriptors.MaxOutgoing].
	// At the limit, idle connections are closed. If that is not enough, a request waits within its own timeout and then fails as
	// [Internal]. ConnsPerHost and the number of idle connections are at most half of MaxConns.
	MaxConns int
	Now      func() time.Time
}

// Sender posts webhooks. It is safe for concurrent use and reuses connections.
type Sender struct {
	guard     *Guard
	transport *http.Transport
	identity  *Identity
	userAgent []string
	now       func() time.Time
	targets   *bounded.Map[string, *url.URL]
	conns     *connLimit
}

// Request is one attempt to deliver a webhook.
type Request struct {
	// URL is the endpoint's URL. The sender's [Guard] checks the URL, and the address of each new connection to it.
	URL string
	// ID is the webhook-id, which is the same in all attempts. It is the event's id. But for MCP Events clients with the profile "final"
	// (the Final version of SEP-3415), it is a hash of subscription and event.
	ID string
	// SubscriptionID is the value of X-MCP-Subscription-Id.
	SubscriptionID string
	// Body is JSON of at most [MaxBody] bytes and is sent unchanged. The caller must not modify it until a second
	// after Send has returned, because a canceled write may still be reading it.
	Body []byte
	// Keys are the keys of the endpoint's secrets. Send adds a v1 signature for each key. Without keys, the webhook is unsigned.
	Keys [][]byte
	// RawSecret, if not empty, signs the body for the additional header X-Hub-Signature-256.
	RawSecret []byte
	// Timeout limits the whole request, from the DNS lookup to the end of the response. 0 means [defaultTimeout].
	Timeout time.Duration
	// KeepResponse makes [Sender.Send] return the beginning of a failed response in [Outcome.Response].
	KeepResponse bool
	// Trace is sent as trace headers, if it is set.
	Trace trace.Context
	// At is the time of this attempt, for webhook-timestamp. Zero means now.
	At time.Time
}

const maxIdle = 512 // idle connections to all hosts

// NewSender returns a new sender. Close closes its idle connections.
func NewSender(o Options) *Sender {
	o.MaxConns = cmp.Or(o.MaxConns, descriptors.MaxOutgoing())
	o.ConnsPerHost = min(cmp.Or(o.ConnsPerHost, 128), max(1, o.MaxConns/2))
	o.Guard = cmp.Or(o.Guard, &Guard{})
	o.UserAgent = cmp.Or(o.UserAgent, "mcp-events/dev")
	o.Now = periodic.Clock(o.Now)
	s := &Sender{
		guard: o.Guard, identity: o.Identity, userAgent: []string{o.UserAgent}, now: o.Now,
		targets: bounded.NewMap[string, *url.URL](8192),
	}
	s.conns = newConnLimit(o.MaxConns, s.Close)
	s.transport = &http.Transport{
		DialContext:    s.dial, // Proxy is not set, so proxies in the environment are ignored
		DialTLSContext: s.dialTLS,
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			RootCAs:            o.RootCAs,
			NextProtos:         []string{"h2", "http/1.1"},
			ClientSessionCache: tls.NewLRUClientSessionCache(1024),
		},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // so that limits apply to the received bytes, without unpacking
		MaxConnsPerHost:        o.ConnsPerHost,
		MaxIdleConnsPerHost:    o.ConnsPerHost,
		MaxIdleConns:           min(maxIdle, max(1, o.MaxConns/2)),
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: maxAnswerHeader,
		WriteBufferSize:        8 << 10, // so that headers and a typical body are one write
		HTTP2: &http.HTTP2Config{
			// A ping finds a dead connection within seconds. Otherwise several requests on it would have to time out first.
			SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second, WriteByteTimeout: 10 * time.Second,
			MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20,
		},
	}
	return s
}

// Close closes idle connections. It does not affect running calls of Send.
func (s *Sender) Close() { s.transport.CloseIdleConnections() }

func (s *Sender) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := s.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config := s.transport.TLSClientConfig.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address) // the certificate must be valid for the name
	tc := tls.Client(c, config)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, handshakeError{err}
	}
	return tc, nil
}

var contentType = []string{"application/json"}

// bodyOf returns a body of a type that net/http recognizes as being in memory. net/http then sends header and body in one write.
func bodyOf(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// Check returns an error if webhooks can never be sent to a target. It does not send a request; see [Guard.checkURL].
func (s *Sender) Check(target string) error {
	_, err := s.guard.checkURL(target)
	return err
}

// Send makes one attempt to deliver a webhook. It does not follow redirects or use a proxy from the environment. It reads at most 16 KiB
// of the response body, and returns within the timeout regardless of the endpoint's behavior.
//
// Send repeats the request once, on another connection, in two cases: the endpoint closed an idle connection while the request was being
// sent, or the sender closed a connection as idle while the response was arriving. The endpoint may then see the same webhook-id twice.
func (s *Sender) Send(ctx context.Context, r Request) Outcome {
	started := time.Now()
	o := Outcome{}
	var keep []byte
	if r.KeepResponse {
		keep = make([]byte, 0, MaxKept)
	}
	resp, failure := s.post(ctx, &r, keep)
	if failure != nil {
		o.Status, o.Category, o.Err = resp.status, failure.Category, failure
	} else if o.Status, o.Category = resp.status, ofStatus(resp.status); o.Category != "" {
		o.Err = &Failure{o.Category, "status " + strconv.Itoa(o.Status)}
		o.RetryAfter = parseRetryAfter(resp.retryAfter, s.now())
		o.Response = strings.ToValidUTF8(string(resp.body[:min(len(resp.body), MaxKept)]), "\uFFFD")
	}
	o.Took = time.Since(started)
	return o
}

type answer struct {
	status     int
	retryAfter string
	body       []byte
}

// post sends one request. If keep is not nil, it appends the response body, up to [maxAnswer], to keep. Otherwise it discards the body.
func (s *Sender) post(parent context.Context, r *Request, keep []byte) (answer, *Failure) {
	target, failure := s.parseTarget(r.URL)
	if failure != nil {
		return answer{}, failure
	}
	if len(r.Body) > MaxBody {
		// Treat a body that is too large as if the endpoint had refused it with the status 413, because a retry would fail, too.
		return answer{status: http.StatusRequestEntityTooLarge}, &Failure{HTTP4xx, "the body is larger than 256 KiB and was not sent"}
	}
	req := http.Request{
		Method: http.MethodPost, URL: target, Host: target.Host, Header: s.newHeader(r),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: int64(len(r.Body)), Body: bodyOf(r.Body),
		GetBody: onceAgain(r.Body),
	}
	return s.exchange(parent, &req, r.Timeout, keep)
}

// onceAgain lets the transport repeat a request on one other connection only. Without this limit, the transport tries all its idle
// connections, so an endpoint that reads a request and closes the connection would get it on each of them.
func onceAgain(body []byte) func() (io.ReadCloser, error) {
	again := false
	return func() (io.ReadCloser, error) {
		if again {
			return nil, io.EOF // ends the attempt as if this connection had failed
		}
		again = true
		return bodyOf(body), nil
	}
}

// exchange sends a request and reads the response, within the timeout. If keep is not nil, exchange appends the response body to keep.
// Otherwise it discards the body.
func (s *Sender) exchange(parent context.Context, req *http.Request, timeout time.Duration, keep []byte) (answer, *Failure) {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	ctx, x := trackExchange(ctx, timeout)
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
		_ = resp.Body.Close() // after 101 the body is the raw connection, and reading it would not end with the context
		return a, nil
	}
	if ofStatus(a.status) != "" {
		a.retryAfter = resp.Header.Get("Retry-After")
	}
	// Read the body to its end, so that the transport can reuse the connection, unless the body is longer than the limit.
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
	return a, nil // the status counts even if the body broke off
}

// endedAsIdle reports whether net/http closed a connection as idle while a response was arriving on it. For a response without a body,
// net/http marks the connection as idle before it hands over the response. net/http does not export these errors, so endedAsIdle compares
// their text.
func endedAsIdle(err error) bool {
	return err != nil && (strings.HasSuffix(err.Error(), "http: CloseIdleConnections called") ||
		strings.HasSuffix(err.Error(), "http: putIdleConn: too many idle connections"))
}

// newHeader returns the headers of a webhook request. They are exactly the headers in docs/reference/webhooks.md, with the same spelling.
func (s *Sender) newHeader(r *Request) http.Header {
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
		// The header Idempotency-Key without a value is not sent. Its presence tells net/http's transport that it may repeat the request on a new
		// connection if the idle connection turns out to be closed, which is common after a Lambda instance was frozen between two invocations.
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

// parseTarget checks and parses the URL of a target. It does this only once per URL. The cached result must not be changed.
func (s *Sender) parseTarget(raw string) (*url.URL, *Failure) {
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

// handshakeError is an error of a TLS handshake.
type handshakeError struct{ error }

func (e handshakeError) Unwrap() error { return e.error }

// diagnose turns an error of an exchange into a [Failure] in our own words. If parent, the caller's context, has ended, the caller
// canceled the exchange. The exchange's own context cannot show that, because it also ends at the timeout.
func diagnose(parent context.Context, x *exchange, err error) *Failure {
	switch {
	case parent.Err() != nil:
		return &Failure{Aborted, "the sender stopped"}
	case errors.Is(err, errNoConn), !x.reached.Load() && x.ctx.Err() != nil:
		return &Failure{Internal, "no connection was free in time"}
	case errors.Is(err, errExcess):
		return &Failure{ConnectionRefused, errExcess.Error()}
	}
	if errno := errnoOfMachine(err); errno != 0 {
		return &Failure{Internal, errno.Error()}
	}
	if b, ok := errors.AsType[blocked](err); ok {
		return &Failure{Blocked, b.Error()}
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return &Failure{DNSError, "the name was not resolved"}
	}
	if t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && t.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return &Failure{Timeout, "the exchange was not complete in time"}
	}
	if isTLS(err) {
		return &Failure{TLSError, "the handshake failed, or the certificate is not valid"}
	}
	return &Failure{ConnectionRefused, "the connection failed, or ended without a valid answer"}
}

// exhausted lists the errors which mean that the process or the machine has run out of descriptors or memory.
var exhausted = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// errnoOfMachine returns the errno of a failure that is the fault of this machine, or 0 if the endpoint may have caused it.
func errnoOfMachine(err error) syscall.Errno {
	text := ""
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		// The lookup may have failed because this machine has no descriptors or memory left. A DNSError keeps only the text of a socket
		// error, so compare this text with the texts of such errors. If the resolver could not open its own configuration, the DNSError
		// only says that the name is unknown. So also test whether the process can still open a file.
		text = d.Err
		var f *os.File
		if f, err = os.Open(os.DevNull); err == nil {
			_ = f.Close()
		}
	}
	for _, errno := range exhausted {
		if errors.Is(err, errno) || strings.HasSuffix(text, errno.Error()) {
			return errno
		}
	}
	// EADDRNOTAVAIL means that no local port is left, but only for an IPv4 address. For IPv6 addresses, a machine without IPv6 always
	// returns this error, and it means only that the target is unreachable.
	if o, ok := errors.AsType[*net.OpError](err); ok && errors.Is(err, syscall.EADDRNOTAVAIL) {
		if a, ok := o.Addr.(*net.TCPAddr); ok && a.IP.To4() != nil {
			return syscall.EADDRNOTAVAIL
		}
	}
	return 0
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[handshakeError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}

// Category classifies a failure. Subscribers may learn only the category of a failure (SRF-05), so it never contains data that the
// endpoint sent.
type Category string

// Categories of failures.
const (
	// ConnectionRefused: no connection could be opened, or it broke before a valid response arrived.
	ConnectionRefused Category = "connection_refused"
	// Timeout: the exchange did not complete in time.
	Timeout Category = "timeout"
	// TLSError: the handshake failed, or the certificate is not valid for the name.
	TLSError Category = "tls_error"
	// DNSError: the name has no address, or the name server failed.
	DNSError Category = "dns_error"
	// Blocked: the target is a URL or an address to which we never send webhooks.
	Blocked Category = "blocked"
	// HTTP4xx: the status is below 500 and not 2xx. This includes redirects, which we do not follow.
	HTTP4xx Category = "http_4xx"
	// HTTP5xx: the status is 500 or above.
	HTTP5xx Category = "http_5xx"
	// ChallengeFailed: the endpoint did not echo its verification challenge.
	ChallengeFailed Category = "challenge_failed"
	// Aborted: the context given to [Sender.Send] ended. The attempt does not count against the endpoint, and subscribers never see this
	// category.
	Aborted Category = "aborted"
	// Internal: this server lacked a resource, for example memory or a free connection. The attempt does not count against the endpoint,
	// and subscribers never see this category.
	Internal Category = "internal"
)

// ToPublished maps a category of an endpoint's failure to one of the six categories in SEP-3415.
func (c Category) ToPublished() Category {
	if c == DNSError || c == Blocked {
		return ConnectionRefused
	}
	return c
}

// Outcome is the result of one attempt to deliver a webhook.
type Outcome struct {
	// Status is the HTTP status, or 0 if there was no valid response.
	Status int
	// Category is "" after a success: the endpoint answered with a 2xx status.
	Category Category
	// RetryAfter is the delay that the endpoint requested with its failure, at most [MaxRetryAfter]. It is 0 if the endpoint requested no
	// delay.
	RetryAfter time.Duration
	// Response has the first [MaxKept] bytes of a failed response, if the request asked for them. Only operators may see it (SRF-05).
	Response string
	Took     time.Duration
	// Err is a [*Failure], or nil after a success. It is meant for the log.
	Err error
}

// MaxKept is the maximum length of [Outcome.Response] in bytes.
const MaxKept = 1 << 10

// Internal reports whether the outcome says nothing about the endpoint, because the attempt failed on our side or was canceled.
func (o Outcome) Internal() bool { return o.Category == Aborted || o.Category == Internal }

// Failure describes why an attempt failed. It does not wrap errors of net/http or crypto/tls, because their texts quote data from the
// endpoint.
type Failure struct {
	Category Category
	Detail   string
}

func (f *Failure) Error() string { return string(f.Category) + ": " + f.Detail }

// ofStatus returns the category for an HTTP status, or "" for a 2xx status.
func ofStatus(status int) Category {
	switch {
	case status >= 200 && status < 300:
		return ""
	case status < 500:
		return HTTP4xx
	}
	return HTTP5xx
}

// parseRetryAfter returns the delay in a Retry-After header (RFC 9110 section 10.2.3), limited to [MaxRetryAfter]. It returns 0 for a
// missing or malformed header.
func parseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" || len(value) > 64 {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter)
}
