package server

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// A database that was restored without its keys, or with those of another, cannot sign a single webhook.
func TestKeysThatDoNotOpenTheSecretsAreRefused(t *testing.T) {
	var settings Options
	e := serve(t, func(s *Options) { settings = *s })
	registerHook(t, e)
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
	refused := func(want string) {
		t.Helper()
		e, err := New(t.Context(), settings)
		if err == nil {
			end(t, e)
			t.Fatal("it started")
		}
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), path+" "+want) {
			t.Errorf("got %v of kind %v", err, fault.KindOf(err))
		}
	}
	starts := func() {
		t.Helper()
		e, err := New(t.Context(), settings)
		if err != nil {
			t.Fatal(err)
		}
		end(t, e)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		refused("is missing")
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("keys were made all the same: %v", err)
		}
	}
	if err := os.WriteFile(path, other, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("has other keys")
	if err := os.WriteFile(path, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	starts()
	if err := RotateKeys(settings.Data); err != nil {
		t.Fatal(err)
	}
	starts()
}

// A database of a version before has no mark of the keys.
func TestMissingKeysAreRefusedWithoutAMarkToo(t *testing.T) {
	var settings Options
	e := serve(t, func(s *Options) { settings = *s })
	registerHook(t, e)
	if err := e.db.Write(t.Context(), store.Delete(sealedKey)); err != nil {
		t.Fatal(err)
	}
	end(t, e)
	if err := os.Remove(secretsPath(settings.Data)); err != nil {
		t.Fatal(err)
	}
	e, err := New(t.Context(), settings)
	if err == nil {
		end(t, e)
		t.Fatal("it started")
	}
	if !strings.Contains(err.Error(), "keys.json is missing") {
		t.Error(err)
	}
}

// registerHook registers a webhook of SEP-1803 at a server.
func registerHook(t *testing.T, e *Server) {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"resources/subscriptions/register","params":{"uris":["event://ci/build-finished"],"targetUri":"http://127.0.0.1:9/hook","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "resources/subscriptions/register",
		"Accept": "application/json, text/event-stream",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || strings.Contains(string(answer), `"error"`) {
		t.Fatalf("%d %s", resp.StatusCode, answer)
	}
}
