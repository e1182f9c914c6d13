package publish

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
)

// Handler serves POST /events. It accepts
//
//   - application/json: {"uri","data","id"?,"time"?}, or an array of these
//   - CloudEvents: application/cloudevents+json, application/cloudevents-batch+json, or the binary mode, which it recognizes by the
//     header ce-specversion
//
// It responds with 202 {"accepted":[{"id","uri"}]}, or with an error {"error":{"kind",
// "message","uri"?,"faults"?:[{"pointer","message"}],"missingScopes"?,"limit"?,"max"?,"retryAfterSeconds"?}}. It checks a request in this
// order: Origin, method, caller, scope, media type, size, JSON, events.
type Handler struct {
	Service *Service
	Auth    auth.Authenticator
	// Guard refuses requests that a browser sends on behalf of another site.
	Guard auth.Guard
	// MetadataURL is the URL of the server's protected resource metadata (RFC 9728). If it is not empty, 401 responses tell it to the
	// client in the header WWW-Authenticate.
	MetadataURL string
	// Log logs problems that the caller did not cause. Nil means slog.Default.
	Log *slog.Logger
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	responder := httpjson.Responder{Scope: auth.ScopePublish, MetadataURL: h.MetadataURL, Log: h.Log, Limited: func(name string) {
		h.Service.Metrics.LimitReached(name)
	}}
	responder.Serve(w, r, http.StatusAccepted, func() (any, error) {
		accepted, err := h.publish(w, r)
		return answer{accepted}, err
	})
}

type answer struct {
	Accepted []Accepted `json:"accepted"`
}

func (h *Handler) publish(w http.ResponseWriter, r *http.Request) ([]Accepted, error) {
	if err := h.Guard.Check(r); err != nil {
		return nil, err
	}
	if r.Method != http.MethodPost {
		return nil, httpjson.NotAllowed(http.MethodPost)
	}
	p, err := h.Auth.Authenticate(r.Context(), r.Header)
	if err != nil {
		return nil, err
	}
	if err := p.Require(auth.ScopePublish); err != nil {
		return nil, err
	}
	in, err := read(w, r)
	if err != nil {
		return nil, err
	}
	if sent := trace.FromHeader(r.Header); sent.Parent != "" {
		for i := range in {
			if in[i].Trace.Parent == "" { // a CloudEvent names the beginning of its trace, which may be earlier
				in[i].Trace = sent
			}
		}
	}
	return h.Service.Accept(r.Context(), p, in)
}

// firstRead limits the memory that a request can reserve with a large Content-Length before any of its body has arrived.
const firstRead = 64 << 10

func read(w http.ResponseWriter, r *http.Request) ([]Input, error) {
	if err := httpjson.CheckEncoding(r.Header); err != nil {
		return nil, err
	}
	mode, err := modeOf(r.Header)
	if err != nil {
		return nil, err
	}
	tooLarge := fault.New(fault.TooLarge, "the body is larger than %d bytes", MaxBody).AtLimit("body", MaxBody)
	if r.ContentLength > MaxBody {
		return nil, tooLarge
	}
	var buf bytes.Buffer
	if r.ContentLength > 0 { // MinRead is space for the last read, which only returns EOF
		buf.Grow(int(min(r.ContentLength, firstRead)) + bytes.MinRead)
	}
	_, err = buf.ReadFrom(http.MaxBytesReader(w, r.Body, MaxBody))
	body := buf.Bytes()
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, tooLarge
		}
		return nil, fault.New(fault.Invalid, "the body ended early")
	}
	if mode == modeBinary {
		var refused faultList
		in := Input{}
		refused.parseBinary(r.Header, body, &in)
		return []Input{in}, refused.err(1)
	}
	switch c := firstByte(body); {
	case mode == modeStructured && c != '{':
		return nil, fault.New(fault.Invalid, "the body is not a CloudEvent in JSON")
	case mode == modeBatch && c != '[':
		return nil, fault.New(fault.Invalid, "the body is not a batch of CloudEvents in JSON")
	}
	in, err := decode(body, false)
	if err != nil {
		return nil, err
	}
	if mode == modeStructured || mode == modeBatch {
		for i := range in {
			if !in[i].cloud {
				return nil, fault.New(fault.Invalid, "%s", describe(in[i].At, "is not a CloudEvent: specversion is missing"))
			}
		}
	}
	return in, nil
}

type mode int

const (
	modePlain mode = iota
	modeStructured
	modeBatch
	modeBinary
)

