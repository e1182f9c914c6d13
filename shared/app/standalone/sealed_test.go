package standalone

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A server refuses to start with a database that was restored without its keys or with the keys of another database,
// because it could not sign any webhook.
func TestKeysThatDoNotOpenTheSecretsAreRefused(t *testing.T) {
	var settings Options
	e := serve(t, func(s *Options) { settings = *s })
	subscribed(t, e, "http://127.0.0.1:9/hook", buildFinished)
	end(t, e)
	path := secretsPath(settings.Data)
	keys, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var foreign secrets
	if foreign, err = newSecrets(); err != nil {
		t.Fatal(err)
	}
	other, err := json.Marshal(foreign)
	if err != nil {
		t.Fatal(err)
	}
	missing := func() {
		t.Helper()
		refuses(t, settings, path+" is missing")
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("keys were created, want an error: %v", err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	missing()
	missing() // the refused start has not created new keys
	if err := os.WriteFile(path, other, 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, settings, path+" cannot open the webhook secrets")
	if err := os.WriteFile(path, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	starts(t, settings)
	if err := RotateKeys(settings.Data); err != nil {
		t.Fatal(err)
	}
	if e, err = New(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	// A database of an earlier version has no mark of the keys.
	err = e.db.Write(t.Context(), store.Delete(sealedKey))
	end(t, e)
	if err := errors.Join(err, os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	missing()
}
