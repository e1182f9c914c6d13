package standalone

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
	if _, err := opener.Open(t.Context(), sealed, webhook.Binding{}); err != nil {
		t.Errorf("got the error %v, want the secret", err)
	}
}

// TestKeysCommandsExcludeEachOther runs a second command after the first one has read the keys. If the second command succeeds, a
// server may start and seal secrets with its keys, so the first command must not remove them.
func TestKeysCommandsExcludeEachOther(t *testing.T) {
	var settings Options
	s := serve(t, func(o *Options) { settings = *o })
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
	var settings Options
	s := serve(t, func(o *Options) { settings = *o })
	opens := func(want int) {
		t.Helper()
		opener := expect.Value(webhook.NewOpener(expect.Value(readSecrets(settings.Data))(t).Private))(t)
		n := 0
		expect.OK(t, (&subscription.Lists{DB: s.db}).Each(t.Context(), "default", "anonymous", func(s *subscription.Subscription) error {
			n++
			return expect.ErrOf(opener.Open(t.Context(), s.Target.Secret, webhook.Binding(s.Binding())))
		}))
		expect.Equal(t, "the secrets that can be opened", n, want)
	}
	t.Run("given a server that has started before a rotation, when it seals a secret, then the rotated keys open it", func(t *testing.T) {
		subscribed(t, s, "http://127.0.0.1:9/first", buildFinished)
		expect.OK(t, RotateKeys(settings.Data))
		subscribed(t, s, "http://127.0.0.1:9/second", buildFinished)
		opens(2)
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
			if err := expect.ErrOf(dropKeys(t.Context(), settings.Data, interrupted)); !errors.Is(err, errInterrupted) {
				t.Fatalf("%s: got the error %v, want an interruption", name, err)
			}
			if after := expect.Value(readSecrets(settings.Data))(t); !bytes.Equal(before.Private, after.Private) {
				t.Errorf("%s: the keys have changed", name)
			}
			s = expect.Value(New(t.Context(), settings))(t)
			opens(2)
			end(t, s)
		}
		drops(t, settings.Data, 1)
		s = expect.Value(New(t.Context(), settings))(t)
		opens(2)
		end(t, s)
	})
}

var errInterrupted = errors.New("interrupted")
