// Package httpjson writes the JSON responses of the HTTP interfaces other than MCP, such as /events and /consent.
package httpjson

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

var statuses = map[fault.Kind]int{
	fault.Internal:        http.StatusInternalServerError,
	fault.Invalid:         http.StatusBadRequest,
	fault.NotFound:        http.StatusNotFound,
	fault.Forbidden:       http.StatusForbidden,
	fault.Unauthenticated: http.StatusUnauthorized,
	fault.Exhausted:       http.StatusTooManyRequests,
	fault.Unavailable:     http.StatusServiceUnavailable,
	fault.Conflict:        http.StatusConflict,
	fault.TooLarge:        http.StatusRequestEntityTooLarge,
	fault.Unprocessable:   http.StatusUnprocessableEntity,
	fault.Unsupported:     http.StatusUnsupportedMediaType,
}

// Responder writes the responses of one HTTP interface.
type Responder struct {
	// Challenge is the WWW-Authenticate header of a 401 (RFC 9110, 11.6.1), for interfaces that do not use bearer tokens, for example for
	// webhooks from GitHub. If it is empty, a 401 asks for a bearer token.
	Challenge string
	// Scope is the scope that a bearer token needs.
	Scope string
	// MetadataURL is the URL of the protected resource metadata (RFC 9728). It may be empty.
	MetadataURL string
	// Log logs errors that callers did not cause. Nil is slog.Default.
	Log *slog.Logger
	// Limited is called with the name of each limit that a request reached. It may be nil.
	Limited func(limit string)
	// Problems makes the error responses problem details (RFC 9457).
	Problems bool
}

// Answer is a result for [Responder.Serve] that sets its own status. A nil Body means a response without a body.
type Answer struct {
	Status int
	Body   any
}

// Serve calls the function serve and writes its result as JSON with the status. If the result is an [Answer], the status is the Answer's.
// If the result is an [http.Handler], the handler writes the whole response.
//
// An error becomes {"error":{"kind","message"}}, or problem details with [Responder.Problems], together with the members of the error's
// data. The error's kind determines the status. A panic becomes an internal error, because on Lambda it would otherwise end the process.
func (rs Responder) Serve(w http.ResponseWriter, r *http.Request, status int, serve func() (any, error)) {
	defer func() {
		if p := recover(); p != nil {
			rs.writeError(w, r, fault.New(fault.Internal, "panic: %v\n%s", p, debug.Stack()))
		}
	}()
	body, err := serve()
	if err != nil {
		rs.writeError(w, r, err)
		return
	}
	if stream, ok := body.(http.Handler); ok {
		stream.ServeHTTP(w, r)
		return
	}
	if own, ok := body.(Answer); ok {
		status, body = own.Status, own.Body
	}
	writeJSON(w, status, "application/json", body)
}

type allowed struct {
	Methods string `json:"allow"`
}

// NotAllowed returns the error for a request whose HTTP method is not allowed. The parameter methods lists the allowed methods, for
// example "PUT, DELETE".
func NotAllowed(methods string) error {
	return fault.New(fault.Unsupported, "the HTTP method is not allowed here").With(allowed{methods})
}

func (rs Responder) writeError(w http.ResponseWriter, r *http.Request, err error) {
	kind, data := fault.KindOf(err), fault.DataOf(err)
	if name := fault.LimitOf(err); name != "" && rs.Limited != nil {
		rs.Limited(name)
	}
	status := statuses[kind]
	if own, ok := data.(allowed); ok {
		status = http.StatusMethodNotAllowed
		w.Header().Set("Allow", own.Methods)
	}
	quota.SetRetryAfter(w.Header(), status, err)
	switch kind {
	case fault.Internal, fault.Unavailable, fault.Conflict:
		log := cmp.Or(rs.Log, slog.Default())
		if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
			log.DebugContext(r.Context(), "client disconnected", "path", pathOf(r), "error", err)
			break
		}
		log.ErrorContext(r.Context(), "request failed", "path", pathOf(r), "kind", kind.String(), "error", err)
	}
	if kind == fault.Unauthenticated && rs.Challenge != "" {
		w.Header().Set("WWW-Authenticate", rs.Challenge)
	} else if c := auth.Challenge(err, rs.MetadataURL, rs.Scope); c != "" {
		w.Header().Set("WWW-Authenticate", c)
	}
	if rs.Problems {
		writeJSON(w, status, "application/problem+json", encodeError(kind, data, problem{
			Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fault.Public(err), Kind: kind.String(),
		}))
		return
	}
	writeJSON(w, status, "application/json", map[string]json.RawMessage{"error": encodeError(kind, data, refusal{kind.String(), fault.Public(err)})})
}

// pathOf returns the path of a request for log messages. For a route with wildcards, for example /sources/{name}, it returns the route's
// pattern instead, because the values of the wildcards are chosen by the caller.
func pathOf(r *http.Request) string {
	if strings.Contains(r.Pattern, "{") {
		return r.Pattern
	}
	return r.URL.Path
}

type refusal struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// problem is a problem details object (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Kind   string `json:"kind"`
}

// encodeError encodes an error as JSON. The parameter err is an object with the error's kind and text. encodeError adds the members of
// the error's data, except for internal errors.
func encodeError(kind fault.Kind, data, err any) json.RawMessage {
	b, _ := json.Marshal(err)     // cannot fail, because err has only strings and a number
	more, _ := json.Marshal(data) // the data of a [fault.Error] must marshal
	if kind == fault.Internal || len(more) <= len(`{}`) || more[0] != '{' {
		return b
	}
	return append(append(b[:len(b)-1], ','), more[1:]...)
}

// writeJSON writes a response that must not be cached.
func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	var b []byte
	if body != nil {
		b, _ = json.Marshal(body)
		w.Header().Set("Content-Type", contentType)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

// Recorder is an [http.ResponseWriter] that records a response, so that it can be sent in another form.
type Recorder struct {
	Status int // 0 until WriteHeader or Write is called
	Body   bytes.Buffer

	header http.Header
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder { return &Recorder{header: http.Header{}} }

// Header implements [http.ResponseWriter].
func (r *Recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *Recorder) WriteHeader(status int) {
	r.Status = cmp.Or(r.Status, status)
}

// Write implements [http.ResponseWriter].
func (r *Recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.Body.Write(b)
}

// ParseQuery parses the query of a request's URL. Unlike [url.URL.Query], it refuses a malformed query. Query would drop the malformed
// parameters, and the rest could mean something else. For example, a requested dry run of an erasure could become a real erasure.
func ParseQuery(u *url.URL) (url.Values, error) {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the query %.100q is malformed: write a semicolon as %%3B and a percent sign as %%25", u.RawQuery)
	}
	return values, nil
}

// CheckEncoding returns an error of kind fault.Unsupported if the headers of a request name a Content-Encoding other than identity.
// Handlers that read the body as it arrives call it first, because otherwise they would report compressed JSON as invalid JSON. They would
// also accept plain JSON with a wrong Content-Encoding, which a proxy in front of the server could not inspect.
func CheckEncoding(h http.Header) error {
	for _, codings := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(codings, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return fault.New(fault.Unsupported, "the Content-Encoding %.32q is not supported (send the body without a Content-Encoding)", coding)
			}
		}
	}
	return nil
}
