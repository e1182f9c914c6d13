// Package httpjson answers at the HTTP interfaces beside MCP, /events and /consent: with JSON,
// which refusals and panics are as well.
package httpjson

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// statuses translates kinds of errors for HTTP.
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

// Answers are what an interface says besides what it is for.
type Answers struct {
	// Challenge is that of a 401 (RFC 9110, 11.6.1) where bearer tokens are of no use; empty asks for one.
	Challenge string
	// Scope is what a bearer token needs.
	Scope string
	// MetadataURL is the protected resource metadata (RFC 9728) that a 401 names; may be empty.
	MetadataURL string
	// Log gets what is not the caller's fault; nil is slog.Default.
	Log *slog.Logger
	// Limited, if not nil, gets the name of each limit that a request met.
	Limited func(limit string)
	// Problems has refusals be problem details (RFC 9457).
	Problems bool
}

// Answer is an answer with a status of its own, for [Answers.Serve]. Without a body it has none.
type Answer struct {
	Status int
	Body   any
}

// Serve answers with what serve returns, by it if that is an [http.Handler], or with its error: {"error":{"kind","message"}} with
// the status of the kind, and the members of the error's data. A panic is answered too, and must not end
// the process: on Lambda nobody else recovers it.
func (a Answers) Serve(w http.ResponseWriter, r *http.Request, status int, serve func() (any, error)) {
	defer func() {
		if p := recover(); p != nil {
			a.refuse(w, r, fault.New(fault.Internal, "panic: %v\n%s", p, debug.Stack()))
		}
	}()
	body, err := serve()
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	if stream, ok := body.(http.Handler); ok {
		stream.ServeHTTP(w, r)
		return
	}
	if own, ok := body.(Answer); ok {
		status, body = own.Status, own.Body
	}
	reply(w, status, "application/json", body)
}

// allowed is the data of [NotAllowed].
type allowed struct {
	Methods string `json:"allow"`
}

// NotAllowed refuses the method of a request where others are allowed.
func NotAllowed(methods string) error {
	return fault.New(fault.Unsupported, "the HTTP method is not possible here").With(allowed{methods})
}

func (a Answers) refuse(w http.ResponseWriter, r *http.Request, err error) {
	kind, data := fault.KindOf(err), fault.DataOf(err)
	if name := fault.LimitOf(err); name != "" && a.Limited != nil {
		a.Limited(name)
	}
	status := statuses[kind]
	switch data := data.(type) {
	case allowed:
		status = http.StatusMethodNotAllowed
		w.Header().Set("Allow", data.Methods)
	case quota.RetryAfter:
		w.Header().Set("Retry-After", strconv.Itoa(data.Seconds))
	}
	switch kind {
	case fault.Internal, fault.Unavailable, fault.Conflict:
		log := a.Log
		if log == nil {
			log = slog.Default()
		}
		log.ErrorContext(r.Context(), "request failed", "path", pathOf(r), "kind", kind.String(), "error", err)
	}
	if kind == fault.Unavailable {
		w.Header().Set("Retry-After", "1")
	}
	if kind == fault.Unauthenticated && a.Challenge != "" {
		w.Header().Set("WWW-Authenticate", a.Challenge)
	} else if c := auth.Challenge(err, a.MetadataURL, a.Scope); c != "" {
		w.Header().Set("WWW-Authenticate", c)
	}
	if a.Problems {
		reply(w, status, "application/problem+json", encode(kind, data, problem{
			Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fault.Public(err), Kind: kind.String(),
		}))
		return
	}
	reply(w, status, "application/json", map[string]json.RawMessage{"error": encode(kind, data, refusal{kind.String(), fault.Public(err)})})
}

// pathOf returns the path of a request for the log. If the path has names of the caller's, such as a principal, it returns the route.
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

// problem are problem details, with our kind of fault.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Kind   string `json:"kind"`
}

// encode is the error as the caller sees it; data of a failure of ours is not for it.
func encode(kind fault.Kind, data, err any) json.RawMessage {
	b, _ := json.Marshal(err)     // texts and a number
	more, _ := json.Marshal(data) // it can be, see [fault.Error]
	if kind == fault.Internal || len(more) <= len(`{}`) || more[0] != '{' {
		return b
	}
	return append(append(b[:len(b)-1], ','), more[1:]...)
}

// reply answers with body, which must be of types that JSON has. Nobody may keep the answer.
func reply(w http.ResponseWriter, status int, contentType string, body any) {
	var b []byte
	if body != nil {
		b, _ = json.Marshal(body) // as said above
		w.Header().Set("Content-Type", contentType)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the caller may be gone
}
