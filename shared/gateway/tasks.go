package gateway

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A backend of 2026-07-28 may answer a tools/call with a task, about which the client then asks by the task's id (SEP-2663). To the
// backend, all clients of the gateway may look like one caller, and the id may be all that a caller needs. So the client gets
// another id, which is the backend and its id, sealed for the principal. Any instance can open it, and the store is not needed.
//
// The session-based revisions do not have the extension: "requests proceed as if the client had declared no task capability at all"
// (SEP-2663, Backward Compatibility). The tasks of 2025-11-25 are another protocol, which the gateway does not offer.

const (
	// maxOwnTask limits the length of a backend's task id, in bytes of JSON, and maxTask the length of our id.
	maxOwnTask = 1 << 10
	maxTask    = 2 << 10
)

var errNoTask = fault.New(fault.Invalid, "there is no task with this id")

// taskIDs seals the ids of tasks.
type taskIDs struct {
	aead  cipher.AEAD
	nonce []byte // the key from which nonces are derived
}

func newTaskIDs(key []byte) (*taskIDs, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "mcpevents gateway task ids", 64)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the keys of task ids")
	}
	block, err := aes.NewCipher(derived[:32])
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the keys of task ids")
	}
	aead, err := cipher.NewGCM(block)
	return &taskIDs{aead, derived[32:]}, err
}

// bindTask returns the data to which a task's id is bound.
func bindTask(p auth.Principal) []byte {
	b, _ := json.Marshal([]string{p.Workspace, p.ID}) // strings
	return b
}

// seal returns our id for the task to which the backend with the given [backends.Backend.ServerID] gave the id own, which is JSON. The
// nonce is a hash, so that a task always has the same id: messages may refer to it by its id.
func (t *taskIDs) seal(p auth.Principal, server string, own json.RawMessage) string {
	text, belongs := append([]byte(server+"\n"), own...), bindTask(p)
	h := hmac.New(sha256.New, t.nonce)
	h.Write(fmt.Appendf(nil, "%d ", len(belongs)))
	h.Write(belongs)
	h.Write(text)
	nonce := h.Sum(nil)[:t.aead.NonceSize()]
	return opaque.Encode(t.aead.Seal(nonce, nonce, text, belongs))
}

// open reverses seal. It reports false for an id that was not sealed for the principal.
func (t *taskIDs) open(p auth.Principal, id string) (server string, own json.RawMessage, ok bool) {
	raw, err := opaque.Decode(id)
	if err != nil || len(id) > maxTask || len(raw) < t.aead.NonceSize() {
		return "", nil, false
	}
	text, err := t.aead.Open(nil, raw[:t.aead.NonceSize()], raw[t.aead.NonceSize():], bindTask(p))
	if err != nil {
		return "", nil, false
	}
	name, own, ok := bytes.Cut(text, []byte("\n"))
	return string(name), own, ok
}

// findEntry returns the entry that a call names. For a task it also returns the backend's id of the task.
func (g *Gateway) findEntry(ctx context.Context, c api.Call) (backends.Entry, json.RawMessage, error) {
	if c.Kind != api.Tasks {
		e, err := g.Find(ctx, c.Client, c.Kind, c.Name)
		return e, nil, err
	}
	if !translate.DeclaresTasks(c.Capabilities) {
		return backends.Entry{}, nil, translate.MissingTasks()
	}
	v, own := g.findTask(ctx, c.Client, c.Name)
	if v == nil {
		return backends.Entry{}, nil, errNoTask
	}
	name, _ := jsonrpc.String(own)
	return backends.Entry{Entry: api.Entry{Name: c.Name, Backend: v.Backend().Name, Own: name}, View: v}, own, nil
}

// findTask returns the client's view of the backend that has the task, and the backend's id of the task.
func (g *Gateway) findTask(ctx context.Context, c api.Client, id string) (*backends.View, json.RawMessage) {
	server, own, ok := g.tasks.open(c.Principal, id)
	if !ok {
		return nil, nil
	}
	return g.FindView(ctx, c, server), own
}

// checkTaskID returns an error if a backend's task id cannot be used.
func checkTaskID(own json.RawMessage) error {
	text, ok := jsonrpc.String(own)
	if !ok || text == "" || len(own) > maxOwnTask {
		return fmt.Errorf("gateway: the task's id is not a string of 1 to %d bytes", maxOwnTask)
	}
	return nil
}

// adaptTask replaces the backend's id of a task in a response by our id. It refuses a task that the client cannot use.
func (x *exchange) adaptTask(m *upstream.Message) error {
	kind, _ := jsonrpc.String(jsonrpc.Member(m.Result, "resultType"))
	id := x.call.Name
	switch {
	case m.Result == nil:
		return nil
	case x.task != nil:
		if jsonrpc.Member(m.Result, "taskId") == nil {
			return nil // an acknowledgment
		}
	case kind != "task":
		return nil
	case x.call.Method != spec.MethodToolsCall:
		return x.callError(errors.New("gateway: the backend answers with a task, which the method does not allow"))
	case !x.call.Version.Stateless():
		e := translate.MissingTasks()
		e.Code = jsonrpc.InvalidRequest
		return e
	case !translate.DeclaresTasks(x.call.Capabilities):
		return translate.MissingTasks()
	default:
		own := jsonrpc.Member(m.Result, "taskId")
		if err := checkTaskID(own); err != nil {
			return x.callError(err)
		}
		id = x.gateway.tasks.seal(x.call.Principal, x.backend().ServerID(), own)
	}
	m.Result = jsonrpc.Replace(m.Result, "taskId", jsonrpc.Quote(id))
	m.Raw = jsonrpc.Replace(m.Raw, "result", m.Result)
	return nil
}

// relateTask replaces the backend's id of a task in _meta by our id. Without the extension there are no tasks, and the id is left alone.
func (x *exchange) relateTask(m upstream.Message) upstream.Message {
	if !bytes.Contains(m.Raw, []byte(spec.MetaRelatedTask)) || !x.with.Version.Stateless() || !x.call.Version.Stateless() ||
		!translate.DeclaresTasks(x.call.Capabilities) {
		return m
	}
	if m.Result != nil {
		m.Result = x.gateway.relateTask(x.call.Principal, x.backend(), m.Result)
		m.Raw = jsonrpc.Replace(m.Raw, "result", m.Result)
	} else if params := jsonrpc.Member(m.Raw, "params"); params != nil {
		m.Raw = jsonrpc.Replace(m.Raw, "params", x.gateway.relateTask(x.call.Principal, x.backend(), params))
	}
	return m
}

// relateTask returns a result or params with our id of the task that its _meta names.
func (g *Gateway) relateTask(p auth.Principal, b *backends.Backend, value json.RawMessage) json.RawMessage {
	meta := jsonrpc.Member(value, "_meta")
	related := jsonrpc.Member(meta, spec.MetaRelatedTask)
	own := jsonrpc.Member(related, "taskId")
	if checkTaskID(own) != nil {
		return value
	}
	related = jsonrpc.Replace(related, "taskId", jsonrpc.Quote(g.tasks.seal(p, b.ServerID(), own)))
	return jsonrpc.Replace(value, "_meta", jsonrpc.Replace(meta, spec.MetaRelatedTask, related))
}
