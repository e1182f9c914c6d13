package config

import (
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

func environ(of map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := of[name]; return v, ok }
}

// AWS-09: a setting that is not a parameter of the template can be set in the list of additional settings.
func TestSettingsInOneVariable(t *testing.T) {
	l, err := FromEnv(environ(map[string]string{
		EnvSettings: " quota=50 ; webhook-timeout=10s;target-ports=443,8443,9443;allow-no-expiry=true;", "MCPEVENTS_STREAMS": "7",
	}))
	if err != nil || l.Quota != 50 || l.WebhookTimeout != 10*time.Second || len(l.TargetPorts) != 3 || !l.AllowNoExpiry || l.Streams != 7 {
		t.Errorf("got %+v, %v", l, err)
	}
	for text, want := range map[string]string{
		"quota":               `"quota" is not NAME=VALUE`,
		"quota=":              `"quota=" is not NAME=VALUE`,
		"quotas=5":            `unknown setting "quotas"`,
		"quota=5;quota=6":     "quota is given twice",
		"quota=many":          "MCPEVENTS_QUOTA",
		"quota=0":             "--quota",
		"streams=5;quota=6":   `streams is also set to "7"`,
		"default-ttl=10000h;": "--default-ttl",
	} {
		_, err := FromEnv(environ(map[string]string{EnvSettings: text, "MCPEVENTS_STREAMS": "7"}))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q in it", text, err, want)
		}
	}
}

// AWS-02: a setting that the function does not need keeps its default, even if its value is invalid.
func TestSettingsThatAreNotNeeded(t *testing.T) {
	l, err := FromEnv(environ(map[string]string{EnvSettings: "quota=many", "MCPEVENTS_STREAMS": "-1"}), "quota", "streams")
	if err != nil || l.Quota != 1000 || l.Streams != 100 {
		t.Errorf("got %+v, %v", l, err)
	}
}
