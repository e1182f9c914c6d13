//go:build unix

package stdio

import (
	"bytes"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-26: whatever a process writes, a request gets only complete messages, and one response at most.
func FuzzOutput(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n", `[{"jsonrpc":"2.0","id":1.0,"error":{}},{"jsonrpc":"2.0","id":1,"result":{}}]` + "\r\n",
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"gw_1"}}` + "\n", "\n\r\n{\n}\n\xff",
		`{"jsonrpc":"2.0","id":9,"method":"roots/list"}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`,
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, output string, stateless bool) {
		p := &process{
			server: &server{t: &Transport{}, backend: api.Backend{Name: "fake"}}, stateless: stateless, out: make(chan []byte), stopping: make(chan struct{}),
			exchanges: map[string]*exchange{}, questions: map[string]question{}, late: map[string]bool{}, watched: map[string]bool{},
		}
		if !stateless {
			p.holder = "default/a"
		}
		x := &exchange{p: p, ctx: t.Context(), id: []byte("1"), method: "tools/call", wake: make(chan struct{}, 1), token: []byte("1"), sent: []byte(`"gw_1"`)}
		expect.OK(t, p.open(x, nil))
		p.stop("the test ends it")
		p.read(iotest.HalfReader(strings.NewReader(output)))
		responses := 0
		for _, m := range x.queue {
			if _, _, bad := jsonrpc.Split(m); bad != nil || bytes.ContainsAny(m, "\r\n") {
				t.Errorf("got %q", m)
			}
			if methodOf(m) == "" {
				responses++
			}
		}
		if responses > 1 || p.queued != x.size {
			t.Errorf("got %d responses and %d bytes, want at most one and %d", responses, p.queued, x.size)
		}
	})
}
