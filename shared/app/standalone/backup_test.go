package standalone

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestBackup(t *testing.T) {
	s, settings := serveOptions(t, nil)
	file := filepath.Join(t.TempDir(), "backup.tar.gz")
	var bars bytes.Buffer
	expect.OK(t, Backup(t.Context(), settings.Data, file, &bars))
	t.Run("OPS-16 a backup of a running server is for its owner only, and shows how far it is", func(t *testing.T) {
		expect.Equal(t, "the mode of the backup", expect.Value(os.Stat(file))(t).Mode(), 0o600)
		expect.Contains(t, "the bars", bars.String(), "KiB copied", "written")
		left(t, filepath.Dir(file), "backup.tar.gz")
	})
	t.Run("OPS-16 a restored server starts with the same keys, and files that only its owner reads", func(t *testing.T) {
		data := filepath.Join(t.TempDir(), "new")
		expect.OK(t, Restore(t.Context(), file, data, nil))
		left(t, data, keysName, databaseName)
		for _, name := range []string{databaseName, keysName} {
			expect.Equal(t, "the mode of "+name, expect.Value(os.Stat(filepath.Join(data, name)))(t).Mode(), 0o600)
		}
		was, _ := os.ReadFile(secretsPath(settings.Data))
		if is, _ := os.ReadFile(secretsPath(data)); !bytes.Equal(was, is) {
			t.Error("it has other keys")
		}
		restored := settings
		restored.Data = data
		starts(t, restored)
	})
	end(t, s)
	t.Run("OPS-16 nothing is overwritten, and nothing stays of what fails", func(t *testing.T) {
		whole := expect.Value(os.ReadFile(file))(t)
		damaged := bytes.Clone(whole)
		damaged[len(damaged)-6] ^= 1 // in the checksum
		write := func(b []byte) string {
			name := filepath.Join(t.TempDir(), "x.tar.gz")
			expect.OK(t, os.WriteFile(name, b, 0o600))
			return name
		}
		interrupted, cancel := context.WithCancel(t.Context())
		cancel()
		dir, data := t.TempDir(), filepath.Join(t.TempDir(), "d")
		for _, x := range []struct {
			name string
			do   func() error
			kind fault.Kind
			want string
		}{
			{"a backup over a file", func() error { return Backup(t.Context(), settings.Data, file, nil) }, fault.Invalid, "exists already"},
			{"into no directory", func() error { return Backup(t.Context(), settings.Data, filepath.Join(dir, "no", "b"), nil) }, fault.Invalid, "the directory " + filepath.Join(dir, "no") + " does not exist"},
			{"of no server", func() error { return Backup(t.Context(), dir, filepath.Join(dir, "b"), nil) }, fault.Invalid, databaseName},
			{"interrupted", func() error { return Backup(interrupted, settings.Data, filepath.Join(dir, "b"), nil) }, fault.Unavailable, "no file was written"},
			{"onto a full disk", func() error { return backup(t.Context(), settings.Data, filepath.Join(dir, "b"), nil, failFull) }, fault.Invalid, "disk is full"},
			{"over a server", func() error { return Restore(t.Context(), file, settings.Data, nil) }, fault.Conflict, "is there already"},
			{"of nothing", func() error { return Restore(t.Context(), filepath.Join(dir, "none"), data, nil) }, fault.Invalid, "none"},
			{"of another file", func() error { return Restore(t.Context(), write([]byte("no backup")), data, nil) }, fault.Invalid, "not a backup"},
			{"of a cut one", func() error { return Restore(t.Context(), write(whole[:len(whole)/2]), data, nil) }, fault.Invalid, "damaged"},
			{"of a damaged one", func() error { return Restore(t.Context(), write(damaged), data, nil) }, fault.Invalid, "damaged"},
			{"of another archive", func() error { return Restore(t.Context(), write(archive("../evil")), data, nil) }, fault.Invalid, "../evil"},
			{"of half a backup", func() error { return Restore(t.Context(), write(archive(databaseName)), data, nil) }, fault.Invalid, "lacks"},
			{"interrupted", func() error { return Restore(interrupted, file, data, nil) }, fault.Unavailable, "no file was written"},
		} {
			expect.Fault(t, x.name, x.do(), x.kind, x.want)
		}
		left(t, dir)
		left(t, data)
	})
}

