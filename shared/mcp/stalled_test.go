package mcp

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestStalledReadersAtTheEnd closes an endpoint while clients take nothing of what they
// are sent.
func TestStalledReadersAtTheEnd(t *testing.T) {
	f := newFixture(t, nil)
	session := f.session(bob, spec.V20251125)
	f.sessionBased(bob, session, spec.MethodSubscribe, `"uri":"event://ci/deploy"`)
	requests := map[string]*http.Request{
		"listen": f.statelessRequest(alice, spec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci/deploy"]}`),
		"push":   f.statelessRequest(reader, spec.MethodEventsStream, `"name":"ci.deploy"`),
		"GET":    f.request("GET", bob, "", "Mcp-Session-Id: "+session),
	}
	for _, r := range requests {
		c, err := net.Dial("tcp", f.server.Listener.Addr().String())
		must(t, err)
		defer c.Close()
		must(t, c.(*net.TCPConn).SetReadBuffer(4<<10))
		must(t, r.Write(c)) // and reads nothing
	}
	f.waitFor("the streams", func() bool { return f.endpoint.OpenStreams() >= int64(len(requests)) })
	reading := f.listen(alice, "2", `{"resourceSubscriptions":["event://ci/deploy"]}`)
	reading.next()
	for i := range 40 { // 9 MiB, more than the connections hold
		f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d,"x":"%s"}`, i, strings.Repeat("x", 230<<10)))
		reading.next()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than a write may take
	defer cancel()
	began := time.Now()
	if err := f.endpoint.Close(ctx); err != nil {
		t.Errorf("SUB-06: after %v: %v", time.Since(began), err)
	}
	if m := reading.next(); m.Result.ResultType != "complete" {
		t.Errorf("SUB-06: the reader got %s instead of its result", m.sse.Data)
	}
}
