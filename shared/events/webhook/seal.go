package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"

	"github.com/tink-crypto/tink-go/v2/hybrid"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Stored secrets are sealed with HPKE (RFC 9180: DHKEM X25519, HKDF-SHA256, AES-256-GCM). The process that registers subscriptions has the
// public keyset and can only seal. The process that sends webhooks has the private keyset and can also open. Keysets have Tink's binary
// form, about 150 bytes per private key.

// Binding identifies the subscription and the target to which a sealed secret belongs. A sealed secret that was copied to another
// workspace, subscription or target cannot be opened.
type Binding struct{ Workspace, Subscription, Target string }

// encode returns HPKE's info parameter. Each part is preceded by its length, so that different bindings have different bytes.
func (b Binding) encode() []byte {
	const label = "mcpevents webhook secret 1"
	out := make([]byte, 0, len(label)+len(b.Workspace)+len(b.Subscription)+len(b.Target)+3*binary.MaxVarintLen32)
	out = append(out, label...)
	for _, part := range [...]string{b.Workspace, b.Subscription, b.Target} {
		out = binary.AppendUvarint(out, uint64(len(part)))
		out = append(out, part...)
	}
	return out
}

// GenerateKeyset returns a new keyset. The private keyset is not encrypted: the caller must protect it.
func GenerateKeyset() (private, public []byte, err error) {
	h, err := keyset.NewHandle(hybrid.DHKEM_X25519_HKDF_SHA256_HKDF_SHA256_AES_256_GCM_Key_Template())
	if err != nil {
		return nil, nil, fault.Wrap(fault.Internal, err, "generate a sealing key")
	}
	return writeKeysets(h)
}

// AddKey adds a key to a private keyset, as the first step of a key rotation. The key is not used for sealing yet. When every sender has
// the key, call [PromoteKey].
func AddKey(private []byte) ([]byte, error) {
	out, _, err := changeKeys(private, "add a sealing key", func(m *keyset.Manager) error {
		_, err := m.Add(hybrid.DHKEM_X25519_HKDF_SHA256_HKDF_SHA256_AES_256_GCM_Key_Template())
		return err
	})
	return out, err
}

// PromoteKey makes the newest key of a keyset seal new secrets, as the second step of a key rotation. Older keys can still open secrets.
func PromoteKey(private []byte) (newPrivate, public []byte, err error) {
	return changeKeys(private, "promote a sealing key", func(m *keyset.Manager) error {
		h, err := m.Handle()
		if err != nil {
			return err
		}
		newest, err := h.Entry(h.Len() - 1) // keys are in the order in which they were added
		if err != nil {
			return err
		}
		return m.SetPrimary(newest.KeyID())
	})
}

// DropKeys removes unused keys that are older than the sealing key. The function inUse reports whether a stored secret begins with the
// given prefix, which is different for each key. A removed key cannot be restored, so make sure that no process still seals with it.
func DropKeys(private []byte, inUse func(prefix []byte) (bool, error)) (newPrivate, public []byte, dropped int, err error) {
	var failed error
	newPrivate, public, err = changeKeys(private, "remove sealing keys", func(m *keyset.Manager) error {
		h, err := m.Handle()
		if err != nil {
			return err
		}
		for i := range h.Len() {
			key, err := h.Entry(i) // keys are in the order in which they were added
			if err != nil || key.IsPrimary() {
				return err
			}
			used, err := inUse(prefixOf(key.KeyID()))
			if err != nil {
				failed = err
				return err
			}
			if used {
				continue
			}
			if err := m.Delete(key.KeyID()); err != nil {
				return err
			}
			dropped++
		}
		return nil
	})
	if failed != nil {
		err = failed
	}
	return newPrivate, public, dropped, err
}

// prefixOf returns the prefix that Tink puts before data sealed with a key: a version byte and the key's id.
func prefixOf(id uint32) []byte { return binary.BigEndian.AppendUint32([]byte{1}, id) }

// changeKeys applies a change to a private keyset. The parameter what describes the change in errors.
func changeKeys(private []byte, what string, change func(*keyset.Manager) error) (newPrivate, public []byte, err error) {
	h, err := readPrivate(private)
	if err != nil {
		return nil, nil, err
	}
	m := keyset.NewManagerFromHandle(h)
	if err = change(m); err == nil {
		h, err = m.Handle()
	}
	if err != nil {
		return nil, nil, fault.Wrap(fault.Internal, err, "%s", what)
	}
	return writeKeysets(h)
}

