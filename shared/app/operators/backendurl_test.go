package operators

import "testing"

func TestURLsOfBackendsAreShownWithoutSecrets(t *testing.T) {
	for url, want := range map[string]string{
		"https://mcp.example.com/mcp?api_key=secret#x": "https://mcp.example.com/mcp",
		"https://user:secret@mcp.example.com/mcp":      "https://mcp.example.com/mcp",
		"http://127.0.0.1:9000/mcp":                    "http://127.0.0.1:9000/mcp",
		"":                                             "",
	} {
		if got := withoutSecrets(url); got != want {
			t.Errorf("GWN-05 %s is shown as %s, want %s", url, got, want)
		}
	}
}
