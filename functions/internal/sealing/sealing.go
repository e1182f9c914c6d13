// Package sealing stores the keyset that seals (encrypts) webhook secrets. The public part is in the settings table, where the function
// register reads it. The private part is in its own table, where the function dispatch reads it, and is encrypted with KMS. Package
// shared/events/webhook explains sealing.
package sealing

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Only the Lambda function keys (functions/keys) may write these items, see template.yaml.
var (
	privateKey = store.Key{Table: store.Keys, Partition: "sealing", Sort: "private"}
	publicKey  = store.Key{Table: store.Settings, Partition: "sealing", Sort: "public"}
)

// Wrapper encrypts and decrypts at most [maxDirect] bytes, as KMS does.
type Wrapper interface {
	Wrap(ctx context.Context, clear []byte) ([]byte, error)
	Unwrap(ctx context.Context, wrapped []byte) ([]byte, error)
}

// Create creates the keys that seal (encrypt) webhook secrets, unless they exist: a public keyset, and a private keyset, which is encrypted
// with a KMS key. Several deployments may call it concurrently. If a crash left only the private keyset, Create adds the public one.
//
// Create returns an error if the existing keys cannot be used to open secrets. For example, the private keyset was encrypted with another
// KMS key, or it does not belong to the public one because only one of their tables was restored from a backup.
func Create(ctx context.Context, db store.DB, w Wrapper) error {
	// The public keyset is written last. So if it exists, the private keyset exists, too.
	had, err := db.Get(ctx, publicKey)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "look for the public keyset")
	}
	items, err := db.Get(ctx, privateKey)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "look for the private keyset")
	}
	switch {
	case items[0] == nil && had[0] != nil:
		return fault.New(fault.Invalid, "the settings table has public sealing keys, and the keys table has no private ones: KeysTableArn and SettingsTableArn must be tables of one deployment, restored to one time")
	case items[0] == nil:
		private, _, err := webhook.GenerateKeyset()
		if err != nil {
			return err
		}
		wrapped, err := wrap(ctx, w, private)
		if err != nil {
			return err
		}
		if err := writeOnce(ctx, db, store.Item{Key: privateKey, Value: wrapped, Version: 1}); err != nil {
			return err
		}
	}
	// The private keyset may be from another stack, whose tables this stack has adopted.
	private, version, err := private(ctx, db, w)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "open the private sealing keys with the KMS key of the stack (SealingKeyArn), which must be the one that wrapped those in the keys table (KeysTableArn)")
	}
	if had[0] == nil {
		public, err := webhook.PublicKeyset(private)
		if err != nil {
			return err
		}
		if err := writeOnce(ctx, db, store.Item{Key: publicKey, Value: public, Version: version}); err != nil {
			return err
		}
	}
	return checkPair(ctx, db, private)
}

func checkPair(ctx context.Context, db store.DB, private []byte) error {
	sealer, err := Public(ctx, db)
	if err != nil {
		return err
	}
	if err := checkOpens(ctx, private, sealer); err != nil {
		return fault.New(fault.Invalid, "the keys table cannot open secrets that are sealed with the public keys of the settings table: KeysTableArn and SettingsTableArn must be tables of one deployment, restored to one time")
	}
	return nil
}

func checkOpens(ctx context.Context, private []byte, s *webhook.Sealer) error {
	opener, err := webhook.NewOpener(private)
	if err != nil {
		return err
	}
	sealed, err := s.Seal(ctx, []byte("probe"), webhook.Binding{})
	if err != nil {
		return err
	}
	_, err = opener.Open(ctx, sealed, webhook.Binding{})
	return err
}

func writeOnce(ctx context.Context, db store.DB, item store.Item) error {
	err := db.Write(ctx, store.Put(item, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "write a key")
}

func private(ctx context.Context, db store.DB, w Wrapper) (keyset []byte, version int64, err error) {
	item, err := read(ctx, db, privateKey)
	if err != nil {
		return nil, 0, err
	}
	keyset, err = unwrap(ctx, w, item.Value)
	return keyset, item.Version, err
}

// Public returns a sealer, which encrypts webhook secrets, with the stored public keyset.
func Public(ctx context.Context, db store.DB) (*webhook.Sealer, error) {
	item, err := read(ctx, db, publicKey)
	if err != nil {
		return nil, err
	}
	return webhook.NewSealer(item.Value)
}

func read(ctx context.Context, db store.DB, key store.Key) (*store.Item, error) {
	items, err := db.Get(ctx, key)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read a key")
	}
	if items[0] == nil {
		return nil, fault.New(fault.Unavailable, "the key %s/%s does not exist yet", key.Partition, key.Sort)
	}
	return items[0], nil
}

