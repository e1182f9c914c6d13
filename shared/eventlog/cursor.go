package eventlog

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"

	"mcpevents/shared/fault"
	"mcpevents/shared/store"
)

func isConflict(err error) bool { return errors.Is(err, store.ErrConflict) }

// Cursor is a position in any number of partitions.
type Cursor struct {
	// At is a time in microseconds since 1970: everything with a key up to it
	// has been sent.
	At int64
	// Sent holds hashes of what was sent beyond At; at most [MaxSent].
	Sent []uint64
	// Last is when a poll last brought something, in the measure of At; 0 is not
	// known. It only tells how soon to poll again.
	Last int64
}

// MaxSent is how many entries beyond its position a cursor can name. With more,
// a resume repeats some; it never skips any.
const MaxSent = 64

// Sealer turns cursors into opaque tokens and back. A token is authenticated
// with a key of the deployment and bound to the workspace, so that a forged or
// foreign one is refused at every instance.
type Sealer struct{ key []byte }

// NewSealer makes a sealer; key is at least 32 random bytes, the same in all instances.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) < 32 {
		return nil, fault.New(fault.Internal, "the cursor key has %d bytes, 32 are needed", len(key))
	}
	return &Sealer{key: slices.Clone(key)}, nil
}

// The versions of a token: the position, and in the second Last behind it.
const (
	tokenVersion     = 1
	tokenVersionLast = 2

	macSize = 16
)

// Seal encodes a cursor.
func (s *Sealer) Seal(workspace string, c Cursor) string {
	sent := c.Sent[:min(len(c.Sent), MaxSent)] // the resume repeats the others
	b := make([]byte, 0, 17+8*len(sent)+macSize)
	b = append(b, tokenVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(c.At))
	if c.Last != 0 {
		b[0] = tokenVersionLast
		b = binary.BigEndian.AppendUint64(b, uint64(c.Last))
	}
	for _, h := range sent {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	b = append(b, s.mac(workspace, b)...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// Open decodes a token; one that this deployment did not seal for the workspace
// is a fault of kind Invalid.
func (s *Sealer) Open(workspace, token string) (Cursor, error) {
	bad := fault.New(fault.Invalid, "the cursor is not one of this server")
	if len(token) > 1024 {
		return Cursor{}, bad
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) < 9+macSize || (len(b)-9-macSize)%8 != 0 {
		return Cursor{}, bad
	}
	body, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	if !hmac.Equal(mac, s.mac(workspace, body)) {
		return Cursor{}, bad
	}
	c := Cursor{At: int64(binary.BigEndian.Uint64(body[1:9]))}
	rest := body[9:]
	switch {
	case body[0] == tokenVersionLast && len(rest) > 0:
		c.Last, rest = int64(binary.BigEndian.Uint64(rest)), rest[8:]
	case body[0] != tokenVersion:
		return Cursor{}, bad
	}
	for ; len(rest) > 0; rest = rest[8:] {
		c.Sent = append(c.Sent, binary.BigEndian.Uint64(rest))
	}
	return c, nil
}

func (s *Sealer) mac(workspace string, body []byte) []byte {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte("cursor\x00" + workspace + "\x00"))
	h.Write(body)
	return h.Sum(nil)[:macSize]
}

// Hash is the keyed hash by which a cursor names an entry.
func (s *Sealer) Hash(id string) uint64 {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte("sent\x00" + id))
	return binary.BigEndian.Uint64(h.Sum(nil))
}
