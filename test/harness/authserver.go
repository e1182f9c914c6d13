//go:build unix

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// AuthServer is the authorization server of test/interop/testdata/authserver as a process.
type AuthServer struct {
	Issuer string

	tb  testing.TB
	p   *process
	out *expect.Buffer
}

// AuthSecret is the secret of every client of the authorization server.
const AuthSecret = "s3cret:%+ ?"

// StartAuthServer builds and starts the authorization server, and ends it with the test. Its tokens are for the given audience, and the
// client keyholder has the given public key.
func StartAuthServer(tb testing.TB, audience, jwk string) *AuthServer {
	tb.Helper()
	root := Root(tb)
	binary, err := goBuild(root, filepath.Join(root, "test", "interop", "testdata", "authserver"), "authserver", "CGO_ENABLED=0", ".")
	expect.OK(tb, err)
	addr := FreeAddr(tb)
	a := &AuthServer{Issuer: "http://" + addr, tb: tb, out: new(expect.Buffer)}
	if a.p, err = begin(tb.TempDir(), nil, a.out, binary, "--addr", addr, "--mcp", audience, "--jwk", jwk); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		a.Kill()
		keepOutput(tb, "the authorization server", a.out)
	})
	Eventually(tb, Patience, "the authorization server answers", func() bool {
		resp, err := plain.Get(a.Issuer + "/exchanges")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return a
}

// Kill ends it with SIGKILL.
func (a *AuthServer) Kill() { a.p.kill() }

// Token returns an access token for the MCP endpoint.
func (a *AuthServer) Token(tb testing.TB, client, scopes string) string {
	tb.Helper()
	var got struct {
		Token string `json:"access_token"`
	}
	expect.OK(tb, a.post(tb.Context(), "/oauth/token", client, url.Values{"grant_type": {"client_credentials"}, "scope": {scopes}}, &got))
	return got.Token
}

// Introspection is the authorization server's description of a token (RFC 7662).
type Introspection struct {
	Active  bool
	Subject string `json:"sub"`
	Scope   string
	Expires int64 `json:"exp"`
}

// Introspect returns the description of a token for the given client, which must be in its audience.
func (a *AuthServer) Introspect(tb testing.TB, client, token string) (got Introspection) {
	tb.Helper()
	expect.OK(tb, a.post(tb.Context(), "/oauth/introspect", client, url.Values{"token": {token}}, &got))
	return got
}

// Exchanges returns how many token exchanges were asked for.
func (a *AuthServer) Exchanges(tb testing.TB) (n int) {
	tb.Helper()
	resp, err := plain.Get(a.Issuer + "/exchanges")
	expect.OK(tb, err)
	defer resp.Body.Close()
	expect.OK(tb, expect.ErrOf(fmt.Fscan(resp.Body, &n)))
	return n
}

func (a *AuthServer) post(ctx context.Context, path, client string, form url.Values, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.Issuer+path, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(url.QueryEscape(client), url.QueryEscape(AuthSecret))
	resp, err := plain.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || json.Unmarshal(body, to) != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d, %s, %v", path, resp.StatusCode, body, err)
	}
	return nil
}
