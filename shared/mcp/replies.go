package mcp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// replies writes the responses of methods.
type replies struct {
	faults   faults
	catalogs catalogs
	metadata string // see [Options.ResourceMetadata]
	server   []byte // the _meta member that stands in every result of the stateless revisions, encoded once
	memory   *quota.Share
}

// newReplies returns the replies of a server whose name and version are the JSON object server.
func newReplies(server json.RawMessage, f faults, cs catalogs, metadata string) *replies {
	return &replies{
		faults: f, catalogs: cs, metadata: metadata, server: append([]byte(`"`+spec.MetaServer+`":`), server...),
		memory: quota.NewShare("answerBytes", "answers that clients have not read", answerBytes),
	}
}

const (
	// answerBytes is the memory for larger answers until their clients have read them.
	answerBytes = 128 << 20
	// smallAnswer is the size up to which answers are not counted.
	smallAnswer = 16 << 10
	// answerTime is how long a client may take to read an answer.
	answerTime = time.Minute
)

// hold takes the memory for a result and its encoded form. The caller releases it when the answer has been written.
func (r *replies) hold(c *call, res result) (release func(), err error) {
	size := len(res.meta)
	for _, piece := range res.members {
		size += len(piece)
	}
	return r.holdBytes(c, 2*size)
}

// holdBytes takes the memory for an answer. The caller releases it when the answer has been written.
func (r *replies) holdBytes(c *call, size int) (release func(), err error) {
	if size <= smallAnswer {
		return func() {}, nil
	}
	return r.memory.Take(c.principal, size)
}

// appendResult appends the response of a method in the form of its revision.
func (r *replies) appendResult(b []byte, c *call, res result) []byte {
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = append(b, c.msg.ID...)
	b = append(b, `,"result":{`...)
	start := len(b)
	comma := func() {
		if len(b) > start {
			b = append(b, ',')
		}
	}
	if c.version.Stateless() {
		b = append(b, `"resultType":"complete"`...)
	}
	for i, piece := range res.members {
		if i == 0 {
			comma()
		}
		b = append(b, piece...)
	}
	if c.version.Stateless() && res.cache != nil {
		b = append(b, `,"ttlMs":`...)
		b = strconv.AppendInt(b, res.cache.ttl, 10)
		b = append(b, `,"cacheScope":"`...)
		b = append(b, res.cache.scope...)
		b = append(b, '"')
	}
	switch {
	case c.version.Stateless():
		b = append(b, `,"_meta":{`...)
		b = append(b, r.server...)
		if len(res.meta) > 0 {
			b = append(b, ',')
			b = append(b, res.meta...)
		}
		b = append(b, '}')
	case len(res.meta) > 0:
		comma()
		b = append(b, `"_meta":{`...)
		b = append(b, res.meta...)
		b = append(b, '}')
	}
	return append(b, `}}`...)
}

// fault answers a request that failed in its method. A lack of credentials or scopes is said by
// HTTP as well, so that the client can ask for them (RFC 6750, section 3.1).
func (r *replies) fault(w http.ResponseWriter, c *call, m method, err error) {
	if missingScopes(err) {
		err = r.allMissing(c, m, err)
	}
	rpc := r.faults.translate(c.request.Context(), err, c.version, c.profile)
	code := http.StatusOK
	switch {
	case fault.Is(err, fault.Unauthenticated):
		code = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", auth.Challenge(auth.ErrNoToken, r.metadata, m.scope))
	case fault.Is(err, fault.Forbidden) && missingScopes(err):
		code = http.StatusForbidden
		w.Header().Set("WWW-Authenticate", auth.Challenge(err, r.metadata))
	case c.version.Stateless():
		code = status(rpc)
	}
	sendError(w, code, c.msg.ID, rpc)
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// send writes a JSON body that build appends to an empty buffer.
func send(w http.ResponseWriter, status int, build func([]byte) []byte) {
	buf := buffers.Get().(*[]byte)
	*buf = build((*buf)[:0])
	h := w.Header()
	h["Content-Type"] = jsonType
	h.Set("Content-Length", strconv.Itoa(len(*buf)))
	w.WriteHeader(status)
	if len(*buf) > smallAnswer {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime)) // where there are deadlines
	}
	_, _ = w.Write(*buf) // a client that is gone is no fault
	if cap(*buf) <= 1<<20 {
		buffers.Put(buf)
	}
}

var jsonType = []string{"application/json"}

// sendError answers with a JSON-RPC error.
func sendError(w http.ResponseWriter, status int, id []byte, rpc *jsonrpc.Error) {
	send(w, status, func(b []byte) []byte { return jsonrpc.AppendError(b, id, rpc) })
}

// sessionFailed answers a request whose session could not be had. A 404 has no
// JSON-RPC body: clients take the status alone as the sign to initialize again.
func (r *replies) sessionFailed(w http.ResponseWriter, c *call, err error) {
	if errors.Is(err, session.ErrNone) {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	rpc := r.faults.translate(c.request.Context(), err, c.version, c.profile)
	w.Header().Set("Retry-After", "1")
	sendError(w, http.StatusServiceUnavailable, c.msg.ID, rpc)
}

// Unreachable answers a forwarded request whose service cannot be reached.
func Unreachable(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "1")
	sendError(w, http.StatusServiceUnavailable, id, &jsonrpc.Error{Code: codeUnavailable, Message: "the service cannot be reached now"})
}
