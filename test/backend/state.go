package backend

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// progress is the state of a call between its input rounds. The stateless server gives it to the client.
type progress struct {
	Tool    string               `json:"tool"`
	Answers mcp.InputResponseMap `json:"answers,omitempty"`
}

var errState = errors.New("the request state is not one that this server made for this tool")

// seal writes a progress and its HMAC.
func (f *fixtures) seal(p progress) (string, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(b) + "." + base64.RawURLEncoding.EncodeToString(f.mac(b)), nil
}

// open reverses seal.
func (f *fixtures) open(tool, state string) (p progress, err error) {
	body, mac, _ := strings.Cut(state, ".")
	b, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return p, errState
	}
	got, err := base64.RawURLEncoding.DecodeString(mac)
	if err != nil || !hmac.Equal(got, f.mac(b)) {
		return p, errState
	}
	if err := json.Unmarshal(b, &p); err != nil || p.Tool != tool {
		return p, errState
	}
	return p, nil
}

func (f *fixtures) mac(b []byte) []byte {
	h := hmac.New(sha256.New, f.key)
	h.Write(b)
	return h.Sum(nil)
}
