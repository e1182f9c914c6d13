package mcp

import (
	"io"
	"strings"
	"testing"
)

// TestWhileTheStoreIsGone: AUT-06: what the server tried is not told.
func TestWhileTheStoreIsGone(t *testing.T) {
	f := newFixture(t, nil)
	must(t, f.db.(io.Closer).Close())
	for name, r := range map[string]reply{
		"read":       f.modern(alice, methodRead, `"uri":"event://ci/deploy"`),
		"poll":       f.modern(alice, methodEventsPoll, `"name":"github.push","arguments":{"owner":"acme"}`),
		"listen":     f.modern(alice, methodListen, `"notifications":{"resourceSubscriptions":["event://ci"]}`),
		"initialize": f.do("POST", alice, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`),
		"a session":  f.legacy(alice, "some", methodPing, ""),
	} {
		m := r.rpc(t)
		if m.Error == nil || m.Error.Code != codeUnavailable || m.Error.Message != "this cannot be done now; try again" || strings.Contains(r.Body, "data") {
			t.Errorf("%s: %d %s", name, r.Status, r.Body)
		}
	}
}
