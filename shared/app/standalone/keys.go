package standalone

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/durable"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// secrets holds the keys of a server. They are in a file that only its owner can read.
type secrets struct {
	Private []byte `json:"private"` // Tink keyset that opens webhook secrets
	Public  []byte `json:"public"`  // Tink keyset that seals webhook secrets
	Cursor  []byte `json:"cursor"`  // authenticates stream cursors
	// Identity is the server's own private key. The server uses it to add an asymmetric signature (v1a of Standard Webhooks) to webhooks.
	Identity string `json:"identity"`
}

func secretsPath(data string) string { return filepath.Join(data, keysName) }

// loadSecrets reads the keys of the data directory, or creates them. It returns an error if the keys do not open the secrets in the
// database.
func loadSecrets(ctx context.Context, data string, db store.DB) (secrets, error) {
	if data == ":memory:" {
		return newSecrets()
	}
	s, err := readSecrets(data)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing {
		s, err = newSecrets()
	}
	if err != nil {
		return s, err
	}
	sealed, err := checkSealed(ctx, db, s, missing)
	switch {
	case fault.Is(err, fault.Conflict) && missing:
		return s, fault.New(fault.Invalid, "%[1]s is missing, but the database in %[2]s has webhook secrets that only its keys can open: "+
			"restore %[1]s from a backup, or remove the database to start with an empty server", secretsPath(data), data)
	case fault.Is(err, fault.Conflict):
		return s, fault.New(fault.Invalid, "%[1]s cannot open the webhook secrets in the database in %[2]s, because other keys sealed them: "+
			"restore both from the same backup", secretsPath(data), data)
	case err != nil:
		return s, err
	}
	if missing {
		if err := writeSecrets(data, s); err != nil {
			return s, err
		}
	}
	if sealed {
		return s, nil
	}
	return s, writeCheckValue(ctx, db, s)
}

// The check value is a fixed text in the database. It is sealed (encrypted) with the same keys as the webhook secrets there. When the
// server starts, the check value shows whether the database and the keys, which are in another file, belong together.
var (
	checkValueKey     = store.Key{Table: store.Settings, Partition: "keys", Sort: "-"}
	checkValueBinding = webhook.Binding{Subscription: "keys.json"}
)

// checkSealed reports whether the database has a check value that the keys open. The parameter fresh is true if the keys were just
// created.
//
// If the keys do not open the check value, or if the keys are fresh although the database has subscriptions, the error is of kind
// fault.Conflict. If the database never had subscriptions, any keys are accepted.
func checkSealed(ctx context.Context, db store.DB, s secrets, fresh bool) (sealed bool, err error) {
	items, err := db.Get(ctx, checkValueKey)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read the check value of the sealing keys")
	}
	if items[0] == nil && !fresh { // an earlier version wrote the database, without a check value
		return false, nil
	}
	if items[0] != nil {
		opener, err := webhook.NewOpener(s.Private)
		if err != nil {
			return false, err
		}
		if _, err := opener.Open(ctx, items[0].Value, checkValueBinding); err == nil {
			return true, nil
		}
	}
	workspaces, err := (&subscription.Lists{DB: db}).Workspaces(ctx)
	if err != nil || len(workspaces) == 0 {
		return false, err
	}
	return false, fault.New(fault.Conflict, "the keys cannot decrypt the check value")
}

func writeCheckValue(ctx context.Context, db store.DB, s secrets) error {
	sealer, err := webhook.NewSealer(s.Public)
	if err != nil {
		return err
	}
	sealed, err := sealer.Seal(ctx, []byte("mcpevents"), checkValueBinding)
	if err != nil {
		return err
	}
	return fault.Wrap(fault.Unavailable, db.Write(ctx, store.Put(store.Item{Key: checkValueKey, Value: sealed})), "write the check value of the sealing keys")
}

func newSecrets() (secrets, error) {
	private, public, err := webhook.GenerateKeyset()
	if err != nil {
		return secrets{}, err
	}
	s := secrets{Private: private, Public: public, Cursor: make([]byte, 32), Identity: webhook.GenerateIdentity()}
	_, _ = rand.Read(s.Cursor) // never fails (Go 1.24)
	return s, nil
}

// checkWritable returns an error with a reason, for example "permission denied", if the data directory is not writable. SQLite's own
// errors do not name the reason.
func checkWritable(data string) error {
	probe, err := os.CreateTemp(data, "write-*")
	if err != nil {
		return fault.New(fault.Invalid, "the data directory %s cannot be written: %v", data, causeOf(err))
	}
	_ = probe.Close()
	_ = os.Remove(probe.Name())
	return nil
}

// causeOf returns the cause of an error of a file operation without the operation and the path, for example "permission denied".
func causeOf(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// checkDatabase returns an error if the data directory is not writable, or if it has keys but its database is missing or empty. In the
// second case, a server would silently start without its subscriptions and events.
func checkDatabase(data, path string) error {
	if err := checkWritable(data); err != nil {
		return err
	}
	keys := secretsPath(data)
	if _, err := os.Stat(keys); err != nil {
		return nil // the directory is new, or reading the keys will report the problem
	}
	state := "is missing"
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		return nil
	} else if err == nil {
		state = "is empty"
	}
	return fault.New(fault.Invalid, "%s %s but %s exists: restore the database from a backup, or remove both files to start with an empty server",
		path, state, keys)
}

func readSecrets(data string) (secrets, error) {
	_, s, err := readKeysFile(data)
	return s, err
}

