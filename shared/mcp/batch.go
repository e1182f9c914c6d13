package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
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

// batch serves an array of messages, which only 2025-03-26 allows.
func (e *Endpoint) batch(w http.ResponseWriter, c *method.Call, parts []json.RawMessage) {
	stateless := spec.Version(c.Request.Header.Get(spec.HeaderVersion)).Stateless()
	if !stateless && !e.enterSession(w, c) {
		return
	}
	if stateless || c.Version != spec.V20250326 {
		method.SendError(w, http.StatusBadRequest, nil, method.InvalidRequest("this revision has no batches"))
		return
	}
	defer c.Detach(method.DetachedFor)()
	c.JoinBatch()
	c.Request = c.Request.Clone(c.Request.Context())
	c.Request.Header.Set("Accept", "application/json") // parts of an array cannot be streams
	e.serveParts(w, c, parts, func(w http.ResponseWriter, c *method.Call) {
		switch {
		case c.Msg.Kind != jsonrpc.Request:
			e.accept(w, c)
		case c.Msg.Method == spec.MethodInitialize:
			method.SendError(w, http.StatusOK, c.Msg.ID, method.UnknownMethod(c.Msg.Method))
		default:
			e.dispatch(w, c)
		}
	})
}

// serveParts serves the messages of a batch, and answers with the responses in the same order.
func (e *Endpoint) serveParts(w http.ResponseWriter, c *method.Call, parts []json.RawMessage, serve func(http.ResponseWriter, *method.Call)) {
	if len(parts) > maxBatch {
		method.SendError(w, http.StatusBadRequest, nil, method.InvalidRequest("a batch has at most "+strconv.Itoa(maxBatch)+" messages"))
		return
	}
	var answers [][]byte
	size := 0
	for _, raw := range parts {
		one, kept := *c, httpjson.NewRecorder()
		msg, bad := jsonrpc.Decode(raw)
		one.Msg, one.Meta, one.Body = msg, jsonrpc.Member(msg.Params, "_meta"), msg.Raw
		joinTrace(&one)
		switch {
		case bad != nil:
			method.SendError(kept, http.StatusBadRequest, msg.ID, bad)
		case size > maxBatchBytes && msg.Kind == jsonrpc.Request:
			full := fault.New(fault.Exhausted, "the responses of the batch have more than %d bytes; send this request again", maxBatchBytes).AtLimit("batchBytes", maxBatchBytes)
			method.SendError(kept, http.StatusOK, msg.ID, e.faults.Translate(c.Request.Context(), full, c.Version, ""))
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
	release, err := e.replies.HoldBytes(c, 2*size)
	if err != nil {
		method.SendError(w, http.StatusTooManyRequests, nil, e.faults.Translate(c.Request.Context(), err, c.Version, ""))
		return
	}
	defer release()
	method.Send(w, http.StatusOK, func(b []byte) []byte {
		b = append(append(b, '['), bytes.Join(answers, []byte(","))...)
		return append(b, ']')
	})
}
