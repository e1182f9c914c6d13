package ingest

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/demand/intake"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Bus converts messages in the inbox queue to events. Some of them are messages of AWS services, which go to every source whose From
// names the service. The others are dead letters that an operator retries. A dead letter is a request or message that could not become an
// event.
//
// If one source cannot turn a message into an event, the message becomes a dead letter in that source's workspace, and the other sources
// still get their events. Bus implements [publish.Documents].
type Bus struct{ Documents }

// Read converts a message to events. The result known is true for a message of a known AWS service and for a retried dead letter. If Read
// returns an error, the caller must treat the whole message as failed, and publish no event of it.
func (b *Bus) Read(ctx context.Context, body []byte) (in []publish.Input, known bool, err error) {
	if isRetry(body) {
		in, err = b.mapRetried(ctx, body)
		return in, true, err
	}
	from, docs, err := source.ReadEnvelope(body)
	if from == source.HTTP || err != nil {
		return nil, from != source.HTTP, err
	}
	all, err := b.sources(ctx)
	if err != nil {
		return nil, true, err
	}
	if len(docs) > 0 && !slices.ContainsFunc(all, func(s source.Source) bool { return s.From == from }) {
		return nil, true, fault.New(fault.NotFound, "the configuration has no source with from: %s, so nothing receives this message", from)
	}
	for _, s := range all {
		if s.From != from {
			continue
		}
		for _, doc := range docs {
			more, err := b.mapEvent(ctx, s, doc, false)
			if err != nil {
				return nil, true, err
			}
			in = append(in, more...)
		}
	}
	return in, true, nil
}

// mapRetried handles a dead letter that an operator retries. It passes the request or message in the dead letter to its source again.
//
// For a message of an AWS service, mapRetried returns the event, and the caller publishes it. For a webhook request, mapRetried publishes
// the event itself, because the request needs a check for duplicates first.
func (b *Bus) mapRetried(ctx context.Context, body []byte) ([]publish.Input, error) {
	r, doc, err := parseRetry(body)
	if err != nil {
		return nil, err
	}
	all, err := b.sources(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		switch {
		case s.Name != r.Retry.Source || s.Workspace != r.Workspace || s.From != r.Retry.From:
		case s.From == source.HTTP:
			return nil, b.publishRequest(ctx, s, doc, identity{r.Retry.Hash, r.Retry.Signed})
		default:
			return b.mapEvent(ctx, s, doc, true)
		}
	}
	return nil, fault.New(fault.NotFound, "workspace %.64q no longer has a source %.64q for this document", r.Workspace, r.Retry.Source)
}

// errUnmatched is the error for a retried request or message that no mapping matches any more. A mapping matched it when it arrived, so
// the operator may have changed the pattern by mistake. The request or message therefore becomes a dead letter again instead of being
// ignored.
var errUnmatched = fault.New(fault.Unprocessable, "no mapping matches it any more")

// publishRequest publishes the event of a retried webhook request, with the same checks for duplicates as [Handler].
func (b *Bus) publishRequest(ctx context.Context, s source.Source, doc any, ident identity) error {
	now := b.now()
	o := Outcome{Workspace: s.Workspace, Source: s.Name}
	_, err := b.accept(ctx, s, doc, ident, now, &o)
	b.Recorder.Record(ctx, o.withError(err, now))
	if err == nil && o.Kind == Unmatched {
		err = errUnmatched
	}
	switch {
	case isUnfit(err):
		return b.deadLetter(ctx, s, doc, ident, o.ID, err, true, now)
	case fault.Is(err, fault.Exhausted): // the sender already got a 202, so the inbox must retry
		return fault.Wrap(fault.Unavailable, err, "publish a retried request")
	}
	return err
}

// mapEvent maps a document to at most one event. If the document cannot become a valid event, mapEvent stores it as a dead letter. The
// parameter again is true for the document of a retried dead letter.
func (b *Bus) mapEvent(ctx context.Context, s source.Source, doc any, again bool) ([]publish.Input, error) {
	now := b.now()
	o := Outcome{Workspace: s.Workspace, Source: s.Name, Kind: Unmatched}
	in, err := b.mapInput(ctx, s, doc, &o)
	b.Recorder.Record(ctx, o.withError(err, now))
	if again && err == nil && o.Kind == Unmatched {
		err = errUnmatched
	}
	if isUnfit(err) {
		return nil, b.deadLetter(ctx, s, doc, identity{}, o.ID, err, again, now)
	}
	return in, err
}

func (b *Bus) mapInput(ctx context.Context, s source.Source, doc any, o *Outcome) ([]publish.Input, error) {
	event, err := s.Map(doc)
	if err != nil || event == nil {
		return nil, err
	}
	o.Name, o.ID = event.Name, event.ID
	in, cat, err := b.toInput(ctx, s, event)
	if err != nil {
		return nil, err
	}
	o.Kind, o.URI = Accepted, in.URI
	if _, err := publish.Check(cat, in); err != nil {
		return nil, toUnprocessable(err)
	}
	return []publish.Input{in}, nil
}

