package standalone

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/operate/admin/operate"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-05: the query of a backend's URL, which often contains a key, is shown nowhere. The same holds for the query of the URL at which
// the gateway gets tokens for the backend. The configuration refuses URLs with user information, and its error does not show it.
func TestKeysInURLsOfBackendsAreNotShown(t *testing.T) {
	const key = "hush"
	up := httptest.NewServer(http.HandlerFunc(new(counts).backend))
	defer up.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	log, spans := new(expect.Buffer), tracetest.NewSpanRecorder()
	c := configured(t, fmt.Sprintf(`backends:
  - {name: up, url: "%[1]s/mcp?key=%[3]s", prefix: up_}
  - {name: gone, url: "%[2]s/mcp?key=%[3]s", prefix: gone_}
  - name: token
    url: "%[1]s/mcp?key=%[3]s"
    prefix: token_
    oauth: {tokenUrl: "%[2]s/token?key=%[3]s", clientId: me, clientSecret: "env:MCPEVENTS_TEST_BUILDS"}
`, up.URL, gone.URL, key))
	s := serve(t, func(o *Options) {
		o.Config, o.Traces = c, sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	answers := ""
	for _, b := range c.Backends {
		_, text := read(t, call(t, s, "", "tools/call", map[string]any{"name": b.Name + "_tool", "arguments": map[string]any{}}))
		answers += text + "\n"
	}
	_, lists := read(t, call(t, s, "", "tools/list", map[string]any{}))

	shown := map[string]string{"the answers to calls": answers, "the list of tools": lists}
	for _, path := range []string{"/admin/v1/backends", "/admin/v1/audit", "/admin/v1/overview", "/console/", "/metrics", "/readyz", "/healthz"} {
		_, shown[path] = ask(t, s, "", "GET", path, "")
	}
	shown["/debug/vars"] = string(expect.Value(json.Marshal(s.Counters()))(t))
	for _, format := range []string{"", "json", "yaml"} {
		var out, says bytes.Buffer
		command := operate.Command{
			Terminal: operate.Terminal{Out: &out, Err: &says, Agent: "test/1"}, API: "GET backends", Columns: []string{"name", "url", "warnings"}, Format: format, Wide: true,
		}
		expect.OK(t, command.Run(t.Context(), httpcall.Server{URL: s.URL, Agent: "test/1"}))
		shown["mcpevents backends list -o "+format] = out.String() + says.String()
	}
	end(t, s)
	shown["the log"] = log.String()
	for _, span := range spans.Ended() {
		shown["the traces"] += fmt.Sprintln(span.Name(), span.Attributes(), span.Status(), span.Events())
	}
	for _, url := range []string{"ftp://me:" + key + "@b.example/?key=" + key, "http://[::1/?key=" + key, "https://me:" + key + "@b.example/"} {
		_, err := config.Parse([]byte("backends: [{name: b, url: '" + url + "'}]\n"))
		shown["the error about "+url] = fmt.Sprint(err)
	}

	// Some of these must name a backend. Otherwise they could not show its URL, and the test would not show anything.
	for where, name := range map[string]string{
		"/admin/v1/backends": up.URL + "/mcp", "mcpevents backends list -o json": up.URL + "/mcp", "/metrics": `"gone"`,
		"the log": "get a token for backend token", "the traces": "gone",
	} {
		expect.Contains(t, where, shown[where], name)
	}
	for where, text := range shown {
		if text == "" || strings.Contains(text, key) {
			t.Errorf("%s is empty or shows the key: %.2000s", where, text)
		}
	}
}
