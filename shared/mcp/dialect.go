package mcp

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// The named-event dialect, at /mcp/{workspace}: the same methods, sessions and
// feeds as those of the revisions with sessions, in the framing of an older
// transport.
//
//	GET   event: lifecycle      streamOpened, ping while quiet, streamClosed
//	      event: notification   notifications
//	      event: response       answers to POSTs that carry the stream's Mcp-Session-Id
//	POST  event: response, or JSON, or 202 and the answer on the stream
//
// A session begins with the first GET, or with initialize. A POST without a session
// is served by itself. How an answer reaches a stream at another instance is in
// dialectresponse.go.

// PathWorkspace is the wildcard of the pattern that the dialect is routed by:
// "/mcp/{workspace}". A request without it is one of the published transports.
const PathWorkspace = "workspace"

// pathEndpoint is where who serves a forwarded request listens.
const pathEndpoint = "/mcp"

// dialectVersion is the revision of a session that was not initialized: what a
// client that names none speaks.
const dialectVersion = spec.V20250326

// dialect serves it, with the endpoint's sessions, methods and streams.
type dialect struct{ endpoint *Endpoint }

// serve serves a request whose caller is known.
func (d dialect) serve(w http.ResponseWriter, c *method.Call, workspace string) {
	if !d.belongs(w, c, workspace) {
		return
	}
	switch {
	case c.Request.Method == http.MethodPost:
		d.post(w, c)
	case c.Request.Method == http.MethodGet && d.endpoint.sessions != nil:
		d.get(w, c)
	default:
		w.Header().Set("Allow", "GET, POST")
		method.SendError(w, http.StatusMethodNotAllowed, nil, method.InvalidRequest("the HTTP method is not allowed here"))
	}
}

// belongs answers all who do not belong to the workspace alike. Whether it exists is not
// looked up for them, so that the time of the answer does not show it either.
func (d dialect) belongs(w http.ResponseWriter, c *method.Call, workspace string) bool {
	c.Dialect, c.Version = true, dialectVersion
	if workspace == c.Principal.Workspace {
		_, err := d.endpoint.options.Catalogs.Catalog(c.Request.Context(), workspace)
		if err == nil {
			return true
		}
		if !fault.Is(err, fault.NotFound) {
			d.endpoint.replies.SessionFailed(w, c, err)
			return false
		}
	}
	method.SendError(w, http.StatusNotFound, nil, &jsonrpc.Error{Code: method.CodeNotFound, Message: "there is no such workspace"})
	return false
}