// Backends receives webhooks from backends, which are MCP servers behind the gateway, at POST /sources/~backends/{token}. The relay,
// which collects events from backends, has subscribed to these webhooks ([demand.Hooks]). A webhook without an eventId is a control
// message (SEP-3415, "Non-event webhook bodies").
//
// Requests are checked in this order: Host and Origin, token, method, size, signature, quota, JSON, event. An event that can never be
// published is counted and gets the response 204, because the backend could only send the same event again.
type Backends struct {
	Intake intake.Intake
	Hooks  demand.Hooks
	// Dropped is called for each event that can never be published, to count it.
	Dropped func(ctx context.Context, workspace, backend, reason string)
}

// pathToken is the name of the wildcard in the URL path to which backends send webhooks. The value of the wildcard is a token, by which the
// server finds the webhook's subscription.
const pathToken = "token"

func (h *Handler) serveBackend(w http.ResponseWriter, r *http.Request) {
	responder := httpjson.Responder{Challenge: `Webhook realm="backends"`, Log: h.Log, Limited: h.Limited}
	responder.Serve(w, withPath(r, demand.HookPath), http.StatusNoContent, func() (any, error) {
		if err := h.Guard.Check(r); err != nil {
			return nil, err
		}
		hook, err := h.Backends.Hooks.Find(r.Context(), r.PathValue(pathToken))
		if err != nil {
			return nil, err
		}
		if r.Method != http.MethodPost {
			return nil, httpjson.NotAllowed(http.MethodPost)
		}
		body, held, err := h.large.read(w, r, h.now)
		defer func() { held.release() }()
		if err != nil {
			return nil, err
		}
		v, err := verify.New(verify.Settings{Scheme: verify.StandardWebhooks}, hook.Secrets)
		if err != nil {
			return nil, err
		}
		if _, err := v.Verify(verify.Request{Header: r.Header, Body: body}, h.now()); err != nil {
			return nil, err
		}
		backend := catalog.BackendOf(hook.URI)
		var m hookMessage
		malformed := json.Unmarshal(body, &m) != nil
		sender := auth.Principal{ID: "backend/" + backend, Workspace: hook.Workspace}
		if err := h.Rate.Take(r.Context(), sender, m.cost(), h.now()); err != nil {
			return nil, err
		}
		if malformed {
			return nil, fault.New(fault.Invalid, "the body is not JSON")
		}
		if m.EventID == "" && m.Type == "verification" && m.Challenge != "" {
			return httpjson.Answer{Status: http.StatusOK, Body: map[string]string{"challenge": m.Challenge}}, nil
		}
		dropped, err := h.Backends.handle(r.Context(), hook, r.Header.Get(standardwebhooks.HeaderWebhookID), &m)
		if dropped != "" {
			h.Backends.Dropped(r.Context(), hook.Workspace, backend, dropped)
		}
		return httpjson.Answer{Status: http.StatusNoContent}, err
	})
}

// hookMessage is the body of a webhook from a backend.
type hookMessage struct {
	EventID   string          `json:"eventId"`
	Name      string          `json:"name"`
	Timestamp string          `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
	Cursor    string          `json:"cursor"`
	Type      string          `json:"type"`
	Challenge string          `json:"challenge"`
}

// cost returns how many events the message counts as in the backend's quota. A gap message, which reports lost events, counts as ten
// because each webhook subscriber gets a notice of it.
func (m *hookMessage) cost() int {
	if m.EventID == "" && m.Type == "gap" {
		return 10
	}
	return 1
}

// handle publishes the event of a verified webhook, or carries out its control message. If the event can never be published, handle drops
// it and returns the reason. After an error, the backend must send the webhook again.
func (b *Backends) handle(ctx context.Context, hook *demand.Hook, id string, m *hookMessage) (dropped string, err error) {
	workspace, uri, registry := hook.Workspace, hook.URI, b.Intake.Demand
	switch {
	case m.EventID != "":
		dropped, err = b.Intake.Accept(ctx, workspace, uri, intake.Event{ID: m.EventID, Name: m.Name, Time: m.Timestamp, Data: m.Data})
		if err == nil && m.Cursor != "" {
			err = demand.Cursor{DB: registry.DB, Workspace: workspace, URI: uri}.Save(ctx, "", m.Cursor)
		}
		return dropped, err
	case m.Type == "gap":
		once := "gap " + intake.EventID(catalog.BackendOf(uri), id) // no event has this key, because event ids contain no space
		if seen, err := registry.WasSeen(ctx, workspace, uri, once); err != nil || seen {
			return "", err
		}
		if m.Cursor != "" {
			if err := registry.RequestRestart(ctx, workspace, demand.Restart{URI: uri, Cursor: m.Cursor}); err != nil {
				return "", err
			}
		}
		if err := b.Intake.Gap(ctx, workspace, uri); err != nil && !fault.Is(err, fault.NotFound) {
			return "", err
		}
		return "", registry.MarkSeen(ctx, workspace, uri, once)
	case m.Type == "terminated":
		return "", registry.RequestRestart(ctx, workspace, demand.Restart{URI: uri})
	case m.Type != "": // a control message of a later version of the specification: ignore it
		return "", nil
	}
	return intake.Foreign, nil
}
