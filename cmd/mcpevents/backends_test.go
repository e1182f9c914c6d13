package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpevents/shared/config"
	"mcpevents/shared/fault"
	"mcpevents/test/backend"
)

// GWN-01, GWN-19: a changed file brings backends and takes them away while the server runs; one that refers
// to a secret that is not there changes nothing.
func TestReloadOfBackends(t *testing.T) {
	handler, err := backend.New(backend.Stateless)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	var now Settings
	e := serve(t, func(s *Settings) { now = *s })
	reload := func(src string) error {
		t.Helper()
		c, err := config.Parse([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		s := now
		s.Config = c
		return e.Reload(t.Context(), s)
	}
	tools := func() (names []string) {
		t.Helper()
		client := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
		session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: e.URL + "/mcp", HTTPClient: http.DefaultClient, DisableStandaloneSSE: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
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
	entry := "  - {name: b, url: " + server.URL + "/mcp, prefix: b_}\n"
	for _, step := range []struct {
		what, config string
		want         string
	}{
		{"none", "", ""},
		{"one", "backends:\n" + entry, "b_" + name},
		{"another prefix", "backends:\n" + strings.Replace(entry, "b_", "c_", 1), "c_" + name},
		{"a secret that is not there", "backends:\n  - {name: x, url: " + server.URL + "/mcp, headers: {Authorization: 'env:BACKENDS_TEST_NOT_SET'}}\n", "c_" + name},
		{"a secret of AWS", "backends:\n  - {name: x, url: " + server.URL + "/mcp, headers: {Authorization: 'ssm:/a'}}\n", "c_" + name},
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
