package eventlog

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// Cursor is a position in one or more partitions.
type Cursor struct {
	// At is a time in microseconds since 1970. Every entry with a key up to it was sent.
	At int64
	// Sent holds the hashes of entries after At that were sent; at most [MaxSent].
	Sent []uint64
	// Places are positions of partitions that replace At there; at most [MaxPlaces].
	Places []Place
	// Given is when At was the end of the log, in the unit of At; 0 is unknown. A position in a quiet log does not become
	// too old, because everything after it was written after that time.
	Given int64
	// Last is when a poll last returned events, in the unit of At; 0 is unknown. It only decides how soon to poll again.
	Last int64
}

// Place is a position in one partition.
type Place struct {
	Partition uint64 // the hash of its name
	At        int64
}

// MaxPlaces is the number of partitions for which a cursor can have its own position.
const MaxPlaces = 16

// MaxSent is the number of entries after its position that a cursor can name. If there are more, a resume repeats some of
// them, but it never skips any.
const MaxSent = 64

// Sealer encodes cursors as opaque tokens and decodes them. A token is authenticated with a key of the deployment and bound to
// the workspace. Every instance refuses forged tokens and tokens of other workspaces.
type Sealer struct {
	key     []byte
	hashers sync.Pool // of HMACs with the key
}

// NewSealer returns a sealer. The key has at least 32 random bytes and is the same in all instances.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) < 32 {
		return nil, fault.New(fault.Internal, "the cursor key has %d bytes (allowed: at least 32)", len(key))
	}
	return &Sealer{key: slices.Clone(key)}, nil
}

// The versions of a token: 1 has At; 2 adds Last; 3 adds Given, then the number of places, and then the places. In each
// version, the hashes of Sent come last.
const (
	tokenVersion       = 1
	tokenVersionLast   = 2
	tokenVersionPlaces = 3

	placeSize = 16
	maxToken  = 1200 // the longest token has 1,080 characters

	macSize = 16
)

// Seal encodes a cursor.
func (s *Sealer) Seal(workspace string, c Cursor) string {
	sent := c.Sent[:min(len(c.Sent), MaxSent)] // a resume repeats the others
	b := make([]byte, 0, 17+8*len(sent)+macSize)
	b = append(b, tokenVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(c.At))
	if c.Last != 0 || c.Given != 0 || len(c.Places) > 0 {
		b[0] = tokenVersionLast
		b = binary.BigEndian.AppendUint64(b, uint64(c.Last))
	}
	if c.Given != 0 || len(c.Places) > 0 {
		b[0] = tokenVersionPlaces
		b = binary.BigEndian.AppendUint64(b, uint64(c.Given))
		b = append(b, byte(len(c.Places)))
		for _, p := range c.Places {
			b = binary.BigEndian.AppendUint64(b, p.Partition)
			b = binary.BigEndian.AppendUint64(b, uint64(p.At))
		}
	}
	for _, h := range sent {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	b = append(b, s.mac(workspace, b)...)
	return opaque.Encode(b)
}

// Open decodes a token. A token that this deployment did not seal for the workspace is a fault of kind Invalid.
func (s *Sealer) Open(workspace, token string) (Cursor, error) {
	bad := fault.New(fault.Invalid, "the cursor is not one of this server")
	if len(token) > maxToken {
		return Cursor{}, bad
	}
	b, err := opaque.Decode(token)
	if err != nil || len(b) < 9+macSize {
		return Cursor{}, bad
	}
	body, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	if !hmac.Equal(mac, s.mac(workspace, body)) {
		return Cursor{}, bad
	}
	c := Cursor{At: int64(binary.BigEndian.Uint64(body[1:9]))}
	rest := body[9:]
	if body[0] < tokenVersion || body[0] > tokenVersionPlaces {
		return Cursor{}, bad
	}
	if body[0] >= tokenVersionLast {
		if len(rest) < 8 {
			return Cursor{}, bad
		}
		c.Last, rest = int64(binary.BigEndian.Uint64(rest)), rest[8:]
	}
	if body[0] >= tokenVersionPlaces {
		if len(rest) < 9 || len(rest)-9 < placeSize*int(rest[8]) {
			return Cursor{}, bad
		}
		c.Given, rest = int64(binary.BigEndian.Uint64(rest)), rest[8:]
		n := int(rest[0])
		rest = rest[1:]
		for range n {
			c.Places = append(c.Places, Place{binary.BigEndian.Uint64(rest), int64(binary.BigEndian.Uint64(rest[8:]))})
			rest = rest[placeSize:]
		}
	}
	if len(rest)%8 != 0 {
		return Cursor{}, bad
	}
	for ; len(rest) > 0; rest = rest[8:] {
		c.Sent = append(c.Sent, binary.BigEndian.Uint64(rest))
	}
	return c, nil
}

func (s *Sealer) mac(workspace string, body []byte) []byte {
	return s.sum("cursor\x00"+workspace+"\x00", body)[:macSize]
}

// sum returns the keyed hash of the two texts. A stream needs one for each message, and most of the work is to make the hasher.
func (s *Sealer) sum(begin string, rest []byte) []byte {
	h, ok := s.hashers.Get().(hash.Hash)
	if !ok {
		h = hmac.New(sha256.New, s.key)
	}
	defer s.hashers.Put(h)
	h.Reset()
	h.Write([]byte(begin))
	h.Write(rest)
	return h.Sum(nil)
}

// From returns the position of a cursor in a partition.
func (s *Sealer) From(c Cursor, p Partition) int64 {
	if len(c.Places) > 0 {
		hash := s.place(p)
		for _, place := range c.Places {
			if place.Partition == hash {
				return place.At
			}
		}
	}
	return c.At
}

// PlaceOf returns the place for a position in a partition.
func (s *Sealer) PlaceOf(p Partition, at int64) Place { return Place{s.place(p), at} }

func (s *Sealer) place(p Partition) uint64 { return s.Hash("partition\x00" + p.name) }

// Hash returns the keyed hash by which a cursor names an entry.
func (s *Sealer) Hash(id string) uint64 {
	return binary.BigEndian.Uint64(s.sum("sent\x00", []byte(id)))
}
