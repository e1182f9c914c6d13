package config

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// replaced maps removed settings to the settings that replaced them.
var replaced = map[string]string{
	"webhook-id": "profile", "event-codes": "profile", "unknown-unsubscribe": "profile",
}

const byQuota = "use quotas in the configuration instead"

// fixed maps removed settings that are ignored to the reason. Deployments that still set them continue to work.
var fixed = map[string]string{
	"calls":                byQuota,
	"conversation-rate":    byQuota,
	"endpoint-concurrency": "it is always 64",
	"jwt-leeway":           "it is always 30s",
	"sessions":             byQuota,
}

// Removed returns nil unless the setting was removed. The error is of kind fault.Invalid and names the alternative.
func Removed(name string) error {
	if by, ok := replaced[name]; ok {
		return fault.New(fault.Invalid, "the setting %s was removed; use --%s (%s) instead", name, by, EnvName(by))
	}
	if why, ok := fixed[name]; ok {
		return fault.New(fault.Invalid, "the setting %s was removed; %s", name, why)
	}
	return nil
}

// CheckRemoved returns the error of [Removed] if the environment has a setting that another one replaced.
func CheckRemoved(lookup func(string) (string, bool)) error {
	for name := range replaced {
		if value, ok := lookup(EnvName(name)); ok && value != "" {
			return fault.Wrap(fault.Invalid, Removed(name), "%s", EnvName(name))
		}
	}
	return nil
}

// LogFixed logs a warning for each removed setting in the environment or in [EnvSettings] that is ignored.
func LogFixed(lookup func(string) (string, bool), log *slog.Logger) {
	text, _ := lookup(EnvSettings)
	var given []string
	for part := range strings.SplitSeq(text, ";") {
		name, _, _ := strings.Cut(part, "=")
		given = append(given, strings.TrimSpace(name))
	}
	for _, name := range slices.Sorted(maps.Keys(fixed)) {
		if value, ok := lookup(EnvName(name)); ok && value != "" || slices.Contains(given, name) {
			log.Warn("setting ignored", "setting", name, "why", "it was removed; "+fixed[name])
		}
	}
}
