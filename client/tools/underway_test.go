package tools

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestTheRequestsUnderWayAreBoundedInABatch(t *testing.T) {
	var batch []string
	for i := range maxUnderWay + 2 {
		batch = append(batch, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
	}
	client, out := io.Pipe()
	in := io.NopCloser(strings.NewReader("[" + strings.Join(batch, ",") + "]\n" + ping))
	c, err := bounded{&mcp.IOTransport{Reader: in, Writer: out}}.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []sdk.ID
	for range maxUnderWay {
		m, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.(*sdk.Request).ID)
	}
	m, err := c.Read(t.Context()) // refuses the rest of the batch, and reads the next line, whose id is under way
	if err != nil {
		t.Fatal(err)
	}
	if id := m.(*sdk.Request).ID; id != ids[1] {
		t.Errorf("RCH-04: request %v is read while %d others are under way", id.Raw(), maxUnderWay)
	}
	go func() {
		for _, id := range ids {
			_ = c.Write(t.Context(), &sdk.Response{ID: id, Result: []byte(`{}`)})
		}
		_ = out.Close()
	}()
	answer, _ := bufio.NewReader(client).ReadString('\n')
	if n := strings.Count(answer, `"result"`); n != maxUnderWay {
		t.Errorf("RCH-04: %d requests are served of a batch (allowed: %d)", n, maxUnderWay)
	}
	if n := strings.Count(answer, `{"code":429,"message":"64 requests are under way, which is the most: wait for an answer first"}`); n != 2 {
		t.Errorf("RCH-04: %d requests are refused in %s", n, answer)
	}
}
