package main

import (
	"context"
	"io"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestToolsOverStdio(t *testing.T) {
	s := servertest.Start(t, servertest.Options(t, map[string]servertest.Caller{"agent": {Workspace: "default", Scopes: "events:read"}}))
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run([]string{"mcp", "--server", s.URL, "--key", "agent"}, in, out, t.Output())
		_ = out.Close()
		ended <- code
	}()
	ctx, cancel := context.WithTimeout(t.Context(), servertest.Patience)
	defer cancel()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx, &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	expect.OK(t, err)
	t.Run("RCH-04 a client over stdio subscribes", func(t *testing.T) {
		got, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "subscribe", Arguments: map[string]any{"name": "ci.build_finished"}})
		if err != nil || got.IsError {
			t.Errorf("got %+v, %v, want a result", got, err)
		}
	})
	t.Run("RCH-04 it ends with its input", func(t *testing.T) {
		_ = session.Close()
		expect.Equal(t, "the exit code", expect.Receive(t, "the end of the command", ended), exitDone)
	})
}
