package conversation

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/url"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// MetaPrincipal is the key in _meta that tells a backend whose message it receives.
const MetaPrincipal = "io.github.mcp-events/principal"

// secrets holds the keys that are derived from the deployment's key.
type secrets struct {
	names []byte
	aead  cipher.AEAD
}

func newSecrets(key []byte) (*secrets, error) {
	names, err := hkdf.Key(sha256.New, key, nil, "mcpevents conversation principals", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of principals")
	}
	sealing, err := hkdf.Key(sha256.New, key, nil, "mcpevents conversation contexts", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of contexts")
	}
	block, _ := aes.NewCipher(sealing) // the key has 32 bytes
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &secrets{names, aead}, fault.Wrap(fault.Internal, err, "derive the key of contexts")
}

// nameFor returns the name of a principal for a provider. It is always the same for this provider and different for
// every other one. It does not reveal the principal unless the operator has allowed that.
func (s *Service) nameFor(p *provider, who auth.Principal) string {
	if p.plain {
		return url.PathEscape(who.ID) // a header does not allow other characters
	}
	text, _ := json.Marshal([]string{p.to, who.Workspace, who.ID}) // strings
	mac := hmac.New(sha256.New, s.secrets.names)
	mac.Write(text)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Seal encrypts a context for a principal's streams, so that it cannot be read from the store.
func (s *Service) Seal(who auth.Principal, text []byte) []byte {
	return s.secrets.aead.Seal(nil, nil, text, owner(who))
}

// Open decrypts the result of [Service.Seal].
func (s *Service) Open(who auth.Principal, sealed []byte) ([]byte, error) {
	text, err := s.secrets.aead.Open(nil, nil, sealed, owner(who))
	return text, fault.Wrap(fault.Internal, err, "open a context")
}

func owner(who auth.Principal) []byte {
	b, _ := json.Marshal([]string{who.Workspace, who.ID}) // strings
	return b
}