func readKeysFile(data string) (content []byte, s secrets, err error) {
	content, err = os.ReadFile(secretsPath(data))
	if err != nil {
		return nil, s, fault.Wrap(fault.Invalid, err, "read the keys (is %s the data directory of a server?)", data)
	}
	if err := json.Unmarshal(content, &s); err != nil || len(s.Private) == 0 || len(s.Public) == 0 {
		return nil, s, fault.New(fault.Invalid, "%s is damaged; without it no stored secret can be opened", secretsPath(data))
	}
	return content, s, nil
}

// writeSecrets replaces the keys file atomically. A partly written file could not open any stored secret.
func writeSecrets(data string, s secrets) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the keys")
	}
	return fault.Wrap(fault.Unavailable, durable.WriteFile(secretsPath(data), b), "write the keys")
}

// lockKeys locks the keys of a data directory, so that one command at a time reads, changes and writes them. Without the lock, two
// commands could overwrite each other's keys, and secrets that are sealed with a lost key can never be opened. A running server does not
// need the lock, because it only reads the keys when it starts.
func lockKeys(data string) (unlock func(), err error) {
	if _, err := readSecrets(data); err != nil {
		return nil, err // return before a lock file is created
	}
	unlock, err = engine.Lock(secretsPath(data) + ".lock")
	if fault.Is(err, fault.Conflict) {
		return nil, fault.New(fault.Conflict, "another mcpevents keys command is changing %s: wait until it has ended, and try again", secretsPath(data))
	}
	return unlock, err
}

// loadIdentity returns the server's own key for v1a signatures (see [secrets.Identity]). If the parameter on is false, it returns nil,
// and webhooks get no v1a signature.
func (s secrets) loadIdentity(on bool) (*webhook.Identity, error) {
	if !on {
		return nil, nil
	}
	key, err := webhook.ParseIdentity(s.Identity)
	if err != nil {
		return nil, err
	}
	return webhook.NewIdentity(key), nil
}

// RotateKeys adds a key to the sealing keyset of a data directory. A server that uses the directory must be restarted. Then it seals new
// secrets with the new key, and still opens existing ones with the old keys.
//
// On AWS, several processes share the keyset, so a rotation takes two steps there. First all processes must be able to open secrets with
// the new key. Then they may seal secrets with it.
func RotateKeys(data string) error { return rotateKeys(data, webhook.AddKey) }

func rotateKeys(data string, addKey func(private []byte) ([]byte, error)) error {
	unlock, err := lockKeys(data)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := readSecrets(data)
	if err != nil {
		return err
	}
	added, err := addKey(s.Private)
	if err != nil {
		return err
	}
	if s.Private, s.Public, err = webhook.PromoteKey(added); err != nil {
		return err
	}
	return writeSecrets(data, s)
}

// DropKeys seals the secrets of all subscriptions in a data directory with the newest key. Then it removes each older key that no stored
// secret needs. It returns an error if a server uses the directory. Earlier backups can still be restored, because each backup contains
// the keys for its database.
func DropKeys(ctx context.Context, data string) (OldKeys, error) { return dropKeys(ctx, data, reseal) }

// OldKeys counts the old keys that [DropKeys] removed, and the old keys that stored secrets still need.
type OldKeys struct{ Removed, Kept int }

func dropKeys(ctx context.Context, data string, reseal func(context.Context, store.DB, secrets) error) (old OldKeys, err error) {
	unlock, err := lockKeys(data)
	if err != nil {
		return old, err
	}
	defer unlock()
	s, err := readSecrets(data)
	if err != nil {
		return old, err
	}
	path := filepath.Join(data, databaseName)
	if err := checkDatabase(data, path); err != nil {
		return old, err
	}
	db, err := sqlite.Open(path, sqlite.Options{})
	if err != nil {
		return old, err
	}
	defer func() { _ = db.Close() }()
	if _, err := checkSealed(ctx, db, s, false); err != nil {
		return old, fault.Wrap(fault.Invalid, err, "check the keys of %s", data)
	}
	// Seal the check value, a fixed text in the database, with the newest key, too. Otherwise the check value would always need the first
	// key.
	if err := writeCheckValue(ctx, db, s); err != nil {
		return old, err
	}
	if err := reseal(ctx, db, s); err != nil {
		return old, err
	}
	s.Private, s.Public, old.Removed, err = webhook.DropKeys(s.Private, func(prefix []byte) (bool, error) {
		used, err := db.Contains(ctx, sealedText(prefix))
		if used {
			old.Kept++
		}
		return used, err
	})
	if err != nil || old.Removed == 0 {
		return old, err
	}
	return old, writeSecrets(data, s)
}

// reseal seals the webhook secret of each subscription with the newest key.
func reseal(ctx context.Context, db store.DB, s secrets) error {
	opener, err := webhook.NewOpener(s.Private)
	if err != nil {
		return err
	}
	sealer, err := webhook.NewSealer(s.Public)
	if err != nil {
		return err
	}
	records := subscription.Store{DB: db}
	var at subscription.Position
	for more := true; more && err == nil; {
		at, more, err = records.Reseal(ctx, at, func(ctx context.Context, sealed []byte, b subscription.Binding) ([]byte, error) {
			return sealer.SealAgain(ctx, sealed, webhook.Binding(b), opener)
		})
	}
	return err
}

// sealedText returns a text for finding secrets that are sealed with a certain key: all stored items with such a secret contain the text.
// The parameter prefix has the first bytes of the sealed secrets. Stored items contain them as base64.
//
// sealedText leaves out the last base64 character if the prefix determines only some of its bits. For example, 5 bytes (40 bits)
// determine 6 complete characters (36 bits).
func sealedText(prefix []byte) []byte {
	return []byte(base64.RawStdEncoding.EncodeToString(prefix)[:len(prefix)*8/6])
}