// failFull fails as [engine.Copy] does on a full disk, where SQLite also leaves a journal.
func failFull(_ context.Context, _, to string, begun func(int64)) error {
	begun(0)
	return errors.Join(os.WriteFile(to+"-journal", nil, 0o600), errors.New("database or disk is full"))
}

func TestBackup_WhileKeysChange(t *testing.T) {
	s, settings := serveOptions(t, nil)
	subscribed(t, s, "http://127.0.0.1:9/hook", buildFinished)
	end(t, s)
	expect.OK(t, RotateKeys(settings.Data))
	backUp := func(file string, changeKeys func()) error {
		return backup(t.Context(), settings.Data, file, nil, func(ctx context.Context, path, to string, begun func(int64)) error {
			err := engine.Copy(ctx, path, to, begun)
			changeKeys()
			return err
		})
	}
	t.Run("given keys that are dropped after the database was copied, when the backup is restored, then a server starts", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "backup.tar.gz")
		copies := 0
		expect.OK(t, backUp(file, func() {
			if copies++; copies == 1 {
				drops(t, settings.Data, 1, 0)
			}
		}))
		restored := settings
		restored.Data = filepath.Join(t.TempDir(), "new")
		expect.OK(t, Restore(t.Context(), file, restored.Data, nil))
		starts(t, restored)
	})
	t.Run("given keys that change during each copy of the database, when it is backed up, then the operator is asked to try again", func(t *testing.T) {
		dir := t.TempDir()
		err := backUp(filepath.Join(dir, "backup.tar.gz"), func() { expect.OK(t, RotateKeys(settings.Data)) })
		expect.Fault(t, "the backup", err, fault.Conflict, "try again")
		left(t, dir)
	})
}

// archive returns a gzipped tar archive with one member of the given name.
func archive(name string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	_ = w.WriteHeader(&tar.Header{Name: name, Size: 1, Mode: 0o600})
	_, _ = w.Write([]byte("x"))
	_, _ = w.Close(), z.Close()
	return b.Bytes()
}

// left checks the names of all files in a directory.
func left(t *testing.T, dir string, want ...string) {
	t.Helper()
	var got []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			got = append(got, filepath.Base(path))
		}
		return nil
	})
	expect.Equal(t, dir, strings.Join(got, " "), strings.Join(want, " "))
}

// drops calls DropKeys and checks the numbers of removed and kept keys.
func drops(t *testing.T, data string, removed, kept int) {
	t.Helper()
	expect.Equal(t, "the old keys", expect.Value(DropKeys(t.Context(), data))(t), OldKeys{removed, kept})
}