// Step is a step of a key rotation that an operator may request.
type Step string

// A rotation has two steps. The step "add" adds a key with which processes can open secrets. The step "promote" makes the added key the
// one that seals secrets. The second step must come at least [reloadAfter] after the first.
const (
	stepAdd     Step = "add"
	stepPromote Step = "promote"
)

// Rotate performs one step of a key rotation. If two calls run at the same time, one of them returns an error of kind fault.Conflict.
func Rotate(ctx context.Context, db store.DB, w Wrapper, step Step) error {
	private, version, err := private(ctx, db, w)
	if err != nil {
		return err
	}
	had, err := db.Get(ctx, publicKey)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the public keyset")
	}
	var public []byte
	switch step {
	case stepAdd:
		private, err = webhook.AddKey(private)
	case stepPromote:
		private, public, err = webhook.PromoteKey(private)
	default:
		return fault.New(fault.Invalid, "a rotation has the steps add, promote and drop, not %q", step)
	}
	if err != nil {
		return err
	}
	wrapped, err := wrap(ctx, w, private)
	if err != nil {
		return err
	}
	if err := writePrivate(ctx, db, wrapped, version); err != nil || public == nil {
		return err
	}
	// If the process crashes before this write, the old key continues to seal secrets until the step is repeated. The write has a
	// condition, because another rotation may have written a newer public keyset meanwhile. Without the condition, an older key would
	// seal again.
	cond := store.Absent()
	if had[0] != nil {
		cond = store.VersionIs(had[0].Version)
	}
	err = db.Write(ctx, store.Put(store.Item{Key: publicKey, Value: public, Version: version + 1}, cond))
	if errors.Is(err, store.ErrConflict) {
		return errRotating
	}
	return fault.Wrap(fault.Unavailable, err, "write the public keyset")
}

var errRotating = fault.New(fault.Conflict, "another rotation is under way")

// writePrivate replaces the encrypted private keyset, and increments its version. The parameter version is the version that was read. If
// another process has replaced the keyset since, the error is of kind fault.Conflict.
func writePrivate(ctx context.Context, db store.DB, wrapped []byte, version int64) error {
	err := db.Write(ctx, store.Put(store.Item{Key: privateKey, Value: wrapped, Version: version + 1}, store.VersionIs(version)))
	if errors.Is(err, store.ErrConflict) {
		return errRotating
	}
	return fault.Wrap(fault.Unavailable, err, "write the private keyset")
}

// Sealer seals (encrypts) webhook secrets with the stored public keyset. It reads the keyset again when its copy is older than
// [reloadAfter], so that a long-running process follows a rotation. It is safe for concurrent use.
type Sealer struct {
	DB store.DB

	once   sync.Once
	public *refresh.Value[*webhook.Sealer]
}

// Seal implements targets.Sealer.
func (s *Sealer) Seal(ctx context.Context, secret []byte, b webhook.Binding) ([]byte, error) {
	s.once.Do(func() {
		s.public = refresh.New(refresh.Options{Name: "the public keyset", Fresh: reloadAfter}, func(ctx context.Context, _ *webhook.Sealer) (*webhook.Sealer, error) {
			return Public(ctx, s.DB)
		})
	})
	sealer, err := s.public.Get(ctx)
	if err != nil {
		return nil, err
	}
	return sealer.Seal(ctx, secret, b)
}

// reloadAfter is how old a process's copy of a keyset may become. After that, a [Sealer] reads the stored keyset again
// before it seals a secret. An [Opener] reads it again only if it cannot open a secret with its copy.
const reloadAfter = 10 * time.Second

// Opener opens (decrypts) sealed webhook secrets. At its first use, it reads the private keyset and decrypts it. It does so again only if
// a secret was sealed with a key that is not in its copy of the keyset. It is safe for concurrent use.
type Opener struct {
	DB      store.DB
	Wrapper Wrapper
	// Timeout limits the time for reading and decrypting the keyset. The default is 10 s.
	Timeout time.Duration

	once   sync.Once
	keyset *refresh.Value[openable]
}

// openable holds the decrypted private keyset and its version in the store. It can open secrets.
type openable struct {
	*webhook.Opener
	version int64
}

