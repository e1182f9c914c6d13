package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

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

// ParseRetryAfter parses a Retry-After header, in seconds or as an HTTP date (RFC 9110 section 10.2.3), and limits it
// to 0 … [MaxRetryAfter]. It returns 0 for a malformed value.
func ParseRetryAfter(value string, now time.Time) time.Duration {
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