// PublicKeyset returns the public part of a private keyset.
func PublicKeyset(private []byte) ([]byte, error) {
	h, err := readPrivate(private)
	if err != nil {
		return nil, err
	}
	_, public, err := writeKeysets(h)
	return public, err
}

func readPrivate(private []byte) (*keyset.Handle, error) {
	h, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(private)))
	if err != nil {
		return nil, fault.New(fault.Internal, "read the private sealing keyset: not a keyset") // omit the cause, which may contain parts of the keyset
	}
	return h, nil
}

func writeKeysets(h *keyset.Handle) (private, public []byte, err error) {
	var priv, pub bytes.Buffer
	if err := insecurecleartextkeyset.Write(h, keyset.NewBinaryWriter(&priv)); err != nil {
		return nil, nil, fault.New(fault.Internal, "write the private sealing keyset")
	}
	p, err := h.Public()
	if err != nil {
		return nil, nil, fault.Wrap(fault.Internal, err, "derive the public sealing keyset")
	}
	if err := p.WriteWithNoSecrets(keyset.NewBinaryWriter(&pub)); err != nil {
		return nil, nil, fault.Wrap(fault.Internal, err, "write the public sealing keyset")
	}
	return priv.Bytes(), pub.Bytes(), nil
}

// Sealer seals secrets for storage. It cannot open them. It is safe for concurrent use.
type Sealer struct {
	enc tink.HybridEncrypt
	key []byte
}

// NewSealer returns a Sealer that uses a public keyset.
func NewSealer(public []byte) (*Sealer, error) {
	h, err := keyset.ReadWithNoSecrets(keyset.NewBinaryReader(bytes.NewReader(public)))
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "read the public sealing keyset")
	}
	enc, err := hybrid.NewHybridEncrypt(h)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "use the public sealing keyset")
	}
	primary, err := h.Primary()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "use the public sealing keyset")
	}
	return &Sealer{enc: enc, key: prefixOf(primary.KeyID())}, nil
}

// Key returns the prefix that all secrets sealed by the Sealer have. It identifies the Sealer's key.
func (s *Sealer) Key() []byte { return s.key }

// SealAgain opens a secret with the Opener o and seals it with the Sealer's key. It returns nil if the secret is already sealed with this
// key.
func (s *Sealer) SealAgain(ctx context.Context, sealed []byte, b Binding, o *Opener) ([]byte, error) {
	if bytes.HasPrefix(sealed, s.key) {
		return nil, nil
	}
	secret, err := o.Open(ctx, sealed, b)
	if err != nil {
		return nil, err
	}
	return s.Seal(ctx, secret, b)
}

// Seal encrypts a secret for a subscription and its target. The result is 53 bytes longer than the secret.
func (s *Sealer) Seal(_ context.Context, secret []byte, b Binding) ([]byte, error) {
	sealed, err := s.enc.Encrypt(secret, b.encode())
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "seal a secret")
	}
	return sealed, nil
}

// openCache is the maximum number of opened secrets in memory, which use 12 MB if each has 64 bytes. They are kept because opening a
// secret takes a hundred times as long as signing with it.
const openCache = 65_536

// Opener opens secrets that a [Sealer] of the same keyset sealed. It is safe for concurrent use.
type Opener struct {
	dec    tink.HybridDecrypt
	opened *bounded.Map[[sha256.Size]byte, []byte]
}

// NewOpener returns an Opener for a private keyset in Tink's binary format. The keyset must not be encrypted.
func NewOpener(private []byte) (*Opener, error) {
	h, err := readPrivate(private)
	if err != nil {
		return nil, err
	}
	dec, err := hybrid.NewHybridDecrypt(h)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "use the private sealing keyset")
	}
	return &Opener{dec: dec, opened: bounded.NewMap[[sha256.Size]byte, []byte](openCache)}, nil
}

// Open decrypts a secret that was sealed with the given binding. The result is cached, so it must not be changed.
func (o *Opener) Open(_ context.Context, sealed []byte, b Binding) ([]byte, error) {
	info := b.encode()
	h := sha256.New()
	h.Write(binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), uint64(len(sealed))))
	h.Write(sealed)
	h.Write(info)
	var key [sha256.Size]byte
	h.Sum(key[:0])
	if secret, ok := o.opened.Get(key); ok {
		return secret, nil
	}
	secret, err := o.dec.Decrypt(sealed, info)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "open the secret of %s", b.Subscription)
	}
	o.opened.Put(key, secret)
	return secret, nil
}