// Open implements delivery.Opener.
func (o *Opener) Open(ctx context.Context, sealed []byte, b webhook.Binding) ([]byte, error) {
	o.once.Do(func() {
		o.keyset = refresh.New(refresh.Options{Name: "the private keyset", Fresh: refresh.Forever, Proportional: true, Timeout: o.Timeout}, o.load)
	})
	current, err := o.keyset.Get(ctx)
	if err != nil {
		return nil, err
	}
	key, err := current.Open(ctx, sealed, b)
	if err == nil {
		return key, nil
	}
	newer, lerr := o.keyset.Within(ctx, reloadAfter)
	if lerr != nil || newer.Opener == current.Opener {
		return nil, err
	}
	return newer.Open(ctx, sealed, b)
}

// load reads the stored private keyset and decrypts it. If the stored keyset still has the version of the parameter old, load returns old
// instead, because the decryption would cost a call of KMS.
func (o *Opener) load(ctx context.Context, old openable) (openable, error) {
	item, err := read(ctx, o.DB, privateKey)
	if err != nil || old.Opener != nil && item.Version == old.version {
		return old, err
	}
	keyset, err := unwrap(ctx, o.Wrapper, item.Value)
	if err != nil {
		return old, err
	}
	opener, err := webhook.NewOpener(keyset)
	return openable{opener, item.Version}, err
}

// maxDirect is the maximum number of bytes that KMS encrypts. Each rotation adds about 150 bytes to a keyset, so a keyset exceeds this
// limit with the 26th rotation. Then wrap encrypts the keyset with a data key, and KMS encrypts only the data key. KMS still encrypts a
// smaller keyset itself, so that the previous version of the functions can read it.
const maxDirect = 4096

// envelopeMark is the prefix of a keyset that is encrypted with a data key. The ciphertexts of KMS do not begin with this text. After the
// prefix come the length of the encrypted data key in two bytes, the encrypted data key, and the keyset in AES-256-GCM.
var envelopeMark = []byte("mcpevents keyset 1\n")

