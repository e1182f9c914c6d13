//go:build unix

package harness

import (
	"testing"
)

// Dialect returns a client of the named-event dialect in a workspace. Its session is empty until [Client.OpenDialect].
func (t *Target) Dialect(principal, workspace string) *Client {
	return &Client{URL: t.MCP + "/" + workspace, Key: t.Keys[principal]}
}

// OpenDialect opens the stream of the dialect, from behind lastEventID unless it
// is empty, and takes on its session. Messages have their names in [Message.Event].
func (c *Client) OpenDialect(tb testing.TB, lastEventID string) *Stream {
	tb.Helper()
	s, err := c.get(tb.Context(), lastEventID, true)
	if err != nil {
		tb.Fatalf("GET %s: %v", c.URL, err)
	}
	tb.Cleanup(s.Close)
	c.Session = s.Header.Get("Mcp-Session-Id")
	return s
}
