package method

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

// Replies writes the responses of methods.
type Replies struct {
	faults   Faults
	catalogs Catalogs
	metadata string // URL of the protected resource metadata (RFC 9728), or empty
	server   []byte // the JSON member that names the server in _meta of the results of the stateless revisions
	memory   *quota.Share
}

// NewReplies returns the Replies of a server. The parameter server is the JSON object with its name and version. The parameter metadata
// is the URL of the protected resource metadata (RFC 9728), or empty.
func NewReplies(server json.RawMessage, f Faults, cs Catalogs, metadata string) *Replies {
	return &Replies{
		faults: f, catalogs: cs, metadata: metadata, server: append([]byte(`"`+spec.MetaServer+`":`), server...),
		memory: quota.NewShare("answerBytes", "answers that clients have not read", answerBytes),
	}
}

const (
	answerBytes = 128 << 20 // the limit of memory, in bytes, for all answers that clients have not read yet
	// smallAnswer is the largest size, in bytes, of an answer without limits: it does not count toward answerBytes, and its client may
	// take longer than answerTime to read it.
	smallAnswer = 16 << 10
	answerTime  = time.Minute // how long a client may take to read an answer larger than smallAnswer
)

// hold calls [Replies.HoldBytes] with twice the size of a result, because the result and its encoded form are in memory together.
func (r *Replies) hold(c *Call, res Result) (release func(), err error) {
	size := len(res.Meta)
	for _, piece := range res.Members {
		size += len(piece)
	}
	return r.HoldBytes(c, 2*size)
}

// HoldBytes reserves size bytes of memory for an answer. It returns an error if the caller's unread answers would then need
// more than the caller's share of answerBytes (see [quota.Share]). The caller calls release when the answer has been written.
func (r *Replies) HoldBytes(c *Call, size int) (release func(), err error) {
	if size <= smallAnswer {
		return func() {}, nil
	}
	return r.memory.Take(c.Principal, size)
}

// AppendResult appends the JSON-RPC response with a method's result, in the form that the call's protocol revision requires.
func (r *Replies) AppendResult(b []byte, c *Call, res Result) []byte {
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = append(b, c.Msg.ID...)
	b = append(b, `,"result":{`...)
	start := len(b)
	comma := func() {
		if len(b) > start {
			b = append(b, ',')
		}
	}
	if c.Version.Stateless() {
		b = append(b, `"resultType":"complete"`...)
	}
	for i, piece := range res.Members {
		if i == 0 {
			comma()
		}
		b = append(b, piece...)
	}
	if c.Version.Stateless() && res.Cache != nil {
		b = append(b, `,"ttlMs":`...)
		b = strconv.AppendInt(b, res.Cache.TTL, 10)
		b = append(b, `,"cacheScope":"`...)
		b = append(b, res.Cache.Scope...)
		b = append(b, '"')
	}
	switch {
	case c.Version.Stateless():
		b = append(b, `,"_meta":{`...)
		b = append(b, r.server...)
		if len(res.Meta) > 0 {
			b = append(b, ',')
			b = append(b, res.Meta...)
		}
		b = append(b, '}')
	case len(res.Meta) > 0:
		comma()
		b = append(b, `"_meta":{`...)
		b = append(b, res.Meta...)
		b = append(b, '}')
	}
	return append(b, `}}`...)
}

// SendFault answers a request whose method failed. If the credentials or a scope are missing, it sets status 401 or 403 and a
// WWW-Authenticate header, which tells the client what to request (RFC 6750, section 3.1).
func (r *Replies) SendFault(w http.ResponseWriter, c *Call, m Row, err error) {
	var needed []string
	if auth.LacksScope(err) {
		needed = r.neededScopes(c, m)
		if all := c.Principal.Require(needed...); all != nil {
			err = all // all names every missing scope, and err may name only some of them
		}
	}
	rpc := r.faults.Translate(c.Request.Context(), err, c.Version, c.Profile)
	code := http.StatusOK
	switch {
	case fault.Is(err, fault.Unauthenticated):
		code = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", auth.Challenge(auth.WithScopePrefix(auth.ErrNoToken, c.Principal.ScopePrefix), r.metadata, m.Scope))
	case fault.Is(err, fault.Forbidden) && auth.LacksScope(err):
		code = http.StatusForbidden
		w.Header().Set("WWW-Authenticate", auth.Challenge(err, r.metadata, needed...))
	case c.Version.Stateless():
		code = httpStatus(rpc)
	}
	SendError(w, code, c.Msg.ID, rpc)
}

// SendStatus answers with an HTTP status that shows the error: 429 for a reached limit, 503 for an error of the server, and 400 for any
// other error. It is for notifications and responses, and for requests that failed before or after their method ran. It never answers
// 404, which would tell the client that its session has ended.
func (r *Replies) SendStatus(w http.ResponseWriter, c *Call, id json.RawMessage, err error) {
	status := http.StatusBadRequest
	_, refused := errors.AsType[*jsonrpc.Error](err)
	switch kind := fault.KindOf(err); {
	case refused:
	case kind == fault.Exhausted:
		status = http.StatusTooManyRequests
	case kind == fault.Internal || kind == fault.Unavailable:
		status = http.StatusServiceUnavailable
	}
	quota.SetRetryAfter(w.Header(), status, err)
	SendError(w, status, id, r.faults.Translate(c.Request.Context(), err, c.Version, c.Profile))
}

// Buffers is a pool of buffers for encoding messages. Do not put back buffers of more than 1 MiB, because the pool would keep
// that memory.
var Buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// Send answers with the status and a JSON body, which the function build appends to an empty buffer.
func Send(w http.ResponseWriter, status int, build func([]byte) []byte) {
	buf := Buffers.Get().(*[]byte)
	*buf = build((*buf)[:0])
	h := w.Header()
	h["Content-Type"] = jsonType
	h.Set("Content-Length", strconv.Itoa(len(*buf)))
	w.WriteHeader(status)
	if len(*buf) > smallAnswer {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime)) // fails if the connection has no deadlines
	}
	_, _ = w.Write(*buf) // a disconnected client is not an error
	if cap(*buf) <= 1<<20 {
		Buffers.Put(buf)
	}
}

var jsonType = []string{"application/json"}

// SendError answers with a JSON-RPC error.
func SendError(w http.ResponseWriter, status int, id []byte, rpc *jsonrpc.Error) {
	Send(w, status, func(b []byte) []byte { return jsonrpc.AppendError(b, id, rpc) })
}

// SessionFailed answers a request whose session cannot be loaded: with 404 if the session does not exist, and otherwise with 503. The 404
// has no JSON-RPC body, because clients initialize again when they see the status.
func (r *Replies) SessionFailed(w http.ResponseWriter, c *Call, err error) {
	if errors.Is(err, session.ErrNone) {
		http.Error(w, "session not found", http.StatusNotFound)
		return
	}
	rpc := r.faults.Translate(c.Request.Context(), err, c.Version, c.Profile)
	w.Header().Set("Retry-After", "1")
	SendError(w, http.StatusServiceUnavailable, c.Msg.ID, rpc)
}

// Unreachable answers a request that the endpoint cannot forward, because the service that should serve it cannot be reached.
func Unreachable(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "1")
	SendError(w, http.StatusServiceUnavailable, id, &jsonrpc.Error{Code: CodeUnavailable, Message: "the service cannot be reached now; try again"})
}
