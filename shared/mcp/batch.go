package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/httpjson"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// maxBatch is the number of messages in one batch.
const maxBatch = 50

// batch serves an array of messages: part of 2025-03-26 and of no revision
// since.
func (e *Endpoint) batch(w http.ResponseWriter, c *call, parts []json.RawMessage) {
	refuse := func(text string) {
		sendError(w, http.StatusBadRequest, nil, &jsonrpc.Error{Code: jsonrpc.InvalidRequest, Message: text})
	}
	if mcpspec.Version(c.request.Header.Get(mcpspec.HeaderVersion)).Stateless() {
		refuse("this revision has no batches")
		return
	}
	if !e.enterSession(w, c) {
		return
	}
	switch {
	case c.version != mcpspec.V20250326:
		refuse("this revision has no batches")
		return
	case len(parts) > maxBatch:
		refuse("a batch has at most " + strconv.Itoa(maxBatch) + " messages")
		return
	}
	defer c.detach(e.shut)()
	c.request = c.request.Clone(c.request.Context())
	c.request.Header.Set("Accept", "application/json") // parts of an array cannot be streams
	var answers []json.RawMessage
	for _, raw := range parts {
		one := *c
		msg, bad := jsonrpc.Decode(raw)
		one.msg, one.meta = msg, jsonrpc.Member(msg.Params, "_meta")
		one.inTrace()
		if bad != nil {
			answers = append(answers, jsonrpc.AppendError(nil, msg.ID, bad))
		} else if msg.Kind == jsonrpc.Request {
			answers = append(answers, e.answerOne(&one))
		} else if err := e.takeOne(&one); err != nil {
			answers = append(answers, jsonrpc.AppendError(nil, nil, e.faults.translate(c.request.Context(), err, c.version, coreMethods)))
		}
	}
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	sendBatch(w, answers)
}

func sendBatch(w http.ResponseWriter, answers []json.RawMessage) {
	send(w, http.StatusOK, func(b []byte) []byte {
		b = append(b, '[')
		b = append(b, bytes.Join(rawBytes(answers), []byte(","))...)
		return append(b, ']')
	})
}

func rawBytes(raw []json.RawMessage) [][]byte {
	out := make([][]byte, len(raw))
	for i, r := range raw {
		out[i] = r
	}
	return out
}

// answerOne serves a request of a batch and returns its response.
func (e *Endpoint) answerOne(c *call) json.RawMessage {
	if c.msg.Method == mcpspec.MethodInitialize {
		return jsonrpc.AppendError(nil, c.msg.ID, unknownMethod(c.msg.Method))
	}
	kept := httpjson.NewRecorder()
	c.body = c.msg.Raw
	e.dispatch(kept, c)
	return bytes.TrimSpace(kept.Body.Bytes())
}

// takeOne serves what needs no response in a batch.
func (e *Endpoint) takeOne(c *call) error {
	if e.conversations.handles(c) {
		return e.conversations.handle(c)
	}
	return e.calls.handle(c)
}
