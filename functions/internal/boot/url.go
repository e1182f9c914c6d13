package boot

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
)

// Buffered converts an HTTP handler to the handler of a Function URL without streaming. If it panics, the response is
// a 500 and the process continues.
func Buffered(h http.Handler) func(context.Context, events.LambdaFunctionURLRequest) (events.LambdaFunctionURLResponse, error) {
	return func(ctx context.Context, event events.LambdaFunctionURLRequest) (events.LambdaFunctionURLResponse, error) {
		r, err := request(ctx, event)
		if err != nil {
			return events.LambdaFunctionURLResponse{StatusCode: http.StatusBadRequest}, nil
		}
		w := httpjson.NewRecorder()
		serve(w, r, h)
		return response(w), nil
	}
}

func serve(w *httpjson.Recorder, r *http.Request, h http.Handler) {
	defer func() {
		if p := recover(); p != nil {
			logPanic(r, p)
			*w = *httpjson.NewRecorder()
			w.WriteHeader(http.StatusInternalServerError)
		}
	}()
	h.ServeHTTP(w, r)
}

// request converts an event to the HTTP request.
func request(ctx context.Context, event events.LambdaFunctionURLRequest) (*http.Request, error) {
	body := []byte(event.Body)
	if event.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(event.Body); err != nil {
			return nil, err
		}
	}
	url := "https://" + event.RequestContext.DomainName + event.RawPath
	if event.RawQueryString != "" {
		url += "?" + event.RawQueryString
	}
	r, err := http.NewRequestWithContext(ctx, event.RequestContext.HTTP.Method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.RemoteAddr = event.RequestContext.HTTP.SourceIP
	for k, v := range event.Headers {
		r.Header.Set(k, v)
	}
	return r, nil
}

// Event converts an HTTP request and its body to an event, so that another function can serve the request as if it
// had arrived at its own URL.
func Event(r *http.Request, body []byte) events.LambdaFunctionURLRequest {
	event := events.LambdaFunctionURLRequest{
		Version: "2.0", RawPath: r.URL.EscapedPath(), RawQueryString: r.URL.RawQuery,
		Headers: make(map[string]string, len(r.Header)),
		RequestContext: events.LambdaFunctionURLRequestContext{
			DomainName: r.Host,
			HTTP: events.LambdaFunctionURLRequestContextHTTPDescription{
				Method: r.Method, Path: r.URL.Path, Protocol: r.Proto, SourceIP: r.RemoteAddr, UserAgent: r.UserAgent(),
			},
		},
	}
	for k, v := range r.Header {
		event.Headers[strings.ToLower(k)] = strings.Join(v, ",")
	}
	if utf8.Valid(body) {
		event.Body = string(body)
	} else {
		event.Body, event.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	return event
}

func response(w *httpjson.Recorder) events.LambdaFunctionURLResponse {
	w.WriteHeader(http.StatusOK)
	out := events.LambdaFunctionURLResponse{StatusCode: w.Status, Headers: make(map[string]string, len(w.Header()))}
	for k, v := range w.Header() {
		if k == "Set-Cookie" {
			out.Cookies = v
			continue
		}
		out.Headers[k] = strings.Join(v, ",")
	}
	if b := w.Body.Bytes(); utf8.Valid(b) {
		out.Body = string(b)
	} else {
		out.Body, out.IsBase64Encoded = base64.StdEncoding.EncodeToString(b), true
	}
	return out
}

const (
	// envFrontKey is the variable with the key that CloudFront sends in frontHeader with every request.
	// CloudFront replaces a header of this name that a client sent. Without CloudFront the variable is empty.
	envFrontKey = "MCPEVENTS_FRONT_KEY"
	frontHeader = "X-Mcpevents-Front"
)

// Fronted refuses requests that did not come through the front, if there is one. Otherwise a client that knows a
// function's URL could bypass the firewall.
func (p *Process) Fronted(next http.Handler) http.Handler {
	key := []byte(p.getenv(envFrontKey))
	if len(key) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(frontHeader)), key) != 1 {
			http.Error(w, "this deployment is served at another host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
