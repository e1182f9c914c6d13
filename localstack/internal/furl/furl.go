// Package furl implements Function URLs: an HTTP server in front of a function, with payload format 2.0, buffered or
// streamed. It does not authenticate callers.
package furl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
)

// Mode is how a Function URL returns a response.
type Mode string

// Invoke modes.
const (
	Buffered Mode = "BUFFERED"
	Stream   Mode = "RESPONSE_STREAM"
)

// Invoker invokes the function.
type Invoker interface {
	Name() string
	Invoke(ctx context.Context, inv lambda.Invocation) (*lambda.Response, error)
}

// Handler serves the Function URL of a function. If the client disconnects, the function continues, as on Lambda.
// With Remap, headers that AWS reserves are returned as x-amzn-Remapped-NAME. A function error becomes a 502 and a
// throttled request a 429, with the bodies that Lambda uses.
type Handler struct {
	Function Invoker
	Mode     Mode
	// Remap renames the same headers that Function URLs rename.
	Remap bool
	// Log logs failed requests. Nil discards the messages.
	Log *slog.Logger
}

// maxPrelude is the maximum size of the JSON that precedes a streamed response.
const maxPrelude = 64 << 10

// separator ends the prelude.
var separator = make([]byte, 8)

func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The event contains the body as a JSON string. 4 MiB in base64 stay below the limit of 6 MiB.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	if err != nil {
		message(w, http.StatusRequestEntityTooLarge, "Request Too Large")
		return
	}
	payload, err := json.Marshal(Request(r, body, time.Now()))
	if err != nil {
		message(w, http.StatusBadRequest, "Bad Request")
		return
	}
	// The invocation continues if the client disconnects.
	resp, err := h.Function.Invoke(context.WithoutCancel(r.Context()), lambda.Invocation{Payload: payload})
	switch {
	case errors.Is(err, lambda.ErrThrottled):
		message(w, http.StatusTooManyRequests, "Rate Exceeded.")
		return
	case err != nil:
		h.warn("invocation failed", "error", err)
		message(w, http.StatusBadGateway, "Internal Server Error")
		return
	}
	defer resp.Body.Close()
	w.Header().Set("X-Amzn-Requestid", resp.RequestID)
	if r.ProtoMajor == 1 && r.ProtoMinor == 1 {
		w.Header().Set("Connection", "keep-alive") // set by the server, even if the function returns another value
	}
	if resp.FunctionError == "" && h.Mode == Stream {
		h.stream(w, resp)
		return
	}
	h.buffered(w, resp)
}

func (h Handler) buffered(w http.ResponseWriter, resp *lambda.Response) {
	b, err := resp.ReadAll()
	if err != nil || resp.FunctionError != "" {
		h.warn("the function failed", "error", err, "response", string(b))
		message(w, http.StatusBadGateway, "Internal Server Error")
		return
	}
	out, body, err := decode(b)
	if err != nil {
		h.warn("the response cannot be read", "error", err)
		message(w, http.StatusBadGateway, "Internal Server Error")
		return
	}
	h.header(w, out.StatusCode, out.Headers, out.Cookies)
	_, _ = w.Write(body) // fails if the client has disconnected
}

// decode decodes a buffered response. If the JSON has no status, all of it is the body.
func decode(b []byte) (out events.LambdaFunctionURLResponse, body []byte, err error) {
	err = json.Unmarshal(b, &out)
	if err != nil || out.StatusCode == 0 {
		if !json.Valid(b) {
			return out, nil, errors.New("no JSON")
		}
		out = events.LambdaFunctionURLResponse{StatusCode: http.StatusOK, Headers: map[string]string{"Content-Type": "application/json"}}
		var text string
		if json.Unmarshal(b, &text) == nil {
			return out, []byte(text), nil
		}
		return out, b, nil
	}
	if out.IsBase64Encoded {
		body, err = base64.StdEncoding.DecodeString(out.Body)
		return out, body, err
	}
	if out.Headers["Content-Type"] == "" && out.Headers["content-type"] == "" {
		if out.Headers == nil {
			out.Headers = map[string]string{}
		}
		out.Headers["Content-Type"] = "application/json"
	}
	return out, []byte(out.Body), nil
}

// stream forwards each write of the function immediately.
func (h Handler) stream(w http.ResponseWriter, resp *lambda.Response) {
	var rest []byte
	if resp.ContentType == lambda.HTTPIntegration {
		prelude, begun, err := readPrelude(resp.Body)
		if err != nil {
			h.warn("the prelude cannot be read", "error", err)
			message(w, http.StatusBadGateway, "Internal Server Error")
			return
		}
		h.header(w, prelude.StatusCode, prelude.Headers, prelude.Cookies)
		rest = begun
	} else {
		h.header(w, http.StatusOK, map[string]string{"Content-Type": resp.ContentType}, nil)
	}
	control := http.NewResponseController(w)
	// Send the status before the body begins.
	if len(rest) > 0 {
		_, _ = w.Write(rest) // a disconnected client is detected at the next write
	}
	_ = control.Flush()
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return // the client disconnected; after the deferred Close, the function can continue to write
			}
			_ = control.Flush()
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			h.warn("the stream broke off", "error", err)
			panic(http.ErrAbortHandler) // so that the client notices the error
		}
	}
}

