// Package ingest takes in what sources send: requests at POST /sources/{name}, and what AWS buses put into the inbox
// queue. It verifies, has package source map, and publishes.
//
//	POST /sources/{name} ─▶ [Handler] ──┐
//	                                    ├─▶ catalog ─▶ publish.Service
//	inbox queue ─▶ publish.Inbox ─▶ [Bus]
//
// An id that was taken stays known for three days ([Seen]), for so long providers redeliver. What a verified request
// holds and no event type takes becomes a dead letter of the inbox, which can be retried after the mapping was mended.
package ingest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Wildcards of the routes of a [Handler].
const (
	pathSource = "source"
	pathKey    = "key"
)

// Sources are the sources of the configuration. [config.Stored] is one.
type Sources interface {
	Sources(ctx context.Context) ([]source.Source, error)
}

// Publisher takes events in. [publish.Service] is one.
type Publisher interface {
	Accept(ctx context.Context, p auth.Principal, in []publish.Input) ([]publish.Accepted, error)
}

// Intake is what requests and messages have in common. For both it is to have the same publisher and the same [Seen]: a
// request that is tried again and sent again is one event.
type Intake struct {
	Sources   Sources
	Catalogs  catalog.Source
	Publisher Publisher
	Seen      Seen
	// Queue takes the dead letters.
	Queue queue.Sender
	// Recorder gets the outcome of each request and of each document of a message.
	Recorder Recorder
	// Metrics counts dead letters; may be nil.
	Metrics *metric.Set
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log gets what is not the sender's fault; nil is slog.Default.
	Log *slog.Logger
}

func (in *Intake) log() *slog.Logger { return cmp.Or(in.Log, slog.Default()) }

func (in *Intake) now() time.Time {
	if in.Now != nil {
		return in.Now()
	}
	return time.Now()
}

func (in *Intake) sources(ctx context.Context) ([]source.Source, error) {
	all, err := in.Sources.Sources(ctx)
	return all, fault.Wrap(fault.Unavailable, err, "look up the sources")
}

// Handler serves POST /sources/{name}, with the key of a source that verifies nothing as one more segment. It answers
// 202 {"accepted":[{"id","uri"}]} when the event is durable, with an empty list if no mapping matches, and errors as
// POST /events does. The order of checks: Host and Origin, source, method, size, signature,
// encoding, rate, JSON, mapping, event.
type Handler struct {
	Intake
	Secrets func(context.Context, secret.Value) (string, error)
	// Rate limits what a source sends, as the principal [Principal]; nil does not.
	Rate *quota.Rate
	// Guard refuses what a browser sends for another site.
	Guard auth.Guard
	// Limited gets the name of each limit that a request met; may be nil.
	Limited func(limit string)

	large room
}

// Principal is who a source publishes as, for quotas.
func Principal(s source.Source) auth.Principal {
	return auth.Principal{ID: "source/" + s.Name, Workspace: s.Workspace, Scopes: []string{auth.ScopePublish}}
}

// Mount has the handler serve its paths.
func (h *Handler) Mount(mux *http.ServeMux) {
	mux.Handle("/sources/{"+pathSource+"}", h)
	mux.Handle("/sources/{"+pathSource+"}/{"+pathKey+"}", h)
	mux.Handle("/sources/", h) // which is no source
}

// answer is what a sender gets.
type answer struct {
	Accepted []publish.Accepted `json:"accepted"`
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answers := httpjson.Answers{Challenge: `Webhook realm="` + r.PathValue(pathSource) + `"`, Log: h.Log, Limited: h.Limited}
	answers.Serve(w, withoutKey(r), http.StatusAccepted, func() (any, error) {
		if err := h.Guard.Check(r); err != nil {
			return nil, err
		}
		s, err := h.source(r)
		if err != nil {
			return nil, err
		}
		if r.Method != http.MethodPost {
			return nil, httpjson.NotAllowed(http.MethodPost)
		}
		in := incoming{Handler: h, source: s, now: h.now(), outcome: Outcome{Workspace: s.Workspace, Source: s.Name}}
		body, err := in.take(w, r)
		if !errors.Is(err, context.Canceled) {
			h.Recorder.Record(r.Context(), in.outcome.of(err, in.now))
		}
		return body, err
	})
}

