package publish

import (
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"mcpevents/shared/auth"
	"mcpevents/shared/catalog"
	"mcpevents/shared/fault"
	"mcpevents/shared/httpjson"
	"mcpevents/shared/rate"
)

// Handler serves POST /events. It takes
//
//   - application/json: {"uri","data","id"?,"time"?}, or an array of these
//   - CloudEvents: application/cloudevents+json, application/cloudevents-batch+json,
//     or the binary mode, recognised by the header ce-specversion
//
// and answers 202 {"accepted":[{"id","uri"}]}, or an error as {"error":{"kind",
// "message","uri"?,"faults"?:[{"pointer","message"}],"missingScopes"?,"limit"?,"max"?}} with
// the status of [statuses].
// The order of checks: Origin, method, caller, scope, media type, size, JSON, events.
type Handler struct {
	Service *Service
	Auth    auth.Authenticator
	// Guard refuses what a browser sends for another site.
	Guard auth.Guard
	// MetadataURL is the protected resource metadata (RFC 9728) that a 401 names; may be empty.
	MetadataURL string
	// Log gets what is not the caller's fault; nil is slog.Default.
	Log *slog.Logger
}

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

// ServeHTTP answers a request. A panic is answered too, and must not end the
// process: on Lambda nobody else recovers it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			h.refuse(w, r, fault.New(fault.Internal, "panic: %v\n%s", p, debug.Stack()))
		}
	}()
	accepted, err := h.publish(w, r)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	httpjson.Reply(w, http.StatusAccepted, map[string]any{"accepted": accepted})
}

// errMethod is the one refusal without a kind of its own.
var errMethod = errors.New("only POST is possible here")

func (h *Handler) publish(w http.ResponseWriter, r *http.Request) ([]Accepted, error) {
	if err := h.Guard.Check(r); err != nil {
		return nil, err
	}
	if r.Method != http.MethodPost {
		return nil, errMethod
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
	return h.Service.Accept(r.Context(), p, in)
}

// read takes the events out of a request.
func read(w http.ResponseWriter, r *http.Request) ([]Input, error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, fault.New(fault.Unsupported, "a compressed body is not supported")
	}
	mode, err := modeOf(r.Header)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, fault.New(fault.TooLarge, "the body is larger than %d bytes", MaxBody)
		}
		return nil, fault.New(fault.Invalid, "the body could not be read to its end")
	}
	if mode == modeBinary {
		var refused refused
		in := Input{}
		refused.binary(r.Header, body, &in)
		return []Input{in}, refused.err(1)
	}
	switch c := first(body); {
	case mode == modeStructured && c != '{':
		return nil, fault.New(fault.Invalid, "the body is no CloudEvent in JSON")
	case mode == modeBatch && c != '[':
		return nil, fault.New(fault.Invalid, "the body is no batch of CloudEvents in JSON")
	}
	in, err := decode(body, false)
	if err != nil {
		return nil, err
	}
	if mode == modeStructured || mode == modeBatch {
		for i := range in {
			if !in[i].cloud {
				return nil, fault.New(fault.Invalid, "%s", describe(in[i].at, "is no CloudEvent: specversion is missing"))
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

// modeOf tells how the events are sent.
func modeOf(h http.Header) (mode, error) {
	contentType := h.Get("Content-Type")
	media, _, err := mime.ParseMediaType(contentType)
	switch {
	case contentType == "" && h.Get("Ce-Specversion") != "":
		return modeBinary, nil
	case err != nil:
	case media == "application/cloudevents+json" && isJSON(contentType):
		return modeStructured, nil
	case media == "application/cloudevents-batch+json" && isJSON(contentType):
		return modeBatch, nil
	case strings.HasPrefix(media, "application/cloudevents"): // another format
	case h.Get("Ce-Specversion") != "" && isJSON(contentType):
		return modeBinary, nil
	case media == "application/json" && isJSON(contentType):
		return modePlain, nil
	}
	return 0, fault.New(fault.Unsupported,
		"the Content-Type must be application/json, application/cloudevents+json or application/cloudevents-batch+json, in UTF-8")
}

// refusal is the body of an error.
type refusal struct {
	Kind    string                `json:"kind"`
	Message string                `json:"message"`
	URI     string                `json:"uri,omitempty"`
	Faults  []catalog.SchemaFault `json:"faults,omitempty"`
	Missing []string              `json:"missingScopes,omitempty"`
	Limit   string                `json:"limit,omitempty"`
	Max     float64               `json:"max,omitempty"`
}

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errMethod) {
		w.Header().Set("Allow", http.MethodPost)
		httpjson.Reply(w, http.StatusMethodNotAllowed, map[string]refusal{"error": {Kind: fault.Unsupported.String(), Message: errMethod.Error()}})
		return
	}
	kind := fault.KindOf(err)
	out := refusal{Kind: kind.String(), Message: fault.Public(err)}
	switch data := fault.DataOf(err).(type) {
	case Refusal:
		out.URI, out.Faults = data.URI, data.Faults
	case auth.MissingScopes:
		out.Missing = data.Scopes
	case rate.RetryAfter:
		out.Limit, out.Max = data.Limit, data.Max
		w.Header().Set("Retry-After", strconv.Itoa(data.Seconds))
	}
	switch kind {
	case fault.Internal, fault.Unavailable, fault.Conflict:
		log := h.Log
		if log == nil {
			log = slog.Default()
		}
		log.ErrorContext(r.Context(), "events were not accepted", "kind", kind.String(), "error", err)
		if kind == fault.Unavailable {
			w.Header().Set("Retry-After", "1")
		}
	}
	if c := auth.Challenge(err, h.MetadataURL, auth.ScopePublish); c != "" {
		w.Header().Set("WWW-Authenticate", c)
	}
	httpjson.Reply(w, statuses[kind], map[string]refusal{"error": out})
}
