package sealing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// locked is a wrapper that can tell wrapped data from clear data.
type locked struct {
	mu      sync.Mutex
	unwraps int
	fail    error
}

// Wrap accepts as many bytes as KMS does.
func (l *locked) Wrap(_ context.Context, clear []byte) ([]byte, error) {
	if len(clear) > 4096 {
		return nil, errors.New("ValidationException: plaintext has more than 4096 bytes")
	}
	return append([]byte("locked:"), clear...), l.fail
}

func (l *locked) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unwraps++
	clear, ok := bytes.CutPrefix(wrapped, []byte("locked:"))
	if !ok {
		return nil, errors.New("not wrapped")
	}
	return slices.Clone(clear), l.fail
}

func open(t *testing.T) *sqlite.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func stored(t *testing.T, db store.DB, key store.Key) []byte {
	t.Helper()
	items, err := db.Get(t.Context(), key)
	if err != nil || items[0] == nil {
		t.Fatalf("%v: %v, %v", key, items, err)
	}
	return items[0].Value
}

var binding = webhook.Binding{Workspace: "w", Subscription: "s", Target: "t"}

func seal(t *testing.T, db store.DB) []byte {
	t.Helper()
	sealer := expect.Value(Public(t.Context(), db))(t)
	return expect.Value(sealer.Seal(t.Context(), []byte("secret"), binding))(t)
}

func TestTheKeysetIsMadeOnce(t *testing.T) {
	db, w := open(t), &locked{}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := Create(t.Context(), db, w); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	private, public := stored(t, db, privateKey), stored(t, db, publicKey)
	if !bytes.HasPrefix(private, []byte("locked:")) {
		t.Error("the private keyset is stored unencrypted")
	}
	expect.OK(t, Create(t.Context(), db, w))
	if !bytes.Equal(private, stored(t, db, privateKey)) || !bytes.Equal(public, stored(t, db, publicKey)) {
		t.Error("the second time changed the keys")
	}
	expect.Equal(t, "the text", string(expect.Value((&Opener{DB: db, Wrapper: w}).Open(t.Context(), seal(t, db), binding))(t)), "secret")
}

func TestAnIncompleteKeysetIsCompleted(t *testing.T) {
	db, w := open(t), &locked{}
	expect.OK(t, Create(t.Context(), db, w))
	public := stored(t, db, publicKey)
	expect.OK(t, db.Write(t.Context(), store.Delete(publicKey)))
	expect.OK(t, Create(t.Context(), db, w))
	if !bytes.Equal(public, stored(t, db, publicKey)) {
		t.Error("the public keyset does not fit the private one")
	}
}

func TestFailuresLeaveNothingBehind(t *testing.T) {
	db := open(t)
	expect.Fault(t, "the call before there is a key", expect.ErrOf(Public(t.Context(), db)), fault.Unavailable)
	expect.Error(t, "the creation while KMS is down", Create(t.Context(), db, &locked{fail: errors.New("KMS is down")}))
	if items, err := db.Get(t.Context(), privateKey); err != nil || items[0] != nil {
		t.Errorf("got %v, %v", items, err)
	}
	expect.Fault(t, "a rotation without keys", Rotate(t.Context(), db, &locked{}, stepAdd), fault.Unavailable)
}

func TestARotationOpensOldAndNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := open(t), &locked{}
		expect.OK(t, Create(t.Context(), db, w))
		opener := &Opener{DB: db, Wrapper: w}
		opens := func(what string, sealed []byte) {
			t.Helper()
			expect.Equal(t, what, string(expect.Value(opener.Open(t.Context(), sealed, binding))(t)), "secret")
		}
		old := seal(t, db)
		opens("before", old)
		for _, step := range []Step{stepAdd, stepPromote} {
			expect.OK(t, Rotate(t.Context(), db, w, step))
			time.Sleep(reloadAfter)
		}
		fresh := seal(t, db)
		opens("the new one, in a process that began before", fresh)
		opens("the old one", old)
		if w.unwraps != 5 { // one in Create, two in the rotation, one at first use, one for the new key
			t.Errorf("unwrapped %d times, want 5", w.unwraps)
		}
		// Data that cannot be opened must not cause a request to KMS each time.
		for range 5 {
			expect.Error(t, "the opening of rubbish", expect.ErrOf(opener.Open(t.Context(), []byte("rubbish"), binding)))
		}
		time.Sleep(reloadAfter)
		_, _ = opener.Open(t.Context(), []byte("rubbish"), binding)
		expect.Equal(t, "how often a keyset was unwrapped", w.unwraps, 5)
		expect.Fault(t, "an unknown step", Rotate(t.Context(), db, w, "twist"), fault.Invalid)
	})
}

