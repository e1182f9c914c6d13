package client

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
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// Server is where a server is and who calls it.
type Server struct {
	// URL is the server's, as https://events.example.com; with a path, that of the one endpoint that is used.
	URL string
	// Key is sent as Authorization: Bearer; empty sends none.
	Key string
	// Agent names the program in User-Agent and, before a slash, in clientInfo.
	Agent string
	// HTTP sends the requests; nil is a client of ours. Its Timeout does not bound streams.
	HTTP *http.Client
}

// Endpoint is the URL of /events or /mcp: the server's with the path, unless it
// has a path of its own already.
func (s Server) Endpoint(path string) (string, error) {
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", fault.New(fault.Invalid, "%.200q is not the URL of a server (allowed: http or https, such as http://127.0.0.1:8080)", Shown(s.URL))
	}
	if port, err := strconv.Atoi(cmp.Or(u.Port(), "443")); err != nil || port < 1 || port > 65535 || u.Hostname() == "" {
		return "", fault.New(fault.Invalid, "the server's URL %.200q has no host, or port %s (allowed: 1 to 65535)", Shown(s.URL), u.Port())
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = path
	}
	for _, other := range []string{"/mcp", "/events"} {
		if other != path && strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), other) {
			right := *u
			right.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), other) + path
			return "", fault.New(fault.Invalid, "the server's URL ends with %s, but this needs that of %s: %s", other, path, right.Redacted())
		}
	}
	return u.String(), nil
}

// secretPath is a key in a URL (RCH-05), which is never shown.
var secretPath = regexp.MustCompile(`/mcp/u/[^/?#]+`)

// Shown is a URL as logs and errors may have it: without a password, and without the key of a secret path.
func Shown(text string) string {
	if u, err := url.Parse(text); err == nil {
		text = u.Redacted()
	}
	return secretPath.ReplaceAllString(text, "/mcp/u/xxxxx")
}

// Hide has an error of net/http name its URL as [Shown] does.
func Hide(err error) error {
	if named, ok := errors.AsType[*url.Error](err); ok {
		named.URL = Shown(named.URL)
	}
	return err
}

func (s Server) request(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Request, error) {
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

// maxAnswer bounds an answer in bytes; a page of a list may hold large schemas.
const maxAnswer = 8 << 20

// callTimeout bounds a request that is not a stream.
const callTimeout = time.Minute

// calls returns the client for requests, streams that for what has no end.
func (s Server) calls() *http.Client { return cmp.Or(s.HTTP, http.DefaultClient) }

func (s Server) streams() *http.Client {
	unlimited := *s.calls()
	unlimited.Timeout = 0
	return &unlimited
}

// Do sends JSON and returns the answer. A server that cannot be reached is of
// kind fault.Unavailable; every status is an answer.
func (s Server) Do(ctx context.Context, method, url string, header http.Header, body []byte) (*http.Response, []byte, error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := s.request(limited, method, url, header, body)
	if err != nil {
		return nil, nil, err
	}
	resp, err := s.calls().Do(req)
	if err != nil {
		return nil, nil, unreachable(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, nil, unreachable(ctx, err)
	}
	return resp, b, nil
}

func unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fault.Wrap(fault.Unavailable, Hide(err), "call the server (is it running, and is its URL right?)")
}

// Refusal turns an answer that is an error into one of ours. It reads the error body of POST /events, that of
// JSON-RPC and problem details (RFC 9457), and shows the first line of a short text.
func Refusal(resp *http.Response, body []byte) error {
	f := &fault.Error{Kind: kindOfStatus(resp.StatusCode), Message: strings.ToLower(http.StatusText(resp.StatusCode))}
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
	case stranger(resp, body):
		return Strange(resp, f.Kind)
	case len(bytes.TrimSpace(body)) > 0:
		line, _, _ := bytes.Cut(bytes.TrimSpace(body), []byte("\n"))
		f.Message = fmt.Sprintf("%s: %.200s", f.Message, line)
	}
	f.Message = fmt.Sprintf("the server refused (%d): %s", resp.StatusCode, f.Message)
	return f
}

// stranger reports whether an answer is a page for people, or says that there is nothing at the URL, in a form
// that is not ours.
func stranger(resp *http.Response, body []byte) bool {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return media == "text/html" || bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) ||
		resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed
}

// Strange is the error of an answer by something else than a server of ours.
func Strange(resp *http.Response, kind fault.Kind) error {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return &strangeError{resp.StatusCode, fault.New(kind, "%s answered %s with %s, which no server of mcp-events does; is --server right?",
		resp.Request.URL.Redacted(), resp.Status, cmp.Or(media, "no media type"))}
}

// strangeError is the error of [Strange].
type strangeError struct {
	status int
	err    *fault.Error
}

func (e *strangeError) Error() string { return e.err.Error() }

func (e *strangeError) Unwrap() error { return e.err }

// byProxy reports whether an error is an answer that a proxy gives while it has no backend, for example because the
// server is being replaced. The same answer for every request means that the URL is wrong.
func byProxy(err error) bool {
	e, ok := errors.AsType[*strangeError](err)
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

func kindOfStatus(status int) fault.Kind {
	if kind, ok := kindsOfStatuses[status]; ok {
		return kind
	}
	if status >= 500 {
		return fault.Unavailable
	}
	return fault.Invalid
}

// Again reports whether a request that came to this may be repeated.
func Again(err error) bool {
	return fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Exhausted)
}

// Pauses between repetitions: doubled each time, with jitter.
const (
	firstPause = 500 * time.Millisecond
	maxPause   = 30 * time.Second
)

// Pause waits before repetition n, from 0, or as long as the server asked for.
func Pause(ctx context.Context, n int, asked time.Duration) error {
	return periodic.Sleep(ctx, max(backoff(n), min(asked, 10*maxPause)))
}

// backoff is the pause before repetition n, from 0.
func backoff(n int) time.Duration {
	d := min(firstPause<<min(n, 10), maxPause)
	return d/2 + rand.N(d/2)
}

// retryAfter is how long a response asks to wait, in whole seconds up to an hour; 0 if it does not.
func retryAfter(resp *http.Response) time.Duration {
	if resp == nil {
		return 0
	}
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 || seconds > 3600 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