// post serves a POST: first the messages, into a record, and then the
// record's way to the client.
func (d dialect) post(w http.ResponseWriter, c *method.Call) {
	r, kept := c.Request, httpjson.NewRecorder()
	batch, ok := d.endpoint.receive(kept, c)
	if ok {
		defer c.Detach(d.endpoint.shut, method.DetachedFor)()
	}
	if ok && d.enter(kept, c) {
		if batch != nil {
			d.endpoint.serveParts(kept, c, batch, d.part)
		} else {
			d.call(kept, c)
		}
	}
	if !ok || c.Session == nil || listsStream(r.Header) || !d.respond(c, kept) {
		release, err := d.endpoint.replies.HoldBytes(c, kept.Body.Len())
		if err != nil {
			method.SendError(w, http.StatusTooManyRequests, c.Msg.ID, d.endpoint.faults.Translate(r.Context(), err, c.Version, ""))
			return
		}
		defer release()
		replay(w, r, kept)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// enter finds the session of a request that names one, or answers.
func (d dialect) enter(w http.ResponseWriter, c *method.Call) bool {
	id := c.Request.Header.Get(spec.HeaderSession)
	return id == "" || d.endpoint.sessions == nil || d.endpoint.loadSession(w, c, id)
}

// call serves one message.
func (d dialect) call(w http.ResponseWriter, c *method.Call) {
	switch c.Msg.Kind {
	case jsonrpc.Notification:
		d.endpoint.takeIn(w, c)
		return
	case jsonrpc.Response: // to nothing: no client is asked here
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if c.Session != nil {
		fresh, err := d.endpoint.sessions.Use(c.Request.Context(), c.Session, c.Msg.ID)
		switch {
		case err != nil:
			d.endpoint.replies.SessionFailed(w, c, err)
			return
		case !fresh:
			// Not on the stream, where it could be taken for the answer to the first.
			method.SendError(w, http.StatusBadRequest, c.Msg.ID, method.InvalidRequest("the request id was used before in this session"))
			return
		}
	}
	if c.Msg.Method == spec.MethodInitialize {
		d.initialize(w, c)
		return
	}
	if c.Session == nil && d.endpoint.methods[c.Msg.Method].Session {
		method.SendError(w, http.StatusBadRequest, c.Msg.ID, method.InvalidRequest("this needs a session: open a stream, and send its Mcp-Session-Id"))
		return
	}
	c.Request = c.Request.Clone(c.Request.Context())
	c.Request.Header.Set("Accept", "application/json") // the form of the answer is settled in replay
	d.endpoint.dispatch(w, c)
}

// part serves a message of a batch.
func (d dialect) part(w http.ResponseWriter, c *method.Call) {
	if c.Msg.Kind == jsonrpc.Request && c.Msg.Method == spec.MethodInitialize {
		method.SendError(w, http.StatusOK, c.Msg.ID, method.InvalidRequest("initialize cannot be part of a batch"))
		return
	}
	d.call(w, c)
}

// initialize serves initialize: it begins a session, or changes one that
// began with a stream what the client can do.
func (d dialect) initialize(w http.ResponseWriter, c *method.Call) {
	began := c.Session == nil
	d.endpoint.session.initialize(w, c)
	if began && c.Session != nil {
		_, err := d.endpoint.sessions.Use(c.Request.Context(), c.Session, c.Msg.ID)
		if err != nil {
			d.endpoint.faults.LogError(c.Request.Context(), "request id not recorded", err)
		}
	}
}

// listsStream reports whether the client asks for its answer as an event stream.
// Unlike [Accepts] it takes no wildcard for that: many clients send one without
// thinking of streams.
func listsStream(h http.Header) bool {
	for t := range method.MediaTypes(h["Accept"]) {
		if strings.EqualFold(t, sse.ContentType) {
			return true
		}
	}
	return false
}

// replay answers the POST with what was recorded: as events, or as it is.
func replay(w http.ResponseWriter, r *http.Request, kept *httpjson.Recorder) {
	body := kept.Body.Bytes()
	events := listsStream(r.Header) && kept.Header().Get("Content-Type") == "application/json"
	for name, values := range kept.Header() {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	if events {
		body = streams.AppendResponses(nil, body, nil)
		streamHeaders(w.Header(), r)
	}
	if len(body) > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(max(kept.Status, http.StatusOK))
	_, _ = w.Write(body) // a client that is gone is no fault
}

// streamHeaders are those that the dialect wants on every event stream. Connection
// means something in HTTP/1.1 only, and is forbidden later (RFC 9113, section 8.2.2).
func streamHeaders(h http.Header, r *http.Request) {
	h.Set("Content-Type", sse.ContentType)
	h.Set("Cache-Control", "no-cache")
	if r.ProtoMajor == 1 && r.ProtoMinor == 1 {
		h.Set("Connection", "keep-alive")
	}
}

// get serves GET: it opens the stream of a session, which begins with it
// unless the request names one.
func (d dialect) get(w http.ResponseWriter, c *method.Call) {
	d.endpoint.sessionStream(w, c, d.enter, func(ctx context.Context, last streams.Position) (*streams.Writer, error) {
		if c.Session == nil {
			var err error
			if c.Session, err = d.endpoint.session.create(ctx, c.Principal, session.Session{
				Workspace: c.Principal.Workspace, Principal: c.Principal.ID, Version: dialectVersion, Dialect: true,
			}); err != nil {
				return nil, err
			}
		}
		out, err := d.endpoint.streams.OpenDialect(ctx, c, last)
		if err == nil {
			w.Header().Set(spec.HeaderSession, c.Session.ID)
			streamHeaders(w.Header(), c.Request)
		}
		return out, err
	})
}

// An answer that is to go out on the caller's open stream travels as a notice on
// the session's topic of the log, because the stream may be open at another instance.
// It may hold what must not lie in the store in clear (the secret of a webhook), so
// it is sealed with a key that only the session's id gives, and of the id the store
// has but a hash.

// maxResponse is the largest answer in bytes that a notice carries. In Base64 it
// stays below [store.MaxItem]. A larger one is the answer to the POST itself.
const maxResponse = 256 << 10

// respond sends what was recorded to the open stream of the session. It reports
// whether it did; if not, the POST has to be answered. That is so as well of
// everything that HTTP has a status for, and of what has no body.
func (d dialect) respond(c *method.Call, kept *httpjson.Recorder) bool {
	body := kept.Body.Bytes()
	if kept.Status != http.StatusOK || len(body) == 0 || len(body) > maxResponse || kept.Header().Get(spec.HeaderSession) != "" {
		return false
	}
	ctx := c.Request.Context()
	open, err := d.endpoint.sessions.Streaming(ctx, c.Session.Key)
	if err != nil {
		d.endpoint.faults.LogError(ctx, "open stream not found, the answer goes to the POST", err)
	}
	if !open {
		return false
	}
	err = d.endpoint.options.Feeds.Log.Notify(ctx, c.Principal.Workspace, stream.TopicSession(c.Session.Key),
		jsonrpc.Encode(streams.ResponseNotice{Response: streams.SealResponse(c.Session.ID, body)}))
	if err != nil {
		d.endpoint.faults.LogError(ctx, "answer not sent to its stream, it goes to the POST", err)
	}
	return err == nil
}

// redeclare writes what the client of a session declared by a later initialize,
// and notifies its stream.
func (h *sessionMethods) redeclare(c *method.Call, s session.Session) error {
	ctx := c.Request.Context()
	if err := h.sessions.Change(ctx, c.Session, func(now *session.Session) {
		now.Version, now.Payloads, now.Events = s.Version, s.Payloads, s.Events
	}); err != nil {
		return err
	}
	return h.notify(ctx, c)
}