func wrap(ctx context.Context, w Wrapper, keyset []byte) ([]byte, error) {
	if len(keyset) <= maxDirect {
		return w.Wrap(ctx, keyset)
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
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

// StepDrop is the step that removes the keys that are older than the sealing key, see [Drop].
const StepDrop Step = "drop"

var dropKey = store.Key{Table: store.Settings, Partition: "sealing", Sort: "drop"}

const (
	// dropWait is the time between the phases "reseal" and "check" of [Drop]. The stored delivery of a termination notice has its own
	// copy of a webhook secret, which Drop does not seal again. After dropWait, these deliveries no longer exist, because the store keeps
	// a delivery for less than [subscription.EndedKept].
	dropWait = subscription.EndedKept
	// dropReserve is the time that Drop reserves for a page of subscriptions. If less time remains until the deadline of the invocation,
	// Drop begins no further page.
	dropReserve = 20 * time.Second
)

// These are the phases of [Drop].
const (
	resealing = "reseal" // seals all secrets again with the current sealing key
	waiting   = "wait"
	checking  = "check" // looks for secrets that are sealed with another key
)

type dropState struct {
	V     int    `json:"v"`
	Phase string `json:"phase"`
	// Key has the first bytes of the secrets that are sealed with the sealing key. They are the same for all these secrets. If a rotation
	// has changed the sealing key, Drop begins again.
	Key      []byte                `json:"key"`
	At       subscription.Position `json:"at"`
	Resealed time.Time             `json:"resealed,omitzero"`
}

// DropResult tells an operator how far [Drop] has come.
type DropResult struct {
	// Phase is the phase with which the next call continues, or "done".
	Phase string `json:"phase"`
	// NotBefore is the earliest time for the phase "check". It is set only if Phase is "wait".
	NotBefore time.Time `json:"notBefore,omitzero"`
	Dropped   int       `json:"dropped"`
}

var errOld = errors.New("sealing: a secret is sealed with an old key")

// Drop removes the keys that are older than the sealing key. If it removed a key with which a secret is still sealed, the subscription of
// this secret would be lost. So it works in phases, and removes the keys only after the last phase:
//
//   - "reseal" seals the secrets of all subscriptions again with the sealing key.
//   - "wait" lasts for [subscription.EndedKept]. After that, no stored delivery has a copy of a secret that is sealed with an older key,
//     and no process seals with an older public keyset any more.
//   - "check" looks at all secrets again. If one of them is sealed with an older key, Drop begins again.
//
// A call continues the current phase until shortly before the deadline of ctx. It stores its progress after each page of subscriptions.
// If two calls run at the same time, or a rotation runs at the same time, one of them returns an error of kind fault.Conflict.
func Drop(ctx context.Context, db store.DB, w Wrapper, now time.Time) (DropResult, error) {
	private, version, err := private(ctx, db, w)
	if err != nil {
		return DropResult{}, err
	}
	opener, err := webhook.NewOpener(private)
	if err != nil {
		return DropResult{}, err
	}
	sealer, err := Public(ctx, db)
	if err != nil {
		return DropResult{}, err
	}
	items, err := db.Get(ctx, dropKey)
	if err != nil {
		return DropResult{}, fault.Wrap(fault.Unavailable, err, "read the progress")
	}
	p := progress{db: db}
	if it := items[0]; it != nil {
		p.version = it.Version
		if err := json.Unmarshal(it.Value, &p.dropState); err != nil {
			return DropResult{}, fault.Wrap(fault.Internal, err, "decode the progress")
		}
	}
	// Take the sealing key from the public keyset, and not the primary key from the private keyset. If the step "promote" has crashed
	// between writing the two keysets, the key in the public keyset still seals secrets.
	begin := dropState{Phase: resealing, Key: sealer.Key()}
	if !bytes.Equal(p.Key, begin.Key) {
		p.dropState = begin
	}
	if p.Phase == waiting {
		if check := p.Resealed.Add(dropWait); now.Before(check) {
			return DropResult{Phase: waiting, NotBefore: check}, nil
		}
		p.Phase, p.At = checking, subscription.Position{}
	}
	visit := func(ctx context.Context, sealed []byte, b subscription.Binding) ([]byte, error) {
		if p.Phase == checking && !bytes.HasPrefix(sealed, sealer.Key()) {
			return nil, errOld
		}
		return sealer.SealAgain(ctx, sealed, webhook.Binding(b), opener)
	}
	records := &subscription.Store{DB: db}
	for more := true; more; {
		p.At, more, err = records.Reseal(ctx, p.At, visit)
		if errors.Is(err, errOld) {
			p.dropState = begin
			return DropResult{Phase: p.Phase}, p.save(ctx)
		}
		if err != nil {
			return DropResult{}, err
		}
		if !more {
			break
		}
		if err := p.save(ctx); err != nil {
			return DropResult{}, err
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < dropReserve {
			return DropResult{Phase: p.Phase}, nil
		}
	}
	if p.Phase == resealing {
		p.Phase, p.At, p.Resealed = waiting, subscription.Position{}, now.UTC()
		return DropResult{Phase: waiting, NotBefore: p.Resealed.Add(dropWait)}, p.save(ctx)
	}
	dropped, err := dropOlder(ctx, db, w, private, version, sealer)
	if err != nil {
		return DropResult{}, err
	}
	p.dropState = dropState{}
	return DropResult{Phase: "done", Dropped: dropped}, p.save(ctx)
}

type progress struct {
	db store.DB
	dropState
	version int64 // the version of the stored item, or 0 before the first save
}

func (p *progress) save(ctx context.Context) error {
	p.V = 1
	value, err := json.Marshal(p.dropState)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the progress")
	}
	cond := store.Absent()
	if p.version > 0 {
		cond = store.VersionIs(p.version)
	}
	p.version++
	err = p.db.Write(ctx, store.Put(store.Item{Key: dropKey, Value: value, Version: p.version}, cond))
	if errors.Is(err, store.ErrConflict) {
		return fault.New(fault.Conflict, "another call removes keys at the same time: repeat the step")
	}
	return fault.Wrap(fault.Unavailable, err, "store the progress")
}

// dropOlder removes from the private keyset the keys that are older than the sealing key of the sealer s. It returns the number of
// removed keys. Their public parts, which are not secret, stay in the public keyset until the next rotation.
func dropOlder(ctx context.Context, db store.DB, w Wrapper, private []byte, version int64, s *webhook.Sealer) (dropped int, err error) {
	left, _, dropped, err := webhook.DropKeys(private, func(prefix []byte) (bool, error) { return bytes.Equal(prefix, s.Key()), nil })
	if err != nil || dropped == 0 {
		return 0, err
	}
	if err := checkOpens(ctx, left, s); err != nil {
		return 0, err
	}
	wrapped, err := wrap(ctx, w, left)
	if err != nil {
		return 0, err
	}
	return dropped, writePrivate(ctx, db, wrapped, version)
}
