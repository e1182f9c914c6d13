package opaque

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// NewCipher returns an AES-256-GCM cipher for one purpose, for example "mcpevents gateway request state". It derives the cipher's key
// from the deployment's key and the purpose, so that a text that was encrypted for one purpose cannot be decrypted for another. The
// cipher adds a random nonce to each text.
func NewCipher(key []byte, purpose string) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, purpose, 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive a key for %s", purpose)
	}
	block, _ := aes.NewCipher(derived) // the key has 32 bytes
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return aead, fault.Wrap(fault.Internal, err, "derive a key for %s", purpose)
}
