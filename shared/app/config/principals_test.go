package config

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func TestPrincipals(t *testing.T) {
	t.Run("EVX-25 a principal has its own profile, that of its workspace, or none", func(t *testing.T) {
		c, err := Parse([]byte(`principals:
  - {principal: alice, profile: final}
  - {workspace: small, profile: final}
  - {workspace: small, principal: bob, profile: released}
`))
		must(t, err)
		for who, want := range map[string]spec.Profile{
			"default alice": spec.Final, "default bob": "", "small alice": spec.Final, "small bob": spec.Released,
		} {
			workspace, principal, _ := strings.Cut(who, " ")
			if got := c.Profile(workspace, principal); got != want {
				t.Errorf("%s has the profile %q, want %q", who, got, want)
			}
		}
	})
	t.Run("EVX-25 mistakes are refused with their line", func(t *testing.T) {
		_, err := Parse([]byte(`principals:
  - {principal: alice}
  - {principal: bob, profile: draft}
  - {principal: "", profile: final}
  - {principal: eve, profile: final}
  - {principal: eve, profile: released}
  - {principal: dan, profile: final, revision: 1}
`))
		for _, want := range []string{
			`:2: a principal: profile "" is not allowed (allowed: released, final)`, `:3: a principal: profile "draft" is not allowed`,
			":4: principal: must not be empty", ":6: a principal: eve of workspace default was already given in line 5", `:7: a principal: unknown member "revision"`,
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("no %q in %v", want, err)
			}
		}
	})
}

func TestRemovedSettings(t *testing.T) {
	t.Run("EVX-25 a removed setting is an error that names its replacement", func(t *testing.T) {
		for variable, value := range map[string]string{
			"MCPEVENTS_WEBHOOK_ID": "event", "MCPEVENTS_EVENT_CODES": "sketch", "MCPEVENTS_UNKNOWN_UNSUBSCRIBE": "empty",
			EnvSettings: "quota=50; event-codes=sketch",
		} {
			_, err := FromEnv(environ(map[string]string{variable: value}))
			if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), "use --profile (MCPEVENTS_PROFILE) instead") {
				t.Errorf("%s=%s: got %v", variable, value, err)
			}
		}
	})
	t.Run("a deployment that sets a value that is fixed now starts with a warning", func(t *testing.T) {
		env := environ(map[string]string{"MCPEVENTS_CALLS": "500", EnvSettings: "quota=50; jwt-leeway=never", "MCPEVENTS_SESSIONS": ""})
		if l, err := FromEnv(env); err != nil || l.Quota != 50 {
			t.Errorf("got the quota %d, %v; want 50", l.Quota, err)
		}
		var log strings.Builder
		LogFixed(env, slog.New(slog.NewTextHandler(&log, nil)))
		for _, want := range []string{`setting=calls why="it was removed; use quotas in the configuration instead"`, `setting=jwt-leeway why="it was removed; it is always 30s"`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("got the log %s, want %s in it", log.String(), want)
			}
		}
		if n := strings.Count(log.String(), "setting ignored"); n != 2 {
			t.Errorf("got %d warnings, want 2", n)
		}
	})
	t.Run("a Go program that sets a value that is fixed now gets an error", func(t *testing.T) {
		if _, err := FromNames(map[string]string{"sessions": "5"}); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), "use quotas") {
			t.Errorf("got %v, want Invalid with the replacement", err)
		}
	})
}
