package httpcall_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestAKeyInAURLIsNotShown(t *testing.T) {
	t.Run("RCH-05 an error about a server that is not there names it without the key", func(t *testing.T) {
		_, _, err := httpcall.Server{Agent: "test/1"}.Do(t.Context(), http.MethodPost, "http://127.0.0.1:1/mcp/u/the-key?x=1", nil, nil)
		if err == nil || strings.Contains(err.Error(), "the-key") || !strings.Contains(err.Error(), "http://127.0.0.1:1/mcp/u/xxxxx?x=1") {
			t.Errorf("got %v", err)
		}
	})
	for given, want := range map[string]string{
		"https://events.example.com/mcp":          "https://events.example.com/mcp",
		"https://events.example.com/mcp/u/k1":     "https://events.example.com/mcp/u/xxxxx",
		"https://e.example.com/a/mcp/u/k1/x#y":    "https://e.example.com/a/mcp/u/xxxxx/x#y",
		"https://me:password@events.example.com/": "https://me:xxxxx@events.example.com/",
		"http://[::1/mcp/u/k1":                    "http://[::1/mcp/u/xxxxx",
	} {
		expect.Equal(t, fmt.Sprintf("RCH-05 %s", given), httpcall.Redact(given), want)
	}
}

func TestTheURLOfAServer(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:0", "http://127.0.0.1:99999", "https://events.example.com:-1", "http://:8080", "events.example.com", "ftp://events.example.com"} {
		expect.Fault(t, "OPS-10 "+url, expect.ErrOf((httpcall.Server{URL: url}).Endpoint("/mcp")), fault.Invalid)
	}
	for _, url := range []string{"http://127.0.0.1:8080", "https://events.example.com", "https://[::1]:65535"} {
		expect.Equal(t, "OPS-10 "+url, expect.Value((httpcall.Server{URL: url}).Endpoint("/mcp"))(t), url+"/mcp")
	}
}

// A key that was read from a file often ends with a line break.
func TestAKeyThatNoHeaderCanHaveIsRefused(t *testing.T) {
	for _, server := range []httpcall.Server{{Key: "secret\n"}, {Agent: "a\rb"}} {
		_, _, err := server.Do(t.Context(), http.MethodPost, "http://127.0.0.1:1/mcp", nil, nil)
		expect.Fault(t, "a request", err, fault.Invalid)
		expect.Error(t, "a request", err, "line break")
		expect.True(t, "the error does not contain the key", !strings.Contains(err.Error(), "secret"))
	}
}
