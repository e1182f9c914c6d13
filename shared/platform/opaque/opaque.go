// Package opaque encodes and decodes tokens that clients return unchanged, such as cursors and ids of dead letters and tasks.
// It also makes ciphers for tokens and stored values.
package opaque

import (
	"encoding/base64"
	"errors"
	"strings"
)

var errToken = errors.New("opaque: not unpadded base64url")

// Decode decodes a token. It rejects every text that [Encode] cannot return. For example, encoding/base64 ignores line breaks, so it
// would accept a changed token like the original one.
func Decode(token string) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || strings.ContainsAny(token, "\r\n") {
		return nil, errToken
	}
	return b, nil
}

// Encode encodes bytes as a token, which is their base64url text.
func Encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
