package mcp

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
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
func (d dialect) serve(w http.ResponseWriter, c *call, workspace string) {
	if !d.belongs(w, c, workspace) {
		return
	}
	switch {
	case c.request.Method == http.MethodPost:
		d.post(w, c)
	case c.request.Method == http.MethodGet && d.endpoint.sessions != nil:
		d.get(w, c)
	default:
		w.Header().Set("Allow", "GET, POST")
		sendError(w, http.StatusMethodNotAllowed, nil, invalidRequest("the HTTP method is not allowed here"))
	}
}

// belongs answers all who do not belong to the workspace alike. Whether it exists is not
// looked up for them, so that the time of the answer does not show it either.
func (d dialect) belongs(w http.ResponseWriter, c *call, workspace string) bool {
	c.dialect, c.version = true, dialectVersion
	if workspace == c.principal.Workspace {
		_, err := d.endpoint.options.Catalogs.Catalog(c.request.Context(), workspace)
		if err == nil {
			return true
		}
		if !fault.Is(err, fault.NotFound) {
			d.endpoint.replies.sessionFailed(w, c, err)
			return false
		}
	}
	sendError(w, http.StatusNotFound, nil, &jsonrpc.Error{Code: codeNotFound, Message: "there is no such workspace"})
	return false
}

// post serves a POST: first the messages, into a record, and then the
// record's way to the client.
func (d dialect) post(w http.ResponseWriter, c *call) {
	r, kept := c.request, httpjson.NewRecorder()
	batch, ok := d.endpoint.receive(kept, c)
	if ok {
		defer c.detach(d.endpoint.shut, detachedFor)()
	}
	if ok && d.enter(kept, c) {
		if batch != nil {
			d.endpoint.serveParts(kept, c, batch, d.part)
		} else {
			d.call(kept, c)
		}
	}
	if !ok || c.session == nil || listsStream(r.Header) || !d.respond(c, kept) {
		release, err := d.endpoint.replies.holdBytes(c, kept.Body.Len())
		if err != nil {
			sendError(w, http.StatusTooManyRequests, c.msg.ID, d.endpoint.faults.translate(r.Context(), err, c.version, ""))
			return
		}
		defer release()
		replay(w, r, kept)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// enter finds the session of a request that names one, or answers.
func (d dialect) enter(w http.ResponseWriter, c *call) bool {
	id := c.request.Header.Get(spec.HeaderSession)
	return id == "" || d.endpoint.sessions == nil || d.endpoint.loadSession(w, c, id)
}

// call serves one message.
func (d dialect) call(w http.ResponseWriter, c *call) {
	switch c.msg.Kind {
	case jsonrpc.Notification:
		d.endpoint.takeIn(w, c)
		return
	case jsonrpc.Response: // to nothing: no client is asked here
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if c.session != nil {
		fresh, err := d.endpoint.sessions.Use(c.request.Context(), c.session, c.msg.ID)
		switch {
		case err != nil:
			d.endpoint.replies.sessionFailed(w, c, err)
			return
		case !fresh:
			// Not on the stream, where it could be taken for the answer to the first.
			sendError(w, http.StatusBadRequest, c.msg.ID, invalidRequest("the request id was used before in this session"))
			return
		}
	}
	if c.msg.Method == spec.MethodInitialize {
		d.initialize(w, c)
		return
	}
	if c.session == nil && d.endpoint.methods[c.msg.Method].session {
		sendError(w, http.StatusBadRequest, c.msg.ID, invalidRequest("this needs a session: open a stream, and send its Mcp-Session-Id"))
		return
	}
	c.request = c.request.Clone(c.request.Context())
	c.request.Header.Set("Accept", "application/json") // the form of the answer is settled in replay
	d.endpoint.dispatch(w, c)
}

// part serves a message of a batch.
func (d dialect) part(w http.ResponseWriter, c *call) {
	if c.msg.Kind == jsonrpc.Request && c.msg.Method == spec.MethodInitialize {
		sendError(w, http.StatusOK, c.msg.ID, invalidRequest("initialize cannot be part of a batch"))
		return
	}
	d.call(w, c)
}

// initialize serves initialize: it begins a session, or changes one that
// began with a stream what the client can do.
func (d dialect) initialize(w http.ResponseWriter, c *call) {
	began := c.session == nil
	d.endpoint.session.initialize(w, c)
	if began && c.session != nil {
		_, err := d.endpoint.sessions.Use(c.request.Context(), c.session, c.msg.ID)
		if err != nil {
			d.endpoint.faults.log(c.request.Context(), "request id not recorded", err)
		}
	}
}

// listsStream reports whether the client asks for its answer as an event stream.
// Unlike [accepts] it takes no wildcard for that: many clients send one without
// thinking of streams.
func listsStream(h http.Header) bool {
	for t := range mediaTypes(h["Accept"]) {
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
		body = appendResponses(nil, body, nil)
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