// readPrelude reads up to the separator. It also returns the bytes that it read beyond it.
func readPrelude(r io.Reader) (prelude events.LambdaFunctionURLResponse, rest []byte, err error) {
	buf := make([]byte, 0, 4<<10)
	for {
		if len(buf) > maxPrelude {
			return prelude, nil, errors.New("it is too large")
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if head, rest, found := bytes.Cut(buf, separator); found {
			if err := json.Unmarshal(head, &prelude); err != nil {
				return prelude, nil, err
			}
			prelude.StatusCode = cmp.Or(prelude.StatusCode, http.StatusOK)
			return prelude, rest, nil
		}
		if err != nil {
			return prelude, nil, err
		}
	}
}

// remapped lists the headers that Function URLs, like API Gateway, are known to rename.
var remapped = []string{"Www-Authenticate", "Authorization", "Date", "Server"}

func (h Handler) header(w http.ResponseWriter, status int, headers map[string]string, cookies []string) {
	for k, v := range headers {
		if h.Remap && slices.Contains(remapped, http.CanonicalHeaderKey(k)) {
			k = "X-Amzn-Remapped-" + k
		}
		switch http.CanonicalHeaderKey(k) {
		case "Connection", "Transfer-Encoding", "Content-Length", "Keep-Alive":
			// these headers belong to the connection
		default:
			w.Header().Set(k, v)
		}
	}
	for _, c := range cookies {
		w.Header().Add("Set-Cookie", c)
	}
	if status < 200 || status > 999 {
		status = http.StatusBadGateway
	}
	w.WriteHeader(status)
}

func message(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"Message": text}) // fails if the client has disconnected
}

func (h Handler) warn(text string, args ...any) {
	if h.Log != nil {
		h.Log.Warn(text, append([]any{"function", h.Function.Name()}, args...)...)
	}
}

// Request converts an HTTP request to an event with payload format 2.0.
func Request(r *http.Request, body []byte, now time.Time) events.LambdaFunctionURLRequest {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	source, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		source = r.RemoteAddr
	}
	event := events.LambdaFunctionURLRequest{
		Version:        "2.0",
		RawPath:        r.URL.EscapedPath(),
		RawQueryString: r.URL.RawQuery,
		// Function URLs always use https.
		Headers:         map[string]string{"host": r.Host, "x-forwarded-for": source, "x-forwarded-proto": "https"},
		IsBase64Encoded: !isText(r.Header, body),
		RequestContext: events.LambdaFunctionURLRequestContext{
			AccountID: "anonymous", RequestID: uuid.NewString(), APIID: "local",
			DomainName: r.Host, DomainPrefix: strings.Split(host, ".")[0],
			Time: now.UTC().Format("02/Jan/2006:15:04:05 -0700"), TimeEpoch: now.UnixMilli(),
			HTTP: events.LambdaFunctionURLRequestContextHTTPDescription{
				Method: r.Method, Path: r.URL.Path, Protocol: r.Proto, SourceIP: source, UserAgent: r.UserAgent(),
			},
		},
	}
	for k, v := range r.Header {
		if k == "Cookie" {
			for _, c := range v {
				for part := range strings.SplitSeq(c, ";") {
					event.Cookies = append(event.Cookies, strings.TrimSpace(part))
				}
			}
			continue
		}
		event.Headers[strings.ToLower(k)] = strings.Join(v, ",")
	}
	if q := r.URL.Query(); len(q) > 0 {
		event.QueryStringParameters = make(map[string]string, len(q))
		for k, v := range q {
			event.QueryStringParameters[k] = strings.Join(v, ",")
		}
	}
	if event.IsBase64Encoded {
		event.Body = base64.StdEncoding.EncodeToString(body)
	} else {
		event.Body = string(body)
	}
	return event
}

// isText reports whether the event contains the body as text. Lambda decides by the content type. Text that is not
// UTF-8 cannot be in JSON.
func isText(h http.Header, body []byte) bool {
	if len(body) == 0 {
		return true
	}
	if h.Get("Content-Encoding") != "" || !utf8.Valid(body) {
		return false
	}
	typ, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return false
	}
	return strings.HasPrefix(typ, "text/") || strings.HasSuffix(typ, "+json") || strings.HasSuffix(typ, "+xml") ||
		typ == "application/json" || typ == "application/xml" || typ == "application/javascript"
}
