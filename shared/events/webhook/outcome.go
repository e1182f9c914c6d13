package webhook

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Category is what a subscriber may learn of a failure (SRF-05). It is chosen by
// us and never holds a byte of what the endpoint said.
type Category string

// The categories.
const (
	// ConnectionRefused: no connection came about, or it broke before a valid
	// answer had come.
	ConnectionRefused Category = "connection_refused"
	// Timeout: the exchange was not complete in time.
	Timeout Category = "timeout"
	// TLSError: the handshake failed, or the certificate is not valid for the name.
	TLSError Category = "tls_error"
	// DNSError: the name has no address.
	DNSError Category = "dns_error"
	// Blocked: the target is one that is never connected to.
	Blocked Category = "blocked"
	// HTTP4xx: an answer below 500 that is not 2xx. Redirects are among them: they
	// are not followed, and it is the target that is wrong.
	HTTP4xx Category = "http_4xx"
	// HTTP5xx: an answer of 500 or above.
	HTTP5xx Category = "http_5xx"
	// ChallengeFailed: the endpoint did not echo its verification challenge.
	ChallengeFailed Category = "challenge_failed"
	// Aborted: we stopped, not the endpoint. It comes only when the context given to
	// [Sender.Send] has ended, counts against no endpoint and is never shown.
	Aborted Category = "aborted"
	// Internal: the attempt failed for want of something of ours (descriptors, ports,
	// memory, a free connection). It counts against no one and is never shown.
	Internal Category = "internal"
)

// Published maps a category to the six that SEP-3415 publishes.
func (c Category) Published() Category {
	if c == DNSError || c == Blocked {
		return ConnectionRefused
	}
	return c
}

// Outcome is the result of one attempt.
type Outcome struct {
	// Status is the HTTP status; 0 when there was no valid answer.
	Status int
	// Category is "" after a success.
	Category Category
	// RetryAfter is what the endpoint asked for with a failure: 0 to
	// [MaxRetryAfter], 0 being nothing.
	RetryAfter time.Duration
	// Took is the time from the start to the end of the exchange.
	Took time.Duration
	// Err is a [*Failure], or nil after a success; for the log.
	Err error
}

// OK reports whether the endpoint accepted the webhook: any 2xx status.
func (o Outcome) OK() bool { return o.Category == "" }

// Failure says in our own words why an attempt failed. It wraps nothing: errors
// of the libraries below quote what the endpoint sent.
type Failure struct {
	Category Category
	Detail   string
}

func (f *Failure) Error() string { return string(f.Category) + ": " + f.Detail }

// ofStatus is the category of a complete answer.
func ofStatus(status int) Category {
	switch {
	case status >= 200 && status < 300:
		return ""
	case status < 500:
		return HTTP4xx
	}
	return HTTP5xx
}

// ParseRetryAfter reads a Retry-After header, in seconds or as an HTTP date (RFC
// 9110 section 10.2.3), bounded to 0 … [MaxRetryAfter]. What it cannot read is 0.
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
