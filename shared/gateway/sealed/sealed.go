// Package sealed encrypts values that the gateway gives to clients to keep: the state between the rounds of a call, and the ids of tasks.
// All instances of a deployment have the same key, so any instance can decrypt them.
package sealed

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// StateLife is how long a client may take to answer the questions of a call, because the state that the client keeps expires then.
const StateLife = time.Hour

// States encrypts the state that a client carries between the rounds of a request (2026-07-28, Multi Round-Trip Requests). To a backend,
// all clients of the gateway may look like one caller. So the gateway binds the state to the principal, the method, the name and the
// params, and another client cannot use it.
type States struct{ aead cipher.AEAD }

// NewStates returns States with a deployment's 32-byte key.
func NewStates(key []byte) (*States, error) {
	aead, err := opaque.NewCipher(key, "mcpevents gateway request state")
	return &States{aead}, err
}

// Seal encrypts a state for a client. Only [States.Open] with the same binding decrypts it, and only for [StateLife].
func (s *States) Seal(state, binding []byte) string {
	text := binary.BigEndian.AppendUint64(nil, uint64(time.Now().Add(StateLife).Unix()))
	return opaque.Encode(s.aead.Seal(nil, nil, append(text, state...), binding))
}

// Open reverses [States.Seal]. It returns a fault of kind Invalid if the state is forged or expired, or if it was sealed with another
// binding.
func (s *States) Open(sealed string, binding []byte) ([]byte, error) {
	bad := fault.New(fault.Invalid, "requestState belongs to another request or has expired")
	raw, err := opaque.Decode(sealed)
	if err != nil {
		return nil, bad
	}
	text, err := s.aead.Open(nil, nil, raw, binding)
	if err != nil || len(text) < 8 || time.Now().Unix() >= int64(binary.BigEndian.Uint64(text)) {
		return nil, bad
	}
	return text[8:], nil
}

// maxTask limits the length of a task id from a client, in bytes.
const maxTask = 2 << 10

// TaskIDs encrypts the backends' task ids for clients. Create it with [NewTaskIDs].
type TaskIDs struct {
	aead  cipher.AEAD
	nonce []byte // the key from which nonces are derived
}

// NewTaskIDs returns TaskIDs with a deployment's 32-byte key.
func NewTaskIDs(key []byte) (*TaskIDs, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "mcpevents gateway task ids", 64)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the keys of task ids")
	}
	block, err := aes.NewCipher(derived[:32])
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the keys of task ids")
	}
	aead, err := cipher.NewGCM(block)
	return &TaskIDs{aead, derived[32:]}, err
}

// bindTask encodes a principal for the encryption of a task id, so that the id is invalid for other principals.
func bindTask(p auth.Principal) []byte {
	b, _ := json.Marshal([]string{p.Workspace, p.ID}) // cannot fail: these are strings
	return b
}

// Seal returns our id for a backend's task. The parameter server is the backend's ServerID, and own is the task's id at the backend, as
// JSON. The nonce is a hash, so that a task always gets the same id and later messages can refer to it.
func (t *TaskIDs) Seal(p auth.Principal, server string, own json.RawMessage) string {
	text, binding := append([]byte(server+"\n"), own...), bindTask(p)
	h := hmac.New(sha256.New, t.nonce)
	h.Write(fmt.Appendf(nil, "%d ", len(binding)))
	h.Write(binding)
	h.Write(text)
	nonce := h.Sum(nil)[:t.aead.NonceSize()]
	return opaque.Encode(t.aead.Seal(nonce, nonce, text, binding))
}

// Open reverses [TaskIDs.Seal]. The result ok is false if the id was not made for the principal.
func (t *TaskIDs) Open(p auth.Principal, id string) (server string, own json.RawMessage, ok bool) {
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