func TestDropKeys(t *testing.T) {
	e, settings := serveOptions(t, nil)
	subscribed(t, e, "http://127.0.0.1:9/first", buildFinished)
	t.Run("given a running server, when keys are dropped, then it is refused", func(t *testing.T) {
		before := expect.Value(readSecrets(settings.Data))(t)
		expect.Fault(t, "the call", expect.ErrOf(DropKeys(t.Context(), settings.Data)), fault.Conflict)
		after, err := readSecrets(settings.Data)
		if err != nil || !bytes.Equal(before.Private, after.Private) {
			t.Errorf("the keys have changed, %v", err)
		}
	})
	stored := store.Item{Key: store.Key{Table: store.Deliveries, Partition: "d", Sort: "-"}}
	err := (&subscription.Lists{DB: e.db}).Each(t.Context(), "default", "anonymous", func(s *subscription.Subscription) (err error) {
		stored.Value, err = json.Marshal(s.Target)
		return err
	})
	if err != nil || stored.Value == nil {
		t.Fatalf("no subscription, %v", err)
	}
	expect.OK(t, e.db.Write(t.Context(), store.Put(stored)))
	end(t, e)
	drops(t, settings.Data, 0, 0) // the server has only one key
	expect.OK(t, RotateKeys(settings.Data))
	expect.OK(t, RotateKeys(settings.Data))
	e = expect.Value(New(t.Context(), settings))(t)
	subscribed(t, e, "http://127.0.0.1:9/second", pullRequest)
	end(t, e)
	t.Run("given a stored delivery with a copy of a secret, when keys are dropped, then the key that opens it stays", func(t *testing.T) {
		drops(t, settings.Data, 1, 1)
		drops(t, settings.Data, 0, 1)
	})
	e = expect.Value(New(t.Context(), settings))(t)
	checkSecrets(t, e, settings.Data, 2)
	expect.OK(t, e.db.Write(t.Context(), store.Delete(stored.Key)))
	end(t, e)
	t.Run("given only secrets of subscriptions, when keys are dropped, then the newest key stays and a server starts", func(t *testing.T) {
		drops(t, settings.Data, 1, 0)
		starts(t, settings)
	})
	e = expect.Value(New(t.Context(), settings))(t)
	checkSecrets(t, e, settings.Data, 2)
	end(t, e)
}

// A server refuses to start with a database that was restored without its keys or with the keys of another database,
// because it could not sign any webhook.
func TestKeysThatDoNotOpenTheSecretsAreRefused(t *testing.T) {
	e, settings := serveOptions(t, nil)
	subscribed(t, e, "http://127.0.0.1:9/hook", buildFinished)
	end(t, e)
	path := secretsPath(settings.Data)
	keys := expect.Value(os.ReadFile(path))(t)
	other := expect.Value(json.Marshal(expect.Value(newSecrets())(t)))(t)
	missing := func() {
		t.Helper()
		refuses(t, settings, path+" is missing")
		expect.Is(t, "the keys", expect.ErrOf(os.Stat(path)), fs.ErrNotExist)
	}
	expect.OK(t, os.Remove(path))
	missing()
	missing() // the refused start has not created new keys
	expect.OK(t, os.WriteFile(path, other, 0o600))
	refuses(t, settings, path+" cannot open the webhook secrets")
	expect.OK(t, os.WriteFile(path, keys, 0o600))
	starts(t, settings)
	expect.OK(t, RotateKeys(settings.Data))
	e = expect.Value(New(t.Context(), settings))(t)
	// A database of an earlier version has no mark of the keys.
	expect.OK(t, e.db.Write(t.Context(), store.Delete(checkValueKey)))
	end(t, e)
	expect.OK(t, os.Remove(path))
	missing()
}

// sealedBy seals a secret like a server that has started with the current keys.
func sealedBy(t *testing.T, data string) []byte {
	t.Helper()
	sealer := expect.Value(webhook.NewSealer(expect.Value(readSecrets(data))(t).Public))(t)
	return expect.Value(sealer.Seal(t.Context(), []byte("secret"), webhook.Binding{}))(t)
}

// checkOpens checks that a server that starts now can open a secret.
func checkOpens(t *testing.T, data string, sealed []byte) {
	t.Helper()
	opener := expect.Value(webhook.NewOpener(expect.Value(readSecrets(data))(t).Private))(t)
	expect.OK(t, expect.ErrOf(opener.Open(t.Context(), sealed, webhook.Binding{})), "the secret")
}

