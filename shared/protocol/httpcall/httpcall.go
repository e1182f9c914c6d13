// Package httpcall sends single HTTP requests to a server of this project or to another MCP server. It builds an endpoint's URL, adds the
// caller's key, converts every form of error response to an error with a kind, and says which requests to repeat and when.
//
// To receive events, use package client.
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

	"golang.org/x/net/http/httpguts"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// IsLocal reports whether the server runs on this machine, which it does if the URL's host is localhost or a loopback address.
func IsLocal(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// Server says which server to call, and with which key.
type Server struct {
	// URL is the server's URL, for example https://events.example.com, or the whole URL of the endpoint to use.
	URL string
	// Key is the caller's key or token, which is sent as Authorization: Bearer. If it is empty, the header is left out.
	Key string
	// Agent is the program as NAME/VERSION, for User-Agent and for the clientInfo of MCP.
	Agent string
	HTTP  *http.Client // nil means [http.DefaultClient]; for streams, its Timeout is ignored
}

// Endpoint returns the URL of an endpoint. It appends the path, for example /mcp, unless the server's URL already has a path. It fails if
// the server's URL ends with another endpoint's path, for example /events instead of /mcp.
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

// secretPath matches the part of a URL that contains the caller's key. Clients that cannot send headers have such URLs (requirement
// RCH-05). No log or error may show the key.
var secretPath = regexp.MustCompile(`/mcp/u/[^/?#]+`)

// Redact replaces a password, and a key in the path, with "xxxxx", so that the URL can be shown in logs and errors.
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

// NewRequest returns a request with the caller's key and the program's User-Agent. It refuses a key or an agent that cannot be in a
// header, because net/http would report this only as a failed request, which callers repeat.
func (s Server) NewRequest(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Request, error) {
	for what, text := range map[string]string{"key": s.Key, "agent": s.Agent} {
		if !httpguts.ValidHeaderFieldValue(text) {
			return nil, fault.New(fault.Invalid, "the %s has a character that no header can have, for example a line break at its end", what)
		}
	}
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

// MaxAnswer limits a response's body in bytes. It is large because a page of a list may contain large schemas.
const MaxAnswer = 8 << 20

// callTimeout limits the duration of a request whose response is not a stream.
const callTimeout = time.Minute

func (s Server) httpClient() *http.Client { return cmp.Or(s.HTTP, http.DefaultClient) }

// StreamClient returns a client without a timeout, for responses that do not end.
func (s Server) StreamClient() *http.Client {
	unlimited := *s.httpClient()
	unlimited.Timeout = 0
	return &unlimited
}

// Do sends a request with a JSON body, and returns the response and its body, whatever the status is. If the server cannot be
// reached, the error has the kind fault.Unavailable.
func (s Server) Do(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Response, []byte, error) {
	return s.DoRead(ctx, method, url, header, body, func(resp *http.Response) ([]byte, error) { return io.ReadAll(resp.Body) })
}

// endTime and maxEnd limit for how long, and for how many bytes, [Server.DoRead] continues to read until the end of a body. The
// connection can be reused only if the body was read to its end.
const (
	endTime = 20 * time.Millisecond
	maxEnd  = 16 << 10
)

// DoRead sends a request like [Server.Do], and returns the part of the response's body that the function read returns. The function need
// not read to the end of the body, because a server may keep a stream open after the last message that the caller needs.
func (s Server) DoRead(ctx context.Context, method, url string, header http.Header, body []byte, read func(*http.Response) ([]byte, error)) (*http.Response, []byte, error) {
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
	whole := resp.Body
	defer func() { _ = whole.Close() }()
	resp.Body = io.NopCloser(io.LimitReader(whole, MaxAnswer))
	b, err := read(resp)
	if err != nil {
		return nil, nil, Unreachable(ctx, err)
	}
	late := time.AfterFunc(endTime, cancel) // nearly all bodies end within this time, and then the connection can be reused
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, whole, maxEnd)
	return resp, b, nil
}

// Unreachable explains why a request got no response. If ctx has ended, it returns the error of ctx, and otherwise err with the
// kind fault.Unavailable.
func Unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fault.Wrap(fault.Unavailable, RedactError(err), "call the server (is it running, and is its URL right?)")
}

// ReadRefusal converts a response with an error status to an error. It understands error bodies of POST /events, JSON-RPC errors and
// problem details (RFC 9457). For any other body, the error shows the first line of the body.
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

// isForeign reports whether a response without a known error body probably does not come from our server, because it is an HTML
// page, or its status says that the path or method is unknown.
func isForeign(resp *http.Response, body []byte) bool {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return media == "text/html" || bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) ||
		resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed
}

// UnexpectedAnswer returns the error for a response that cannot come from a server of this project, for example for a proxy's error page.
func UnexpectedAnswer(resp *http.Response, kind fault.Kind) error {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return &unexpectedError{resp.StatusCode, fault.New(kind, "%s answered %s with %s, which no server of mcp-events does; is the server's URL right?",
		resp.Request.URL.Redacted(), resp.Status, cmp.Or(media, "no media type"))}
}

type unexpectedError struct {
	status int
	err    *fault.Error
}

func (e *unexpectedError) Error() string { return e.err.Error() }

func (e *unexpectedError) Unwrap() error { return e.err }

// FromProxy reports whether err may come from a proxy that cannot reach the server for a moment, for example while the server is being
// replaced. A wrong URL causes the same error, so repeat the request only if the URL has worked before.
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

// The pause before the first repetition is at most FirstPause, and doubles with each further repetition, up to MaxPause. Jitter
// shortens each pause by up to half.
const (
	FirstPause = 500 * time.Millisecond
	MaxPause   = 30 * time.Second
)

// Sleep waits before repetition n of a request, counted from 0. It waits for the pause that [Backoff] returns or, if that is longer, for
// the time that the server asked for. The parameter asked is this time, of which at most 10 times [MaxPause] count.
func Sleep(ctx context.Context, n int, asked time.Duration) error {
	return periodic.Sleep(ctx, max(Backoff(n), min(asked, 10*MaxPause)))
}

// Backoff returns the pause before repetition n of a request, counted from 0.
func Backoff(n int) time.Duration {
	d := min(FirstPause<<min(n, 10), MaxPause)
	return d/2 + rand.N(d/2)
}

// RetryAfter returns the time in the response's Retry-After header. It is 0 if the header is missing, is not a number of
// seconds, or exceeds an hour.
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
