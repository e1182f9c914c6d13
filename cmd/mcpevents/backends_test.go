package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-01, GWN-19: a changed file adds and removes backends while the server runs. A file that refers to a missing secret keeps the
// old settings.
func TestReloadOfBackends(t *testing.T) {
	handler := expect.Value(backend.New(backend.Stateless))(t)
	upstream := httptest.NewServer(handler)
	t.Cleanup(upstream.Close)
	t.Cleanup(upstream.CloseClientConnections)
	var now standalone.Options
	e := serve(t, func(s *standalone.Options) { now = *s })
	reload := func(src string) error {
		t.Helper()
		c := expect.Value(config.Parse([]byte(src)))(t)
		s := now
		s.Config = c
		return e.Reload(t.Context(), s)
	}
	tools := func() (names []string) {
		t.Helper()
		client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
		session := expect.Value(client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: e.URL + "/mcp", HTTPClient: http.DefaultClient, DisableStandaloneSSE: true}, nil))(t)
		defer session.Close()
		list, err := session.ListTools(t.Context(), nil)
		if err != nil {
			return nil // there is no such method
		}
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	const name = "test_simple_text"
	entry := "  - {name: b, url: " + upstream.URL + "/mcp, prefix: b_}\n"
	for _, step := range []struct {
		what, config string
		want         string
	}{
		{"none", "", ""},
		{"one", "backends:\n" + entry, "b_" + name},
		{"another prefix", "backends:\n" + strings.Replace(entry, "b_", "c_", 1), "c_" + name},
		{"a secret that is not there", "backends:\n  - {name: x, url: " + upstream.URL + "/mcp, headers: {Authorization: 'env:BACKENDS_TEST_NOT_SET'}}\n", "c_" + name},
		{"a secret of AWS", "backends:\n  - {name: x, url: " + upstream.URL + "/mcp, headers: {Authorization: 'ssm:/a'}}\n", "c_" + name},
		{"none again", "backends: []\n", ""},
	} {
		err := reload(step.config)
		if refused := strings.HasPrefix(step.what, "a secret"); refused != fault.Is(err, fault.Invalid) || !refused && err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		got := tools()
		if step.want == "" && len(got) > 0 || step.want != "" && !slices.Contains(got, step.want) {
			t.Errorf("%s: the tools are %q", step.what, got)
		}
	}
}

// GWN-01, GWN-04: a reload notifies open streams of changed lists. A client that resumes from its cursor is notified of the lists that
// changed while the server was down. An unchanged file causes no notification.
func TestStreamsAreNotifiedOfOtherBackends(t *testing.T) {
	var now standalone.Options
	settings := func(s *standalone.Options) {
		if now.Data != "" {
			s.Data, s.Config = now.Data, now.Config
		}
		now = *s
	}
	use := func(url string) {
		t.Helper()
		c := expect.Value(config.Parse([]byte("backends:\n  - {name: b, url: " + url + "}\n")))(t)
		now.Config = c
	}
	const changed = `"notifications/tools/list_changed"`
	cursor := regexp.MustCompile(`"io.github.mcp-events/cursor":("[^"]+")`)
	listen := func(e *standalone.Server, meta string) *expect.Buffer {
		t.Helper()
		body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` +
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}` + meta + `}}}`
		req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL+"/mcp", strings.NewReader(body)))(t)
		req.Header = http.Header{
			"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
			"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"subscriptions/listen"},
		}
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		t.Cleanup(func() { _ = resp.Body.Close() })
		out := new(expect.Buffer)
		go func() { _, _ = io.Copy(out, resp.Body) }() // it ends with the server
		out.Await(t, "acknowledged", 1)
		return out
	}

	e := serve(t, settings)
	stream := listen(e, "")
	for n, url := range []string{"http://127.0.0.1:1/mcp", "http://127.0.0.1:1/mcp", "http://127.0.0.1:1/other"} {
		use(url)
		expect.OK(t, e.Reload(t.Context(), now))
		stream.Await(t, changed, []int{1, 1, 2}[n])
	}
	seen := cursor.FindAllStringSubmatch(stream.String(), -1)
	servertest.End(t, e)
	expect.Equal(t, "the notifications of two changes in "+stream.String(), strings.Count(stream.String(), changed), 2)
	use("http://127.0.0.1:1/third")
	again := listen(serve(t, settings), `,"io.github.mcp-events/cursor":`+seen[len(seen)-1][1])
	again.Await(t, changed, 1)
}
