// Package httpcall sends single HTTP requests to a server of this project or to another MCP server. It builds the URL of an
// endpoint, sends JSON as a caller with a key, turns error responses of every form into errors with a kind, and decides whether
// and when to try again.
//
// It knows nothing about events and keeps no state. To receive events, use the public package client, which is built on it, as
// are the commands.
package httpcall

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// IsLocal reports whether a server runs on this machine, as far as its URL says: its host is localhost or a loopback address.
func IsLocal(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// Server holds the address of a server and the identity of the caller.
type Server struct {
	// URL is the server's URL, for example https://events.example.com, or the whole URL of the endpoint to use.
	URL string
	// Key is sent as Authorization: Bearer. An empty key sends no header.
	Key string
	// Agent names the program as NAME/VERSION in User-Agent and in the clientInfo of MCP.
	Agent string
	// HTTP sends the requests; nil is [http.DefaultClient]. Its Timeout does not bound streams.
	HTTP *http.Client
}

// Endpoint returns the URL of an endpoint, for example of /mcp. It appends the path unless the server's URL has one.
func (s Server) Endpoint(path string) (string, error) {
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", fault.New(fault.Invalid, "%.200q is not the URL of a server (allowed: http or https, such as http://127.0.0.1:8080)", Redact(s.URL))
	}
	if port, err := strconv.Atoi(cmp.Or(u.Port(), "443")); err != nil || port < 1 || port > 65535 || u.Hostname() == "" {
		return "", fault.New(fault.Invalid, "the server's URL %.200q has no host, or port %s (allowed: 1 to 65535)", Redact(s.URL), u.Port())
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = path
	}
	for _, other := range []string{"/mcp", "/events"} {
		if other != path && strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), other) {
			right := *u
			right.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), other) + path
			return "", fault.New(fault.Invalid, "the server's URL ends with %s, but this command needs the URL of %s: %s", other, path, right.Redacted())
		}
	}
	return u.String(), nil
}

// secretPath matches a key in a URL (RCH-05), which no log or error may show.
var secretPath = regexp.MustCompile(`/mcp/u/[^/?#]+`)

// Redact returns a URL for logs and errors. It hides a password and the key of a secret path.
func Redact(text string) string {
	if u, err := url.Parse(text); err == nil {
		text = u.Redacted()
	}
	return secretPath.ReplaceAllString(text, "/mcp/u/xxxxx")
}

// RedactError redacts the URL in an error of net/http.
func RedactError(err error) error {
	if named, ok := errors.AsType[*url.Error](err); ok {
		named.URL = Redact(named.URL)
	}
	return err
}

// NewRequest returns a request with the identity of the caller.
func (s Server) NewRequest(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "make the request")
	}
	maps.Copy(req.Header, header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", s.Agent)
	if s.Key != "" {
		req.Header.Set("Authorization", "Bearer "+s.Key)
	}
	return req, nil
}

// MaxAnswer limits an answer in bytes. A page of a list may hold large schemas.
const MaxAnswer = 8 << 20

// callTimeout bounds a request that is not a stream.
const callTimeout = time.Minute

func (s Server) httpClient() *http.Client { return cmp.Or(s.HTTP, http.DefaultClient) }

// StreamClient returns a client without a timeout, for responses that do not end.
func (s Server) StreamClient() *http.Client {
	unlimited := *s.httpClient()
	unlimited.Timeout = 0
	return &unlimited
}

// Do sends JSON and returns the response with its body, whatever its status. It fails with kind fault.Unavailable if the
// server cannot be reached.
func (s Server) Do(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Response, []byte, error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := s.NewRequest(limited, method, url, header, body)
	if err != nil {
		return nil, nil, err
	}
	resp, err := s.httpClient().Do(req)
	if err != nil {
		return nil, nil, Unreachable(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer))
	if err != nil {
		return nil, nil, Unreachable(ctx, err)
	}
	return resp, b, nil
}

// Unreachable returns the error of ctx if that has ended, and otherwise err with kind fault.Unavailable.
func Unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fault.Wrap(fault.Unavailable, RedactError(err), "call the server (is it running, and is its URL right?)")
}

