package tools

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestRequestsInFlightAreBoundedInABatch(t *testing.T) {
	var batch []string
	for i := range maxInFlight + 2 {
		batch = append(batch, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
	}
	client, out := io.Pipe()
	in := io.NopCloser(strings.NewReader("[" + strings.Join(batch, ",") + "]\n" + ping))
	c := expect.Value(bounded{&mcp.IOTransport{Reader: in, Writer: out}}.Connect(t.Context()))(t)
	var ids []sdk.ID
	for range maxInFlight {
		m := expect.Value(c.Read(t.Context()))(t)
		ids = append(ids, m.(*sdk.Request).ID)
	}
	m, err := c.Read(t.Context()) // refuses the rest of the batch and reads the next line, whose id is in flight
	expect.OK(t, err)
	if id := m.(*sdk.Request).ID; id != ids[1] {
		t.Errorf("RCH-04: got request %v while %d others are in flight, want %v", id.Raw(), maxInFlight, ids[1].Raw())
	}
	go func() {
		for _, id := range ids {
			_ = c.Write(t.Context(), &sdk.Response{ID: id, Result: []byte(`{}`)})
		}
		_ = out.Close()
	}()
	answer, _ := bufio.NewReader(client).ReadString('\n')
	expect.Equal(t, "RCH-04: requests of a batch that were served", strings.Count(answer, `"result"`), maxInFlight)
	if n := strings.Count(answer, `{"code":429,"message":"64 requests are in flight (allowed: 64): wait for an answer first"}`); n != 2 {
		t.Errorf("RCH-04: %d requests were refused, want 2: %s", n, answer)
	}
}
