package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const (
	// maxBatch is the number of messages in one batch.
	maxBatch = 50
	// maxBatchBytes is the size of the responses after which the other requests of a batch are refused.
	maxBatchBytes = 2 << 20
)

// batch serves an array of messages: part of 2025-03-26 and of no revision
// since.
func (e *Endpoint) batch(w http.ResponseWriter, c *call, parts []json.RawMessage) {
	stateless := spec.Version(c.request.Header.Get(spec.HeaderVersion)).Stateless()
	if !stateless && !e.enterSession(w, c) {
		return
	}
	if stateless || c.version != spec.V20250326 {
		sendError(w, http.StatusBadRequest, nil, invalidRequest("this revision has no batches"))
		return
	}
	defer c.detach(e.shut, detachedFor)()
	c.attached = nil // all parts together have the time of one request
	c.request = c.request.Clone(c.request.Context())
	c.request.Header.Set("Accept", "application/json") // parts of an array cannot be streams
	e.serveParts(w, c, parts, func(w http.ResponseWriter, c *call) {
		switch {
		case c.msg.Kind != jsonrpc.Request:
			e.takeIn(w, c)
		case c.msg.Method == spec.MethodInitialize:
			sendError(w, http.StatusOK, c.msg.ID, unknownMethod(c.msg.Method))
		default:
			e.dispatch(w, c)
		}
	})
}

// serveParts serves each message of a batch, and answers with the responses in their order.
func (e *Endpoint) serveParts(w http.ResponseWriter, c *call, parts []json.RawMessage, serve func(http.ResponseWriter, *call)) {
	if len(parts) > maxBatch {
		sendError(w, http.StatusBadRequest, nil, invalidRequest("a batch has at most "+strconv.Itoa(maxBatch)+" messages"))
		return
	}
	var answers [][]byte
	size := 0
	for _, raw := range parts {
		one, kept := *c, httpjson.NewRecorder()
		msg, bad := jsonrpc.Decode(raw)
		one.msg, one.meta, one.body = msg, jsonrpc.Member(msg.Params, "_meta"), msg.Raw
		one.inTrace()
		switch {
		case bad != nil:
			sendError(kept, http.StatusBadRequest, msg.ID, bad)
		case size > maxBatchBytes && msg.Kind == jsonrpc.Request:
			full := fault.New(fault.Exhausted, "the responses of the batch have more than %d bytes; send this request again", maxBatchBytes).AtLimit("batchBytes", maxBatchBytes)
			sendError(kept, http.StatusOK, msg.ID, e.faults.translate(c.request.Context(), full, c.version, ""))
		default:
			serve(kept, &one)
		}
		if body := kept.Body.Bytes(); json.Valid(body) {
			answers = append(answers, body)
			size += len(body)
		}
	}
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	release, err := e.replies.holdBytes(c, 2*size)
	if err != nil {
		sendError(w, http.StatusTooManyRequests, nil, e.faults.translate(c.request.Context(), err, c.version, ""))
		return
	}
	defer release()
	send(w, http.StatusOK, func(b []byte) []byte {
		b = append(append(b, '['), bytes.Join(answers, []byte(","))...)
		return append(b, ']')
	})
}
