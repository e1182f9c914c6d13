package standalone

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// patience bounds every wait.
const patience = 30 * time.Second

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serve starts a server with the sample catalog, and ends it with the test.
func serve(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	src := expect.Value(os.ReadFile("../../../catalog.yaml"))(t)
	s := Options{
		Addr: "127.0.0.1:0", Data: t.TempDir(), Catalog: src, CatalogName: "catalog.yaml", Auth: auth.ModeNone,
		Limits: config.DefaultLimits(), Log: quiet(),
	}
	s.Limits.AllowInsecureTargets = true
	if change != nil {
		change(&s)
	}
	e := expect.Value(New(t.Context(), s))(t)
	t.Cleanup(func() { end(t, e) })
	return e
}

// end shuts a server down. The server may have been shut down before.
func end(t *testing.T, e *Server) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections() // otherwise the server waits 5 s for a connection that was never used
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Shutdown(ctx); err != nil {
		t.Errorf("end the server: %v", err)
	}
}

// refuses checks that a server does not start with these options, and that the error contains a text.
func refuses(t *testing.T, o Options, says string) {
	t.Helper()
	s, err := New(t.Context(), o)
	if err == nil {
		end(t, s)
		t.Fatalf("the server started, want the error %q", says)
	}
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v of kind %v, want %s", err, fault.KindOf(err), says)
	}
}

// starts checks that a server starts with these options, and ends it.
func starts(t *testing.T, o Options) {
	t.Helper()
	s := expect.Value(New(t.Context(), o))(t)
	end(t, s)
}

// hash returns the SHA-256 hash of an API key, as a configuration contains it.
func hash(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}

// request sends a request with the key who, or without a key if who is empty. At /mcp, rpc is its method.
func request(t *testing.T, s *Server, who, method, path, rpc, body string) *http.Response {
	t.Helper()
	req := expect.Value(http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body)))(t)
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+who)
	}
	if rpc != "" {
		req.Header.Set(spec.HeaderVersion, string(spec.V20260728))
		req.Header.Set(spec.HeaderMethod, rpc)
	}
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	return resp
}

// read reads a response to its end.
func read(t *testing.T, resp *http.Response) (status int, text string) {
	t.Helper()
	defer resp.Body.Close()
	b := expect.Value(io.ReadAll(resp.Body))(t)
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// ask sends a request and reads the response.
func ask(t *testing.T, s *Server, who, method, path, body string) (status int, text string) {
	t.Helper()
	return read(t, request(t, s, who, method, path, "", body))
}

// call calls a method of /mcp.
func call(t *testing.T, s *Server, who, method string, params map[string]any) *http.Response {
	t.Helper()
	params["_meta"] = map[string]any{
		spec.MetaVersion: spec.V20260728, spec.MetaClient: map[string]string{"name": "test", "version": "1"}, spec.MetaCapabilities: map[string]any{},
	}
	body := expect.Value(json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))(t)
	return request(t, s, who, "POST", "/mcp", method, string(body))
}

// subscribed registers an endpoint for events.
func subscribed(t *testing.T, s *Server, endpoint, uri string) {
	t.Helper()
	status, text := read(t, call(t, s, "", spec.MethodRegister, map[string]any{"uris": []string{uri}, "targetUri": endpoint}))
	if status != http.StatusOK || strings.Contains(text, `"error"`) {
		t.Fatalf("%d %s", status, text)
	}
}

const (
	buildFinished = "event://ci/build-finished"
	pullRequest   = "event://github/acme/website/pull_request"
)

func TestLiveStreamsEndWithTheirKey(t *testing.T) {
	t.Parallel() // the server checks keys every five seconds
	operators := func(names ...string) *config.Config {
		text := "keys:\n"
		for _, name := range names {
			text += fmt.Sprintf("  - {principal: %s, sha256: %s, scopes: [events:operate]}\n", name, hash(name))
		}
		return configured(t, text)
	}
	var o Options
	s := serve(t, func(with *Options) {
		with.Auth, with.Config = auth.ModeKeys, operators("removed", "kept")
		o = *with
	})
	open := func(who string) (ended chan bool) {
		resp := request(t, s, who, "GET", "/admin/v1/live", "", "")
		t.Cleanup(func() { _ = resp.Body.Close() })
		ended = make(chan bool)
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
		return ended
	}
	kept, removed := open("kept"), open("removed")
	o.Config = operators("kept")
	expect.OK(t, s.Reload(t.Context(), o))
	select {
	case <-removed:
	case <-kept:
		t.Error("AUT-04 the stream of a key that is still there ended")
	case <-time.After(30 * time.Second):
		t.Error("AUT-04 the stream of a removed key is open after 30 s")
	}
}
