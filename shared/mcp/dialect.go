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

// The named-event dialect at /mcp/{workspace} serves the methods and sessions of the session-based revisions over an older
// transport, whose SSE events have names.
//
//	GET   event: lifecycle      streamOpened, ping while quiet, streamClosed
//	      event: notification   notifications
//	      event: response       answers to POSTs that carry the stream's Mcp-Session-Id
//	POST  event: response, or JSON, or 202 and the answer on the stream
//
// A session begins with the first GET or with initialize. A POST without a session is served on its own, without state from
// earlier POSTs.

// dialectVersion is the protocol revision of a session that began without initialize. MCP prescribes this revision for clients that name
// no version.
const dialectVersion = spec.V20250326

// dialect serves the named-event dialect, an older transport for MCP's methods. It uses the endpoint's sessions, methods and streams.
type dialect struct{ endpoint *Endpoint }

// NamedEvents returns the handler of the named-event dialect, for [Options.Dialect]. The code of the dialect's streams is in package
// streams.
func NamedEvents(e *Endpoint) Dialect { return dialect{e}.serve }

func (d dialect) serve(w http.ResponseWriter, c *method.Call, workspace string) {
	if !d.checkWorkspace(w, c, workspace) {
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

// checkWorkspace reports whether the caller belongs to the workspace and the workspace exists. Otherwise it answers with an error. A
// caller of another workspace always receives the same 404 without a look-up, so that even the response time does not show whether the
// workspace exists.
func (d dialect) checkWorkspace(w http.ResponseWriter, c *method.Call, workspace string) bool {
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

// post serves a POST. It keeps the answer in memory until the answer is complete, and then sends it on the session's open stream or as
// the response to the POST.
func (d dialect) post(w http.ResponseWriter, c *method.Call) {
	r, kept := c.Request, httpjson.NewRecorder()
	batch, ok := d.endpoint.receive(kept, c)
	if ok {
		defer c.Detach(method.DetachedFor)()
	}
	if ok && d.enter(kept, c) {
		if batch != nil {
			d.endpoint.serveParts(kept, c, batch, d.call)
		} else {
			d.call(kept, c)
		}
	}
	if !ok || c.Session == nil || listsStream(r.Header) || !d.respond(c, kept) {
		release, err := d.endpoint.replies.HoldBytes(c, kept.Body.Len())
		if err != nil {
			d.endpoint.replies.SendStatus(w, c, c.Msg.ID, err)
			return
		}
		defer release()
		replay(w, r, kept)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// enter loads the session that the header Mcp-Session-Id names. Without this header, it returns true and loads no session. If the session
// cannot be loaded, enter answers with an error and returns false.
func (d dialect) enter(w http.ResponseWriter, c *method.Call) bool {
	id := c.Request.Header.Get(spec.HeaderSession)
	return id == "" || d.endpoint.sessions == nil || d.endpoint.loadSession(w, c, id)
}

func (d dialect) call(w http.ResponseWriter, c *method.Call) {
	switch c.Msg.Kind {
	case jsonrpc.Notification:
		d.endpoint.accept(w, c)
		return
	case jsonrpc.Response: // ignored, because the dialect sends no requests to clients
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if c.Session != nil {
		fresh, err := d.endpoint.sessions.RecordRequestID(c.Request.Context(), c.Session, c.Msg.ID)
		switch {
		case err != nil:
			d.endpoint.replies.SessionFailed(w, c, err)
			return
		case !fresh:
			// An answer with status 400 is never sent on the session's stream (see respond). On the stream, the client could mistake this
			// error for the answer to the first request with the same id.
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
	c.Request.Header.Set("Accept", "application/json") // replay converts the JSON to events if the client wants them
	d.endpoint.dispatch(w, c)
}

// initialize serves the method initialize. It creates a session or, if the session began with a GET stream, updates the session with the
// revision and the extensions that the client names.
func (d dialect) initialize(w http.ResponseWriter, c *method.Call) {
	began := c.Session == nil
	d.endpoint.initialize(w, c)
	if began && c.Session != nil {
		_, err := d.endpoint.sessions.RecordRequestID(c.Request.Context(), c.Session, c.Msg.ID)
		if err != nil {
			d.endpoint.faults.LogError(c.Request.Context(), "request id not recorded", err)
		}
	}
}

// listsStream reports whether the Accept header lists text/event-stream. Unlike [method.Accepts] it ignores wildcards such as */*,
// because many clients send them by default.
func listsStream(h http.Header) bool {
	for t := range method.MediaTypes(h["Accept"]) {
		if strings.EqualFold(t, sse.ContentType) {
			return true
		}
	}
	return false
}

// replay sends the recorded answer as the response to the POST, in the form of SSE events if the client accepts them.
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
	_, _ = w.Write(body) // a disconnected client is not an error
}

// streamHeaders sets the headers of the dialect's event streams. It sets Connection only for HTTP/1.1, because HTTP/2 forbids that header
// (RFC 9113, section 8.2.2).
func streamHeaders(h http.Header, r *http.Request) {
	h.Set("Content-Type", sse.ContentType)
	h.Set("Cache-Control", "no-cache")
	if r.ProtoMajor == 1 && r.ProtoMinor == 1 {
		h.Set("Connection", "keep-alive")
	}
}

// get serves a GET: it opens the stream of the session that the request names. If the request names no session, get creates one.
func (d dialect) get(w http.ResponseWriter, c *method.Call) {
	d.endpoint.sessionStream(w, c, d.enter, func(ctx context.Context, last streams.Position) (*streams.Stream, error) {
		if c.Session == nil {
			var err error
			if c.Session, err = d.endpoint.createSession(ctx, c.Principal, session.Session{
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

// An answer to a POST reaches the session's stream through the event log, because the stream may be open at another instance of the
// server. The answer may contain secrets, for example a webhook's secret, so the log stores it encrypted. The key is derived from the
// session's id, and the store has only a hash of that id.

// maxResponse is the maximum size, in bytes, of an answer to a POST that is sent on the session's stream. Such an answer goes through the
// event log in Base64, and must fit into one item of the store ([store.MaxItem]). A larger answer is sent as the response to its POST.
const maxResponse = 256 << 10

// respond sends the recorded answer to a POST on the session's open stream. It returns false if the answer must be the response to the
// POST, for example because no stream is open.
func (d dialect) respond(c *method.Call, kept *httpjson.Recorder) bool {
	body := kept.Body.Bytes()
	if kept.Status != http.StatusOK || len(body) == 0 || len(body) > maxResponse || kept.Header().Get(spec.HeaderSession) != "" {
		return false
	}
	// Do not use the request's context, because it may have ended already. It lasts for [method.DetachedFor], and a call to a backend can
	// take longer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request.Context()), method.NoticeFor)
	defer cancel()
	open, err := d.endpoint.sessions.HasOpenStream(ctx, c.Session.Key)
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