// checkSecrets checks that the current keys open the secrets of all subscriptions, and how many there are.
func checkSecrets(t *testing.T, s *Server, data string, want int) {
	t.Helper()
	opener := expect.Value(webhook.NewOpener(expect.Value(readSecrets(data))(t).Private))(t)
	n := 0
	expect.OK(t, (&subscription.Lists{DB: s.db}).Each(t.Context(), "default", "anonymous", func(s *subscription.Subscription) error {
		n++
		return expect.ErrOf(opener.Open(t.Context(), s.Target.Secret, webhook.Binding(s.Binding())))
	}))
	expect.Equal(t, "the secrets that can be opened", n, want)
}

// TestKeysCommandsExcludeEachOther runs a second command after the first one has read the keys. If the second command succeeds, a
// server may start and seal secrets with its keys, so the first command must not remove them.
func TestKeysCommandsExcludeEachOther(t *testing.T) {
	s, settings := serveOptions(t, nil)
	subscribed(t, s, "http://127.0.0.1:9/hook", buildFinished)
	end(t, s)
	data := settings.Data
	expect.OK(t, RotateKeys(data))
	drop := func() error { return expect.ErrOf(DropKeys(t.Context(), data)) }
	rotate := func() error { return RotateKeys(data) }
	for _, tt := range []struct {
		name  string
		first func(second func()) error
		then  func() error
	}{
		{"given keys that are dropped, when they are rotated, then the new key is not lost", func(second func()) error {
			return expect.ErrOf(dropKeys(t.Context(), data, func(ctx context.Context, db store.DB, s secrets) error {
				second()
				return reseal(ctx, db, s)
			}))
		}, rotate},
		{"given keys that are rotated, when they are rotated again, then no new key is lost", func(second func()) error {
			return rotateKeys(data, func(private []byte) ([]byte, error) {
				second()
				return webhook.AddKey(private)
			})
		}, rotate},
		{"given keys that are rotated, when they are dropped, then the secrets can be opened", func(second func()) error {
			return rotateKeys(data, func(private []byte) ([]byte, error) {
				second()
				return webhook.AddKey(private)
			})
		}, drop},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var refused error
			var sealed []byte
			expect.OK(t, tt.first(func() {
				refused = tt.then()
				sealed = sealedBy(t, data)
			}))
			expect.Fault(t, "the second command", refused, fault.Conflict)
			checkOpens(t, data, sealed)
			expect.OK(t, tt.then())
			starts(t, settings)
		})
	}
}

func TestKeysWhileAServerRuns(t *testing.T) {
	s, settings := serveOptions(t, nil)
	t.Run("given a server that has started before a rotation, when it seals a secret, then the rotated keys open it", func(t *testing.T) {
		subscribed(t, s, "http://127.0.0.1:9/first", buildFinished)
		expect.OK(t, RotateKeys(settings.Data))
		subscribed(t, s, "http://127.0.0.1:9/second", buildFinished)
		checkSecrets(t, s, settings.Data, 2)
	})
	end(t, s)
	t.Run("given a removal that is interrupted, when a server starts, then it opens all secrets, and the next removal completes", func(t *testing.T) {
		before := expect.Value(readSecrets(settings.Data))(t)
		for name, interrupted := range map[string]func(context.Context, store.DB, secrets) error{
			"before the secrets are sealed again": func(context.Context, store.DB, secrets) error { return errInterrupted },
			"after that": func(ctx context.Context, db store.DB, s secrets) error {
				return errors.Join(reseal(ctx, db, s), errInterrupted)
			},
		} {
			expect.Is(t, name, expect.ErrOf(dropKeys(t.Context(), settings.Data, interrupted)), errInterrupted)
			expect.True(t, name+": the keys are the same", bytes.Equal(before.Private, expect.Value(readSecrets(settings.Data))(t).Private))
			s = expect.Value(New(t.Context(), settings))(t)
			checkSecrets(t, s, settings.Data, 2)
			end(t, s)
		}
		drops(t, settings.Data, 1, 0)
		s = expect.Value(New(t.Context(), settings))(t)
		checkSecrets(t, s, settings.Data, 2)
		end(t, s)
	})
}

var errInterrupted = errors.New("interrupted")