// TestConcurrentRotations runs a whole rotation between two writes of another one. Whatever the outcome, the newest key must
// seal, and no key may be lost.
func TestConcurrentRotations(t *testing.T) {
	for _, step := range []Step{stepAdd, stepPromote} {
		for writes := range 2 {
			t.Run(fmt.Sprintf("given a rotation in the step %s that has written %d keysets, when another one completes, then its key seals", step, writes), func(t *testing.T) {
				db, w := open(t), &locked{}
				expect.OK(t, Create(t.Context(), db, w))
				old := seal(t, db)
				if step == stepPromote {
					expect.OK(t, Rotate(t.Context(), db, w, stepAdd))
				}
				var newest []byte
				slow := &interrupted{DB: db, after: writes, before: func() {
					for _, step := range []Step{stepAdd, stepPromote} {
						expect.OK(t, Rotate(t.Context(), db, w, step))
					}
					newest = seal(t, db)
				}}
				err := Rotate(t.Context(), slow, w, step)
				if newest == nil {
					return // the step has only one write
				}
				expect.Fault(t, "the slow rotation", err, fault.Conflict)
				const prefix = 5 // a version byte and the key's id
				if now := seal(t, db); !bytes.Equal(now[:prefix], newest[:prefix]) {
					t.Errorf("the key %x seals, want the newest one, %x", now[:prefix], newest[:prefix])
				}
				opener := &Opener{DB: db, Wrapper: w}
				for _, sealed := range [][]byte{old, newest} {
					expect.OK(t, expect.ErrOf(opener.Open(t.Context(), sealed, binding)))
				}
			})
		}
	}
}

func TestTheOpenerTriesAgainWhenKMSWasDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes, so after a failure no further load starts
		db, w := open(t), &locked{}
		expect.OK(t, Create(t.Context(), db, w))
		opener, sealed := &Opener{DB: db, Wrapper: w}, seal(t, db)
		w.fail = errors.New("KMS is down")
		expect.Error(t, "the opening while KMS is down", expect.ErrOf(opener.Open(t.Context(), sealed, binding)))
		w.fail = nil
		expect.OK(t, expect.ErrOf(opener.Open(t.Context(), sealed, binding)))
	})
}

func TestMismatchedKeysAreRefused(t *testing.T) {
	t.Run("of another KMS key", func(t *testing.T) {
		db := open(t)
		expect.OK(t, Create(t.Context(), db, &locked{}))
		err := Create(t.Context(), db, &locked{fail: errors.New("IncorrectKeyException")})
		expect.Error(t, "the error", err, "IncorrectKeyException", "SealingKeyArn")
	})
	t.Run("an older table of keys than that of settings", func(t *testing.T) {
		db, w := open(t), &locked{}
		expect.OK(t, Create(t.Context(), db, w))
		old := stored(t, db, privateKey)
		for _, step := range []Step{stepAdd, stepPromote} {
			expect.OK(t, Rotate(t.Context(), db, w, step))
		}
		expect.OK(t, Create(t.Context(), db, w), "after a rotation")
		expect.OK(t, db.Write(t.Context(), store.Put(store.Item{Key: privateKey, Value: old, Version: 1})))
		expect.Fault(t, "the creation", Create(t.Context(), db, w), fault.Invalid, "KeysTableArn")
	})
}

func TestAKeysetMayExceedTheLimitOfKMS(t *testing.T) {
	db, w := open(t), &locked{}
	expect.OK(t, Create(t.Context(), db, w))
	first := seal(t, db)
	for n := range 30 {
		for _, step := range []Step{stepAdd, stepPromote} {
			expect.OK(t, Rotate(t.Context(), db, w, step), "rotation", n+1, step)
		}
	}
	expect.OK(t, Create(t.Context(), db, w))
	opener := &Opener{DB: db, Wrapper: w}
	for name, sealed := range map[string][]byte{"the first key": first, "the last key": seal(t, db)} {
		expect.Equal(t, name, string(expect.Value(opener.Open(t.Context(), sealed, binding))(t)), "secret")
	}
	if value := stored(t, db, privateKey); bytes.Contains(value, []byte("HpkePrivateKey")) {
		t.Error("the private keyset is stored unencrypted")
	}
	value := stored(t, db, privateKey)
	value[len(value)-1] ^= 1
	expect.OK(t, db.Write(t.Context(), store.Put(store.Item{Key: privateKey, Value: value, Version: 100})))
	if _, _, err := private(t.Context(), db, w); err == nil {
		t.Error("a modified keyset was unwrapped")
	}
}

func TestALongRunningSealerFollowsARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := open(t), &locked{}
		sealer := &Sealer{DB: db}
		expect.Fault(t, "a secret before there is a key", expect.ErrOf(sealer.Seal(t.Context(), []byte("secret"), binding)), fault.Unavailable)
		expect.OK(t, Create(t.Context(), db, w))
		sealed := func() []byte {
			t.Helper()
			return expect.Value(sealer.Seal(t.Context(), []byte("secret"), binding))(t)
		}
		const prefix = 5 // a version byte and the key's id
		before := sealed()
		for _, step := range []Step{stepAdd, stepPromote} {
			expect.OK(t, Rotate(t.Context(), db, w, step))
		}
		time.Sleep(reloadAfter)
		after := sealed()
		if bytes.Equal(before[:prefix], after[:prefix]) {
			t.Errorf("it seals with the key %x %s after another one was promoted", after[:prefix], reloadAfter)
		}
		for _, text := range [][]byte{before, after} {
			expect.Equal(t, "the text", string(expect.Value((&Opener{DB: db, Wrapper: w}).Open(t.Context(), text, binding))(t)), "secret")
		}
	})
}
