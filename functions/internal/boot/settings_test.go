package boot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// broken are values that are invalid for settings of any kind.
var broken = map[string]string{"MCPEVENTS_AUTH": "maybe", "MCPEVENTS_STREAM_MAX_AGE": "soon", "MCPEVENTS_STREAMS": "-1", "MCPEVENTS_JWT_ISSUER": "?"}

// AWS-02: invalid settings that a function does not need cannot stop it from starting.
func TestAFunctionIgnoresSettingsThatItDoesNotNeed(t *testing.T) {
	started(t, nil) // sets the region and credentials
	for need, names := range limitsOf {
		for _, name := range names {
			if !config.Names()[name] {
				t.Errorf("%s is not a limit", name)
			}
			if slices.ContainsFunc([]string{"issuer", "audience", "jwks", "claim", "origins", "targets", "prefix"}, func(part string) bool { return strings.Contains(name, part) }) {
				continue // any text is valid
			}
			for _, variable := range []map[string]string{
				{config.EnvName(name): "!"}, {config.EnvSettings: name + "=!"},
			} {
				env := environment(variable)
				getenv := func(name string) string { return env[name] }
				expect.Fault(t, fmt.Sprintf("a function that needs %v", variable), expect.ErrOf(build(getenv, need)), fault.Invalid)
				if _, err := build(getenv, All&^need); err != nil {
					t.Errorf("a function that does not need %v fails: %v", variable, err)
				}
			}
		}
	}
	env := environment(broken)
	for _, needs := range []Needs{0, Webhooks} {
		p, err := build(func(name string) string { return env[name] }, needs)
		if err != nil || p.Auth != nil {
			t.Errorf("%d: got %v, %v", needs, p, err)
		}
	}
	// The functions that end subscriptions look up principals.
	env = environment(map[string]string{envAuth: "keys"})
	p := expect.Value(build(func(name string) string { return env[name] }, Webhooks))(t)
	if _, ok := p.Auth.(auth.Directory); !ok {
		t.Error("no directory of principals is configured")
	}
}

// AWS-02: the check before a deployment refuses the settings with which functions would not start.
func TestWrongSettingsAreRefusedBeforeAndAtTheStart(t *testing.T) {
	good := map[string]string{envAuth: "jwt", "MCPEVENTS_JWT_ISSUER": "https://login.example.com", "MCPEVENTS_JWT_AUDIENCE": "https://events.example.com/mcp"}
	for name, tc := range map[string]struct {
		change map[string]string
		want   string
	}{
		"good":                         {nil, ""},
		"no issuer":                    {map[string]string{"MCPEVENTS_JWT_ISSUER": ""}, "--jwt-issuer"},
		"no audience":                  {map[string]string{"MCPEVENTS_JWT_AUDIENCE": ""}, "--jwt-audience"},
		"an issuer without TLS":        {map[string]string{"MCPEVENTS_JWT_ISSUER": "http://login.example.com"}, "https"},
		"no mode":                      {map[string]string{envAuth: ""}, "allowed: none, keys, jwt"},
		"another mode":                 {map[string]string{envAuth: "basic"}, "allowed: none, keys, jwt"},
		"an invalid level":             {map[string]string{envLogLevel: "LOUD"}, "DEBUG, INFO, WARN or ERROR"},
		"an invalid limit":             {map[string]string{"MCPEVENTS_QUOTA": "many"}, "MCPEVENTS_QUOTA"},
		"a retention that is too long": {map[string]string{"MCPEVENTS_LOG_RETENTION": "10000h"}, "--log-retention"},
		"a prefix without a slash":     {map[string]string{"MCPEVENTS_PLAIN_TARGETS": "https://a.example"}, "--plain-targets"},
		"a setting that is unknown":    {map[string]string{config.EnvSettings: "quotas=3"}, "quotas"},
	} {
		t.Run(name, func(t *testing.T) {
			env := maps.Clone(good)
			maps.Copy(env, tc.change)
			_, start := started(t, env)
			for when, err := range map[string]error{"before": Check(func(name string) string { return env[name] }), "at the start": start} {
				if (err == nil) != (tc.want == "") || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%s: got error %v, want %q in it", when, err, tc.want)
				}
			}
		})
	}
}
