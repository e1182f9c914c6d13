package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stageError records the stage in which an error occurred, for [diagnose]. For example, an EOF during a handshake is
// a different failure from an EOF during a response.
type stageError struct {
	stage string
	err   error
}

const (
	stageDial = "dial"
	stageTLS  = "tls"
)

func (e *stageError) Error() string { return e.stage } // never shown
func (e *stageError) Unwrap() error { return e.err }

// diagnose classifies an error of an exchange and describes it in our own words. Parent is the caller's context,
// which does not have the timeout of the exchange.
func diagnose(parent context.Context, x *exchange, err error) *Failure {
	switch {
	case parent.Err() != nil:
		return &Failure{Aborted, "the sender stopped"}
	case errors.Is(err, errNoConn), !x.reached.Load() && x.ctx.Err() != nil:
		return &Failure{Internal, "no connection was free in time"}
	case errors.Is(err, errExcess):
		return &Failure{ConnectionRefused, errExcess.Error()}
	}
	if errno := ours(err); errno != 0 {
		return &Failure{Internal, errno.Error()}
	}
	if b, ok := errors.AsType[blocked](err); ok {
		return &Failure{Blocked, b.Error()}
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		switch {
		case d.IsNotFound:
			return &Failure{DNSError, "the name has no address"}
		case d.IsTimeout:
			return &Failure{DNSError, "the name server did not answer in time"}
		}
		return &Failure{DNSError, "the name server failed"}
	}
	stage := "exchange"
	if s, ok := errors.AsType[*stageError](err); ok {
		stage = s.stage
	}
	if t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && t.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		switch stage {
		case stageDial:
			return &Failure{Timeout, "no connection in time"}
		case stageTLS:
			return &Failure{Timeout, "no TLS handshake in time"}
		}
		return &Failure{Timeout, "the exchange was not complete in time"}
	}
	if stage == stageTLS || isTLS(err) {
		return &Failure{TLSError, tlsDetail(err)}
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return &Failure{ConnectionRefused, errno.Error()}
	}
	if stage == stageDial {
		return &Failure{ConnectionRefused, "no connection"}
	}
	return &Failure{ConnectionRefused, "the connection ended without a valid answer"}
}

// exhausted lists the errors of a process or machine that has run out of a resource.
var exhausted = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// ours returns the error number of a failure that is on our side, or 0.
func ours(err error) syscall.Errno {
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		// A DNSError keeps at most the text of a socket error. If the resolver could not open its own configuration,
		// it reports an unknown name. So we test whether the process can still open a file.
		for _, errno := range exhausted {
			if strings.HasSuffix(d.Err, errno.Error()) {
				return errno
			}
		}
		var f *os.File
		if f, err = os.Open(os.DevNull); err == nil {
			_ = f.Close()
		}
	}
	for _, errno := range exhausted {
		if errors.Is(err, errno) {
			return errno
		}
	}
	// EADDRNOTAVAIL means that no local port is left. But a machine without IPv6 returns the same error for every
	// IPv6 address, and then the target is unreachable, so we look at IPv4 only.
	if o, ok := errors.AsType[*net.OpError](err); ok && errors.Is(err, syscall.EADDRNOTAVAIL) {
		if a, ok := o.Addr.(*net.TCPAddr); ok && a.IP.To4() != nil {
			return syscall.EADDRNOTAVAIL
		}
	}
	return 0
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}

// tlsDetail describes a TLS error in our own words, because the errors of crypto/x509 quote names from the endpoint's
// certificate.
func tlsDetail(err error) string {
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the certificate is for another name"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the certificate is not from a known authority"
	}
	if c, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if c.Reason == x509.Expired {
			return "the certificate has expired or is not valid yet"
		}
		return "the certificate is not valid"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the certificate is not valid"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the endpoint does not speak TLS"
	}
	return "the handshake failed"
}

// Category classifies a failure. Subscribers may not learn more about it (SRF-05), so it is one of our
// constants and never contains anything that the endpoint sent.
type Category string

// Categories of failures.
const (
	// ConnectionRefused: no connection could be opened, or it broke before a valid response arrived.
	ConnectionRefused Category = "connection_refused"
	// Timeout: the exchange did not complete in time.
	Timeout Category = "timeout"
	// TLSError: the handshake failed, or the certificate is not valid for the name.
	TLSError Category = "tls_error"
	// DNSError: the name has no address.
	DNSError Category = "dns_error"
	// Blocked: the target is an address that we never connect to.
	Blocked Category = "blocked"
	// HTTP4xx: the status is below 500 and not 2xx. This includes redirects, which we do not follow: the subscriber
	// must correct the target.
	HTTP4xx Category = "http_4xx"
	// HTTP5xx: the status is 500 or above.
	HTTP5xx Category = "http_5xx"
	// ChallengeFailed: the endpoint did not echo its verification challenge.
	ChallengeFailed Category = "challenge_failed"
	// Aborted: the context given to [Sender.Send] ended. It does not count against the endpoint and is never shown.
	Aborted Category = "aborted"
	// Internal: the attempt failed because we lacked a resource (descriptors, ports, memory, a free connection). It
	// does not count against the endpoint and is never shown.
	Internal Category = "internal"
)

// Published maps a category to one of the six in SEP-3415.
func (c Category) Published() Category {
	if c == DNSError || c == Blocked {
		return ConnectionRefused
	}
	return c
}

// Outcome is the result of one attempt.
type Outcome struct {
	// Status is the HTTP status, or 0 if there was no valid response.
	Status int
	// Category is "" after a success.
	Category Category
	// RetryAfter is the delay that the endpoint requested with a failure, from 0 (none) to [MaxRetryAfter].
	RetryAfter time.Duration
	// Response is the beginning of the body of a failed response, at most [MaxKept] bytes, if the request asked to keep it. It is for
	// operators only (SRF-05).
	Response string
	// Took is the duration of the exchange.
	Took time.Duration
	// Err is a [*Failure], or nil after a success. It is meant for the log.
	Err error
}

// MaxKept is the number of bytes of a failed response that [Outcome.Response] has.
const MaxKept = 1 << 10

// OK reports whether the endpoint accepted the webhook: any 2xx status.
func (o Outcome) OK() bool { return o.Category == "" }

// Internal reports whether the outcome says nothing about the endpoint, because the attempt failed on our side or was canceled.
func (o Outcome) Internal() bool { return o.Category == Aborted || o.Category == Internal }

// Failure describes in our own words why an attempt failed. It does not wrap the underlying error, because the errors
// of net/http and crypto/tls quote what the endpoint sent.
type Failure struct {
	Category Category
	Detail   string
}

func (f *Failure) Error() string { return string(f.Category) + ": " + f.Detail }

// ofStatus returns the category of a complete response.
func ofStatus(status int) Category {
	switch {
	case status >= 200 && status < 300:
		return ""
	case status < 500:
		return HTTP4xx
	}
	return HTTP5xx
}

// parseRetryAfter parses a Retry-After header, in seconds or as an HTTP date (RFC 9110 section 10.2.3), and limits it
// to 0 … [MaxRetryAfter]. It returns 0 for a malformed value.
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
