package operators

import (
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestURLsOfBackendsAreShownWithoutSecrets(t *testing.T) {
	for url, want := range map[string]string{
		"https://mcp.example.com/mcp?api_key=secret#x": "https://mcp.example.com/mcp",
		"https://user:secret@mcp.example.com/mcp":      "https://mcp.example.com/mcp",
		"http://127.0.0.1:9000/mcp":                    "http://127.0.0.1:9000/mcp",
		"":                                             "",
	} {
		expect.Equal(t, fmt.Sprintf("GWN-05 %s", url), withoutSecrets(url), want)
	}
}
