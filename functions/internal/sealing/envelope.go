package sealing

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// maxDirect is the maximum number of bytes that KMS encrypts. Each rotation adds about 150 bytes to a keyset, so it
// becomes larger than that with the 26th rotation. A larger keyset is encrypted with a data key, and KMS encrypts the
// data key. A smaller one is wrapped directly, so that the previous version of the functions can still read it.
const maxDirect = 4096

// envelopeMark is the prefix of a keyset that is encrypted with a data key. KMS ciphertexts do not begin with it. It
// is followed by the length of the wrapped data key in two bytes, the wrapped data key, and the keyset in
// AES-256-GCM.
var envelopeMark = []byte("mcpevents keyset 1\n")

func wrap(ctx context.Context, w Wrapper, keyset []byte) ([]byte, error) {
	if len(keyset) <= maxDirect {
		return w.Wrap(ctx, keyset)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	wrapped, err := w.Wrap(ctx, key)
	if err != nil {
		return nil, err
	}
	sealer, err := dataKey(key)
	if err != nil {
		return nil, err
	}
	out := binary.BigEndian.AppendUint16(bytes.Clone(envelopeMark), uint16(len(wrapped)))
	return sealer.Seal(append(out, wrapped...), nil, keyset, envelopeMark), nil
}

func unwrap(ctx context.Context, w Wrapper, stored []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(stored, envelopeMark)
	if !ok {
		return w.Unwrap(ctx, stored)
	}
	if len(rest) < 2 || len(rest)-2 < int(binary.BigEndian.Uint16(rest)) {
		return nil, fault.New(fault.Internal, "the stored private keyset is cut off")
	}
	n := int(binary.BigEndian.Uint16(rest))
	key, err := w.Unwrap(ctx, rest[2:2+n])
	if err != nil {
		return nil, err
	}
	sealer, err := dataKey(key)
	if err != nil {
		return nil, err
	}
	keyset, err := sealer.Open(nil, nil, rest[2+n:], envelopeMark)
	if err != nil {
		return nil, fault.New(fault.Internal, "the stored private keyset was changed")
	}
	return keyset, nil
}

func dataKey(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fault.New(fault.Internal, "the data key of the private keyset has %d bytes, want 32", len(key))
	}
	sealer, err := cipher.NewGCMWithRandomNonce(block)
	return sealer, fault.Wrap(fault.Internal, err, "use the data key of the private keyset")
}
