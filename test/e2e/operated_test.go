//go:build unix

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/operate/admin/admintest"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// operated is a system as its operators see it. It validates every response against the OpenAPI document that the
// system serves.
type operated struct {
	*testing.T
	target   *harness.Target
	contract *admintest.Contract
}

func operate(t *testing.T, target *harness.Target) *operated {
	t.Helper()
	o := &operated{T: t, target: target}
	_, raw := o.send("chief", "GET", "openapi.json", "")
	var err error
	if o.contract, err = admintest.Parse(raw); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return o
}

// send sends a request as a principal, or without credentials if the principal is "".
func (o *operated) send(who, method, path, body string) (*http.Response, []byte) {
	o.Helper()
	req := expect.Value(http.NewRequestWithContext(o.Context(), method, o.target.Admin+path, strings.NewReader(body)))(o)
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+cmp.Or(o.target.Keys[who], "key_of_nobody"))
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp := expect.Value(http.DefaultClient.Do(req))(o)
	defer resp.Body.Close()
	raw := expect.Value(io.ReadAll(resp.Body))(o)
	return resp, raw
}

// ask sends a request and validates the response.
func (o *operated) ask(who, method, path, body string) (status int, raw []byte) {
	o.Helper()
	resp, raw := o.send(who, method, path, body)
	if err := o.contract.Check(method, strings.TrimPrefix(resp.Request.URL.Path, "/admin/v1"), resp, raw); err != nil {
		o.Errorf("OPS-01 %s %s: %s does not match the document: %v", method, path, raw, err)
	}
	return resp.StatusCode, raw
}

// call sends the operator's request and checks the status. It decodes the response into out, unless out is nil.
func (o *operated) call(method, path, body string, status int, out any) {
	o.Helper()
	o.callAs("chief", method, path, body, status, out)
}

func (o *operated) callAs(who, method, path, body string, status int, out any) {
	o.Helper()
	got, raw := o.ask(who, method, path, body)
	if got != status {
		o.Errorf("%s %s as %s: got %d %s, want %d", method, path, who, got, raw, status)
	}
	if out != nil && got == status {
		if err := json.Unmarshal(raw, out); err != nil {
			o.Fatalf("%v: %s", err, raw)
		}
	}
}

func (o *operated) list(path string) []object {
	o.Helper()
	var l struct{ Items []object }
	o.call("GET", path, "", http.StatusOK, &l)
	return l.Items
}

// members returns a member of each item of a list, in order.
func (o *operated) members(path, member string) string {
	o.Helper()
	var all []string
	for _, it := range o.list(path) {
		all = append(all, fmt.Sprint(it[member]))
	}
	return strings.Join(all, " ")
}
