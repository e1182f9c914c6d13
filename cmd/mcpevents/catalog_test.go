package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestCatalogInit(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "catalog.yaml")
	t.Run("SRC-06 it writes a valid catalog", func(t *testing.T) {
		succeeds(t, "catalog init --from github,stripe --dir "+dir, "mcpevents serve --catalog "+file)
		succeeds(t, "catalog check "+file, "is valid and has 8 event types")
	})
	t.Run("SRC-06 it writes a configuration that turns GitHub's webhooks into events", func(t *testing.T) {
		body := expect.Value(os.ReadFile("../../shared/events/source/ready/testdata/github/pull_request.opened.json"))(t)
		request := "X-GitHub-Event: pull_request\nX-GitHub-Delivery: d-1\n\n" + string(body)
		code, out, errs := command(t, request, "source", "check", "--config", filepath.Join(dir, "config.yaml"), "--catalog", file, "--source", "github", "--request", "-")
		if code != exitDone || !strings.Contains(out, `"uri":"event://github/Codertocat/Hello-World/pull_request","id":"d-1"`) {
			t.Errorf("exit code %d: %.300s%s", code, out, errs)
		}
	})
	t.Run("SRC-06 it overwrites files only with --force", func(t *testing.T) {
		fails(t, "catalog init --from slack --dir "+dir, exitRefused, file, "--force")
		succeeds(t, "catalog init --from slack --force --dir "+dir)
		if out := succeeds(t, "catalog check "+file, "slack.message"); strings.Contains(out, "github.") {
			t.Errorf("got the catalog %s, want only the event types of Slack", out)
		}
	})
	t.Run("SRC-06 it lists the known providers", func(t *testing.T) {
		succeeds(t, "catalog init --list", "pagerduty", "github.pull_request, github.issues")
	})
	t.Run("SRC-06 it refuses an unknown or missing provider", func(t *testing.T) {
		fails(t, "catalog init --from gitea --dir "+t.TempDir(), exitRefused, `"gitea"`)
		fails(t, "catalog init", exitUsage, "--from")
	})
}

func TestCatalogCheckWithConfig(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	catalog := file("catalog.yaml", "events:\n  - {name: a.b, uri: event://a/b}\n")
	for name, tt := range map[string]struct{ config, want string }{
		"it is good":                    {"sources: [{name: x, from: sns, events: [{name: a.b}]}]", ""},
		"of another workspace":          {"sources: [{name: x, from: sns, workspace: other, events: [{name: a.c}]}]", ""},
		"a mistake in it":               {"sources:\n- {name: x, from: sns, events: [{name: a.b, data: $.Message}]}", "config.yaml:2: source x: events: data: "},
		"an event type that is missing": {"sources:\n- name: x\n  from: sns\n  events: [{name: a.c}]", "config.yaml: line 4: source x: a.c is not an event type"},
	} {
		t.Run("SRC-01 "+name, func(t *testing.T) {
			code, out, errs := command(t, "", "catalog", "check", catalog, "--config", file("config.yaml", tt.config))
			if (code == exitDone) != (tt.want == "") || strings.Contains(out, "config.yaml is valid and fits the catalog.") != (tt.want == "") || !strings.Contains(errs, tt.want) {
				t.Errorf("exit code %d: %s", code, errs)
			}
		})
	}
}