// withoutKey is a request for the log: the key of a source that verifies nothing is part of the path.
func withoutKey(r *http.Request) *http.Request {
	logged := r.WithContext(r.Context())
	logged.URL, logged.Pattern = &url.URL{Path: "/sources/" + r.PathValue(pathSource)}, ""
	return logged
}

// source finds the source of a request. A key in the path is for those alone that verify nothing else; what has the
// wrong number of segments is not there.
func (h *Handler) source(r *http.Request) (source.Source, error) {
	all, err := h.sources(r.Context())
	if err != nil {
		return source.Source{}, err
	}
	name := r.PathValue(pathSource)
	for _, s := range all {
		if s.Name == name && s.From == source.HTTP && (s.Verify.Scheme == verify.None) == (r.PathValue(pathKey) != "") {
			return s, nil
		}
	}
	return source.Source{}, fault.New(fault.NotFound, "there is no source at this path")
}

// incoming is one request of a source that is there.
type incoming struct {
	*Handler
	source  source.Source
	now     time.Time
	outcome Outcome
}

func (in *incoming) take(w http.ResponseWriter, r *http.Request) (any, error) {
	ctx := r.Context()
	received, held, err := in.large.read(w, r, in.Handler.now)
	defer func() { held.leave() }()
	if err != nil {
		return nil, err
	}
	body, signed, err := in.verify(ctx, r, received)
	if err != nil {
		return nil, err
	}
	if held == nil && len(body) > smallBody { // it was compressed
		if held, err = in.large.enter(auth.ClientNetwork(r.RemoteAddr), in.now, nil); err != nil {
			return nil, err
		}
	}
	if err := in.Rate.Take(ctx, Principal(in.source), 1, in.now); err != nil {
		return nil, err
	}
	doc, err := source.ReadRequest(r, body, in.source.Verify.Headers())
	if err != nil {
		return nil, err
	}
	if challenge, ok := challengeOf(in.source, doc); ok {
		in.outcome.Kind = Verified
		return httpjson.Answer{Status: http.StatusOK, Body: map[string]string{"challenge": challenge}}, nil
	}
	who := identity{bodyID(body), signed}
	accepted, err := in.accept(ctx, in.source, doc, who, in.now, &in.outcome)
	if isUnfit(err) {
		if kept := in.keep(ctx, in.source, doc, who, in.outcome.ID, err, false, in.now); kept != nil {
			return nil, kept
		}
	}
	return answer{accepted}, err
}

// challengeOf is what Slack asks for to see that the URL is ours.
func challengeOf(s source.Source, doc map[string]any) (string, bool) {
	if s.Verify.Scheme != verify.Slack {
		return "", false
	}
	return verify.Challenge(doc["body"])
}

// verify refuses a request that its provider did not send. It returns the body without its Content-Encoding, and what
// [verify.Verifier.Verify] returns as signed.
//
// A provider that compresses may have signed the body before it compressed it, or afterwards. So a body whose signature does not
// match is unpacked and verified again. If that fails too, verify does not say whether the body was malformed.
func (in *incoming) verify(ctx context.Context, r *http.Request, received []byte) (content []byte, signed string, err error) {
	v, err := verifier(ctx, in.source, in.Secrets)
	if err != nil { // of the configuration, which a sender cannot fix; the log has it
		return nil, "", &fault.Error{Kind: fault.Unavailable, Message: "the source " + in.source.Name + " cannot verify requests now", Err: err}
	}
	request := verify.Request{Header: r.Header, Body: received, Key: r.PathValue(pathKey)}
	signed, refused := v.Verify(request, in.now)
	switch {
	case refused == nil:
		content, err = decode(r.Header, received)
		return content, signed, err
	case !isEncoded(r.Header) || in.source.Verify.Scheme == verify.None || fault.Public(refused) != verify.NoMatch:
		return nil, "", refused // which another body would not change
	}
	err = in.large.unpack(r, received, func(unpacked []byte) {
		request.Body = unpacked
		if signed, refused = v.Verify(request, in.now); refused == nil {
			content = unpacked
		}
	})
	if err == nil {
		err = refused
	}
	return content, signed, err
}
