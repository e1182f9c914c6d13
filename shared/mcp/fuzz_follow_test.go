package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// FuzzFollow sends any params to events/poll and events/stream: they are answered in
// form, never with an internal error, and a stream that opens says so first.
func FuzzFollow(f *testing.F) {
	for _, seed := range []string{
		`{"name":"ci.deploy"}`,
		`{"name":"ci.build","arguments":{"status":["a","b*"]},"cursor":null,"maxAgeMs":1e3,"maxEvents":5}`,
		`{"name":"github.push","arguments":{"owner":"a/b","repo":"*"},"cursor":"AQ"}`,
		`{"name":"github.pull_request","arguments":{"owner":"acme","repo":"\u0000"},"maxAgeMs":0,"maxEvents":0.5}`,
		`{"name":"tenant.alarm","arguments":null,"cursor":"","maxAgeMs":-1}`,
		`{"name":7,"arguments":[],"maxEvents":99999999999999999999}`,
		`[]`, `null`, `{`,
	} {
		f.Add(seed)
	}
	x := newEndpoint(f, nil)
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	f.Fuzz(func(t *testing.T, params string) {
		if len(params) > 1<<16 {
			return
		}
		if rest, ok := strings.CutPrefix(params, "{"); ok {
			if strings.TrimSpace(rest) != "}" {
				rest = "," + rest
			}
			params = "{" + meta + rest
		}
		for _, method := range []string{spec.MethodEventsPoll, spec.MethodEventsStream} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			w := &written{header: http.Header{}}
			body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
			x := *x
			x.t = t
			x.endpoint.ServeHTTP(w, x.request("POST", acme, body, statelessHeaders(method, "")...).WithContext(ctx))
			cancel()
			text := w.text()
			if first, ok := strings.CutPrefix(text, "data: "); ok {
				text, _, _ = strings.Cut(first, "\n")
			}
			var m struct {
				Method string
				Result json.RawMessage
				Error  *struct{ Code int }
			}
			if err := json.Unmarshal([]byte(text), &m); err != nil {
				t.Fatalf("%s %s: %q: %v", method, params, text, err)
			}
			switch {
			case m.Error != nil && (m.Error.Code == -32603 || m.Error.Code == 0):
				t.Errorf("%s %s: %s", method, params, text)
			case m.Error == nil && m.Result == nil && m.Method != spec.NoteEventsActive:
				t.Errorf("%s %s: %s", method, params, text)
			}
		}
	})
}
