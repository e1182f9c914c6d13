package config

import (
	"context"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

// GWN-01: a change of a setting that may change what clients see of a backend changes the fingerprint of its workspace. The
// fingerprints of other workspaces stay the same.
func TestFingerprint(t *testing.T) {
	const (
		a     = "{name: a, url: 'https://a.example/mcp'}"
		b     = "{name: b, url: 'https://b.example/mcp', workspace: other}"
		oauth = "{name: a, url: 'https://a.example/mcp', oauth: {tokenUrl: 'https://t.example/', clientId: c, clientSecret: 'env:S'}}"
	)
	parse := func(backends ...string) *Config {
		t.Helper()
		src := "backends:\n"
		for _, x := range backends {
			src += "  - " + x + "\n"
		}
		if len(backends) == 0 {
			src = "backends: []\n"
		}
		c, err := Parse([]byte(src))
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		return c
	}
	before := parse(a, b)
	if got := parse(a, b).Fingerprint("default"); got == "" || got != before.Fingerprint("default") || before.Fingerprint("other") == "" || before.Fingerprint("third") != "" {
		t.Errorf("got fingerprint %q, want the same for the same backends, and none only for workspace third", got)
	}
	for _, c := range []struct {
		what  string
		after *Config
		want  []string
	}{
		{"nothing", parse(b, a), nil},
		{"none", parse(), []string{"default", "other"}},
		{"one is gone", parse(a), []string{"other"}},
		{"another workspace", parse(a, "{name: b, url: 'https://b.example/mcp', workspace: third}"), []string{"other", "third"}},
		{"url", parse("{name: a, url: 'https://c.example/mcp'}", b), []string{"default"}},
		{"name", parse("{name: c, url: 'https://a.example/mcp'}", b), []string{"default"}},
		{"prefix", parse("{name: a, url: 'https://a.example/mcp', prefix: x_}", b), []string{"default"}},
		{"scopes", parse("{name: a, url: 'https://a.example/mcp', scopes: [x]}", b), []string{"default"}},
		{"revision", parse("{name: a, url: 'https://a.example/mcp', protocolVersion: '2025-11-25'}", b), []string{"default"}},
		{"caller's token", parse("{name: a, url: 'https://a.example/mcp', forwardToken: true}", b), []string{"default"}},
		{"header", parse("{name: a, url: 'https://a.example/mcp', headers: {X-Tenant: one}}", b), []string{"default"}},
		{"reference", parse("{name: a, url: 'https://a.example/mcp', headers: {Authorization: 'env:A'}}", b), []string{"default"}},
		{"oauth", parse(oauth, b), []string{"default"}},
	} {
		if got := changedBackends(before, c.after); !slices.Equal(got, c.want) {
			t.Errorf("%s: got changed backends in workspaces %q, want %q", c.what, got, c.want)
		}
	}
	one, two := parse("{name: a, url: 'https://a.example/mcp', headers: {X-Tenant: one}}"), parse("{name: a, url: 'https://a.example/mcp', headers: {X-Tenant: two}}")
	if got := changedBackends(one, two); !slices.Equal(got, []string{"default"}) {
		t.Errorf("after a change of a header's value: got changed backends in workspaces %q, want default", got)
	}
}

// GWN-01: storing a configuration records the workspaces whose backends have changed, so that their clients are notified.
// Each version of the configuration has records of its own.
func TestApplySaysWhoseBackendsChanged(t *testing.T) {
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	must(t, err)
	defer func() { _ = db.Close() }()
	for _, src := range []string{
		"backends:\n  - {name: a, url: 'https://a.example/mcp'}\n",
		"# the same\nbackends:\n  - {name: a, url: 'https://a.example/mcp'}\n",
		"backends:\n  - {name: a, url: 'https://a.example/mcp'}\n  - {name: b, url: 'https://b.example/mcp', workspace: other}\n",
	} {
		replace(t, db, src)
	}
	announced := map[settings.Change]int{}
	err = settings.Announce(t.Context(), db, 0, func(_ context.Context, c settings.Change) error {
		announced[c]++
		return nil
	})
	if err != nil || len(announced) != 2 || announced[settings.Change{Kind: settings.Backends, Workspace: "default", Version: 1}] != 1 ||
		announced[settings.Change{Kind: settings.Backends, Workspace: "other", Version: 3}] != 1 {
		t.Errorf("announced %v, %v; want default in version 1 and other in version 3", announced, err)
	}
}
