//go:build unix

package harness

import (
	"context"
	"net/http"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// Dialect returns a client of the named-event dialect in a workspace. Its session is empty until [Client.OpenDialect].
func (t *Target) Dialect(principal, workspace string) *Client {
	return &Client{URL: t.MCP + "/" + workspace, Key: t.Keys[principal]}
}

// OpenDialect opens the stream of the dialect, from behind lastEventID unless it
// is empty, and takes on its session. Messages have their names in [Message.Event].
func (c *Client) OpenDialect(tb testing.TB, lastEventID string) *Stream {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	expect.OK(tb, err)
	c.header(req.Header)
	req.Header.Del("Mcp-Protocol-Version")
	req.Header.Set("Accept", "text/event-stream")
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	s, err := open(req, cancel, true)
	if err != nil {
		tb.Fatalf("GET %s: %v", c.URL, err)
	}
	tb.Cleanup(s.Close)
	c.Session = s.Header.Get("Mcp-Session-Id")
	return s
}
