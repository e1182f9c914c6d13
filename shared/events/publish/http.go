package publish

import (
	"bytes"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
)

// Handler serves POST /events. It accepts
//
//   - application/json: {"uri","data","id"?,"time"?}, or an array of these
//   - CloudEvents: application/cloudevents+json, application/cloudevents-batch+json,
//     or the binary mode, which it recognizes by the header ce-specversion
//
// It responds with 202 {"accepted":[{"id","uri"}]}, or with an error {"error":{"kind",
// "message","uri"?,"faults"?:[{"pointer","message"}],"missingScopes"?,"limit"?,"max"?,"retryAfterSeconds"?}}. It
// checks, in this order: Origin, method, caller, scope, media type, size, JSON, events.
type Handler struct {
	Service *Service
	Auth    auth.Authenticator
	// Guard refuses requests that a browser sends on behalf of another site.
	Guard auth.Guard
	// MetadataURL is the URL of the protected resource metadata (RFC 9728) that a 401 response names. It may be
	// empty.
	MetadataURL string
	// Log logs problems that the caller did not cause. Nil means slog.Default.
	Log *slog.Logger
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answers := httpjson.Answers{Scope: auth.ScopePublish, MetadataURL: h.MetadataURL, Log: h.Log, Limited: func(name string) {
		h.Service.Metrics.LimitReached(name)
	}}
	answers.Serve(w, r, http.StatusAccepted, func() (any, error) {
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

// firstRead is the maximum memory reserved because of Content-Length, before any of the body has arrived.
const firstRead = 64 << 10

// read parses the events in a request.
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
	if r.ContentLength > 0 { // plus space for the read that returns EOF
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
		var refused refused
		in := Input{}
		refused.binary(r.Header, body, &in)
		return []Input{in}, refused.err(1)
	}
	switch c := first(body); {
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
				return nil, fault.New(fault.Invalid, "%s", describe(in[i].at, "is not a CloudEvent: specversion is missing"))
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

// modeOf returns the form in which the events are sent.
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
