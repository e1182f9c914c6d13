// Package opaque decodes the tokens that clients hand back, such as cursors and ids of dead letters.
package opaque

import (
	"encoding/base64"
	"errors"
	"strings"
)

var errToken = errors.New("opaque: not unpadded base64url")

// Decode returns the bytes of a token in unpadded base64url. Only the text that [Encode] returns for these bytes decodes to them: the
// decoder of encoding/base64 ignores line breaks, so a changed token would otherwise pass for the original one.
func Decode(token string) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || strings.ContainsAny(token, "\r\n") {
		return nil, errToken
	}
	return b, nil
}

// Encode returns a token for bytes.
func Encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
