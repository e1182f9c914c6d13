package mcp

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Given a principal whose calls all wait for a backend and whose clients have left, when it makes one more, then that call is
// refused by name, and another principal's call is made.
func TestAUT_07_CallsOfClientsThatLeft(t *testing.T) {
	b := startSlowCalls(t, false)
	f := behindGateway(t, func(o *Options) { o.Calls = quota.NewHeld("calls", "calls", quota.Same(2), 100) }, b.lister)
	const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b_tool","arguments":{}}}`
	session := f.session(alice, spec.V20251125)
	var waiting []slowCall
	for range 2 {
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			res, err := http.DefaultClient.Do(f.request("POST", alice, body, "Mcp-Session-Id: "+session).WithContext(ctx))
			if err == nil {
				res.Body.Close()
			}
		}()
		waiting = append(waiting, <-b.calls)
		leave()
	}

	r := f.do("POST", alice, body, "Mcp-Session-Id: "+session)
	if r.code(t) != 429 || !strings.Contains(r.Body, `"limit":"calls","max":2`) {
		t.Errorf("a third call got %d %s, want error 429 with the limit calls", r.Status, r.Body)
	}

	other := make(chan reply)
	go func() { other <- f.do("POST", bob, body, "Mcp-Session-Id: "+f.session(bob, spec.V20251125)) }()
	close((<-b.calls).answer)
	if r := <-other; r.rpc(t).Error != nil {
		t.Errorf("another principal's call got %s", r.Body)
	}

	for _, call := range waiting {
		close(call.answer)
	}
}
