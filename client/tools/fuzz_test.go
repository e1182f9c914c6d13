package tools

import (
	"bytes"
	"io"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/mcp-events/mcpevents/test/expect"
)

// FuzzLines tests that the session gets only lines that it can read, and that each other line is answered with one line.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\r\n[]\nx"))
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-03-26\"}}\n[{\"jsonrpc\":\"2.0\",\"method\":\"a\"}]"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		s := newStdio(bytes.NewReader(in), &out)
		got, err := io.ReadAll(s)
		s.end()
		expect.OK(t, err)
		written := 0
		for line := range bytes.Lines(in) {
			if len(bytes.TrimSpace(line)) > 0 {
				written++
			}
		}
		for line := range bytes.Lines(got) {
			if line[0] == '{' {
				if _, err := sdk.DecodeMessage(bytes.TrimSpace(line)); err != nil {
					t.Errorf("the session gets %q: %v", line, err)
				}
			}
		}
		expect.Equal(t, "lines that were passed on or refused", bytes.Count(got, []byte("\n"))+bytes.Count(out.Bytes(), []byte("\n")), written)
	})
}
