package config

import "github.com/mcp-events/mcpevents/shared/platform/fault"

// replaced names the setting that took the place of one that was removed.
var replaced = map[string]string{
	"webhook-id": "profile", "event-codes": "profile", "unknown-unsubscribe": "profile",
}

// Removed returns an error of kind fault.Invalid that names the replacement if the setting was removed, and nil otherwise.
func Removed(name string) error {
	if by, ok := replaced[name]; ok {
		return fault.New(fault.Invalid, "the setting %s was removed; use --%s (%s) instead", name, by, EnvName(by))
	}
	return nil
}

// CheckRemoved returns the error of [Removed] if the environment has a setting that was removed.
func CheckRemoved(lookup func(string) (string, bool)) error {
	for name := range replaced {
		if value, ok := lookup(EnvName(name)); ok && value != "" {
			return fault.Wrap(fault.Invalid, Removed(name), "%s", EnvName(name))
		}
	}
	return nil
}
