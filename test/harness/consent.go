//go:build unix

package harness

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// Consent sends a request to path below /consent and decodes the answer into out, unless out is nil. If principal is empty,
// the request has no key.
func (t *Target) Consent(tb testing.TB, principal, method, path string, out any) int {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, strings.TrimSuffix(t.MCP, "/mcp")+"/consent"+path, nil)
	expect.OK(tb, err)
	if key := t.Keys[principal]; key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := callers.Do(req)
	expect.OK(tb, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	expect.OK(tb, err)
	if out != nil {
		if err := json.Unmarshal(body, out); err != nil {
			tb.Fatalf("%s /consent%s: %v: %.300q", method, path, err, body)
		}
	}
	return resp.StatusCode
}
