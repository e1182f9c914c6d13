package gateway

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// stateLife is how long a client may take to return with its answers.
const stateLife = time.Hour

// states seals the state that a client carries between the rounds of a request (2026-07-28, Multi Round-Trip Requests). To a
// backend, all clients of the gateway may look like one caller. So the gateway binds a backend's state to the
// principal, the method, the name and the params.
type states struct{ aead cipher.AEAD }

func newStates(key []byte) (*states, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "mcpevents gateway request state", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of request states")
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of request states")
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &states{aead}, err
}

// bindState returns the data to which a state is bound. params is a digest of the request's params.
func bindState(p auth.Principal, method, backend, name, params string) []byte {
	b, _ := json.Marshal([]string{p.Workspace, p.ID, method, backend, name, params}) // strings
	return b
}

func (s *states) seal(state, belongs []byte, now time.Time) string {
	text := binary.BigEndian.AppendUint64(nil, uint64(now.Add(stateLife).Unix()))
	return opaque.Encode(s.aead.Seal(nil, nil, append(text, state...), belongs))
}

// open reverses seal. It returns a fault of kind Invalid if the state is forged, expired, or bound to something else.
func (s *states) open(sealed string, belongs []byte, now time.Time) ([]byte, error) {
	bad := fault.New(fault.Invalid, "requestState belongs to another request or has expired")
	raw, err := opaque.Decode(sealed)
	if err != nil {
		return nil, bad
	}
	text, err := s.aead.Open(nil, nil, raw, belongs)
	if err != nil || len(text) < 8 || now.Unix() >= int64(binary.BigEndian.Uint64(text)) {
		return nil, bad
	}
	return text[8:], nil
}