func modeOf(h http.Header) (mode, error) {
	contentType := h.Get("Content-Type")
	if contentType == "application/json" && h.Get("Ce-Specversion") == "" { // the most frequent case
		return modePlain, nil
	}
	media, _, err := mime.ParseMediaType(contentType)
	switch {
	case contentType == "" && h.Get("Ce-Specversion") != "":
		return modeBinary, nil
	case err != nil:
	case media == "application/cloudevents+json" && isJSON(contentType):
		return modeStructured, nil
	case media == "application/cloudevents-batch+json" && isJSON(contentType):
		return modeBatch, nil
	case strings.HasPrefix(media, "application/cloudevents"): // a CloudEvents format that we do not support
	case h.Get("Ce-Specversion") != "" && isJSON(contentType):
		return modeBinary, nil
	case media == "application/json" && isJSON(contentType):
		return modePlain, nil
	}
	return 0, fault.New(fault.Unsupported,
		"the Content-Type must be application/json, application/cloudevents+json or application/cloudevents-batch+json, in UTF-8")
}

// Refusal lists the faults of a request. It is the data of the errors that [Service.Accept] and the request parsers return.
type Refusal struct {
	// URI is the first URI in the request that matches no event type, in canonical form. It is empty if all URIs match.
	URI string `json:"uri,omitempty"`
	// Faults has up to [maxFaults] faults, with JSON Pointers into the request.
	Faults []jsonpointer.Fault `json:"faults,omitempty"`
	// Limit is the first limit that the request exceeded, or nil.
	*fault.Limit
}

// LimitName returns the name of the exceeded limit, for [fault.LimitOf].
func (r Refusal) LimitName() string {
	if r.Limit == nil {
		return ""
	}
	return r.Limit.Limit
}

const maxFaults = 100 // the maximum number of faults in one response

// faultList collects the faults of a request.
type faultList struct {
	Refusal
	kind  fault.Kind // kind of the most severe fault
	count int
	first string // message of the first fault of that kind
}

// severity ranks the kinds of faults. If a request has several faults, its error gets the most severe kind. Malformed input is more
// severe than a URI that matches no event type, because the caller must correct it first.
func severity(k fault.Kind) int {
	return 1 + slices.Index([]fault.Kind{fault.Unprocessable, fault.NotFound, fault.TooLarge, fault.Unsupported, fault.Invalid}, k)
}

func (r *faultList) add(k fault.Kind, pointer, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if severity(k) > severity(r.kind) {
		r.kind, r.first = k, describe(pointer, msg)
	}
	r.count++
	if len(r.Faults) < maxFaults {
		r.Faults = append(r.Faults, jsonpointer.Fault{Pointer: pointer, Message: msg})
	}
}

// addError adds an error as a fault. If the error is about a limit, addError also records the limit in the [Refusal].
func (r *faultList) addError(pointer string, err error) {
	if l, ok := fault.DataOf(err).(fault.Limit); ok && r.Limit == nil {
		r.Limit = &l
	}
	r.add(fault.KindOf(err), pointer, "%s", fault.Public(err))
}

func describe(pointer, msg string) string {
	if pointer == "" {
		return "the body " + msg
	}
	return pointer + ": " + msg
}

func (r *faultList) addUnknown(pointer, uri string) {
	if r.URI == "" {
		r.URI = uri
	}
	r.add(fault.NotFound, pointer, "belongs to no event type")
}

// addSchemaFaults adds the faults that a schema check has found in a value. The parameter pointer is the JSON Pointer of the value. If
// below is true, each fault gets its own pointer below this one. Otherwise addSchemaFaults adds a single fault for the value.
func (r *faultList) addSchemaFaults(pointer string, err error, below bool) {
	faults, ok := fault.DataOf(err).([]jsonpointer.Fault)
	if !ok {
		r.add(fault.KindOf(err), pointer, "%s", fault.Public(err))
		return
	}
	if !below {
		faults = []jsonpointer.Fault{{Message: fault.Public(err)}}
	}
	for _, x := range faults {
		r.add(fault.Unprocessable, pointer+x.Pointer, "%s", x.Message)
	}
}

// err returns an error with all faults, or nil if the request has no faults. The parameter n is the number of events in the request.
func (r *faultList) err(n int) error {
	if r.count == 0 {
		return nil
	}
	msg := r.first
	if r.count > 1 {
		msg += fmt.Sprintf(" (and %d more faults)", r.count-1)
	}
	if n > 1 {
		msg += "; none of the events was accepted"
	}
	return fault.New(r.kind, "%s", msg).With(r.Refusal)
}