// ReadRefusal returns the error of a response with an error status. It reads the error body of POST /events, a JSON-RPC
// error and problem details (RFC 9457). Of any other text it shows the first line.
func ReadRefusal(resp *http.Response, body []byte) error {
	f := &fault.Error{Kind: KindOfStatus(resp.StatusCode), Message: strings.ToLower(http.StatusText(resp.StatusCode))}
	var answer struct {
		Error  json.RawMessage `json:"error"`
		Detail string          `json:"detail"` // of problem details
	}
	var detail struct {
		Message string          `json:"message"`
		URI     string          `json:"uri"`    // of POST /events
		Faults  json.RawMessage `json:"faults"` // of POST /events
		Data    json.RawMessage `json:"data"`   // of JSON-RPC
	}
	known := json.Unmarshal(body, &answer) == nil
	switch {
	case known && answer.Detail != "":
		f.Message = answer.Detail
	case known && json.Unmarshal(answer.Error, &detail) == nil && detail.Message != "":
		f.Message = detail.Message
		if detail.URI != "" && !strings.Contains(f.Message, detail.URI) {
			f.Message += " (" + detail.URI + ")"
		}
		if detail.Faults != nil {
			f.Data = detail.Faults
		} else if detail.Data != nil {
			f.Data = detail.Data
		}
	case isForeign(resp, body):
		return UnexpectedAnswer(resp, f.Kind)
	case len(bytes.TrimSpace(body)) > 0:
		line, _, _ := bytes.Cut(bytes.TrimSpace(body), []byte("\n"))
		f.Message = fmt.Sprintf("%s: %.200s", f.Message, line)
	}
	f.Message = fmt.Sprintf("the server refused (%d): %s", resp.StatusCode, f.Message)
	return f
}

// isForeign reports whether a response in an unknown form is a page for people, or says that the URL is wrong.
func isForeign(resp *http.Response, body []byte) bool {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return media == "text/html" || bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) ||
		resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed
}

// UnexpectedAnswer returns the error of a response that no server of this project sends, for example a page of a proxy.
func UnexpectedAnswer(resp *http.Response, kind fault.Kind) error {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return &unexpectedError{resp.StatusCode, fault.New(kind, "%s answered %s with %s, which no server of mcp-events does; is --server right?",
		resp.Request.URL.Redacted(), resp.Status, cmp.Or(media, "no media type"))}
}

// unexpectedError is the error of [UnexpectedAnswer].
type unexpectedError struct {
	status int
	err    *fault.Error
}

func (e *unexpectedError) Error() string { return e.err.Error() }

func (e *unexpectedError) Unwrap() error { return e.err }

// FromProxy reports whether an error may come from a proxy that has no backend for a moment, for example because the
// server is being replaced. If every request gets the same answer, the URL is wrong.
func FromProxy(err error) bool {
	e, ok := errors.AsType[*unexpectedError](err)
	return ok && (e.status == http.StatusNotFound || e.status == http.StatusMethodNotAllowed)
}

var kindsOfStatuses = map[int]fault.Kind{
	http.StatusUnauthorized:          fault.Unauthenticated,
	http.StatusForbidden:             fault.Forbidden,
	http.StatusNotFound:              fault.NotFound,
	http.StatusRequestTimeout:        fault.Unavailable,
	http.StatusConflict:              fault.Conflict,
	http.StatusRequestEntityTooLarge: fault.TooLarge,
	http.StatusUnprocessableEntity:   fault.Unprocessable,
	http.StatusTooEarly:              fault.Unavailable,
	http.StatusTooManyRequests:       fault.Exhausted,
}

// KindOfStatus returns the kind of error for an HTTP status.
func KindOfStatus(status int) fault.Kind {
	if kind, ok := kindsOfStatuses[status]; ok {
		return kind
	}
	if status >= 500 {
		return fault.Unavailable
	}
	return fault.Invalid
}

// Retryable reports whether a request that failed with err may succeed when it is repeated.
func Retryable(err error) bool {
	return fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Exhausted)
}

// The pauses between repetitions double each time and have jitter.
const (
	FirstPause = 500 * time.Millisecond
	MaxPause   = 30 * time.Second
)

// Sleep waits before repetition n, counted from 0. It waits longer if the server asked for that.
func Sleep(ctx context.Context, n int, asked time.Duration) error {
	return periodic.Sleep(ctx, max(Backoff(n), min(asked, 10*MaxPause)))
}

// Backoff returns the pause before repetition n, counted from 0.
func Backoff(n int) time.Duration {
	d := min(FirstPause<<min(n, 10), MaxPause)
	return d/2 + rand.N(d/2)
}

// RetryAfter returns the wait that a response asks for, in whole seconds up to an hour, or 0.
func RetryAfter(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 || seconds > 3600 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
