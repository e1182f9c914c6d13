package config

import (
	"reflect"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// EnvSettings is the environment variable with the settings for which the template has no parameter, for example
// "quota=50;webhook-timeout=10s".
const EnvSettings = EnvPrefix + "SETTINGS"

// withSettings returns a lookup that also finds the settings in [EnvSettings]. The error is of kind fault.Invalid if a setting is
// unknown or has two values, either in EnvSettings or there and in its own variable.
func withSettings(lookup func(string) (string, bool)) (func(string) (string, bool), error) {
	text, _ := lookup(EnvSettings)
	if strings.TrimSpace(text) == "" {
		return lookup, nil
	}
	known := Names()
	given := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if fixed[name] != "" {
			continue // see LogFixed
		}
		switch own, set := lookup(EnvName(name)); {
		case !ok || value == "":
			return nil, fault.New(fault.Invalid, "%s: %.100q is not NAME=VALUE, such as quota=50", EnvSettings, part)
		case Removed(name) != nil:
			return nil, fault.Wrap(fault.Invalid, Removed(name), "%s", EnvSettings)
		case !known[name]:
			return nil, fault.New(fault.Invalid, "%s: unknown setting %.100q", EnvSettings, name)
		case given[EnvName(name)] != "":
			return nil, fault.New(fault.Invalid, "%s: %s is given twice", EnvSettings, name)
		case set && own != "":
			return nil, fault.New(fault.Invalid, "%s: %s is also set to %.100q by its own parameter or variable", EnvSettings, name, own)
		}
		given[EnvName(name)] = value
	}
	return func(name string) (string, bool) {
		if value, ok := given[name]; ok {
			return value, true
		}
		return lookup(name)
	}, nil
}

// Names returns the names of all settings, spelled like flags.
func Names() map[string]bool {
	names := map[string]bool{}
	t := reflect.TypeFor[Limits]()
	for i := range t.NumField() {
		names[t.Field(i).Tag.Get("name")] = true
	}
	return names
}

// FromNames returns limits with values by the names of their flags. All others have their defaults. It ignores the environment.
func FromNames(values map[string]string) (Limits, error) {
	known, variables := Names(), map[string]string{}
	for name, value := range values {
		switch {
		case Removed(name) != nil:
			return Limits{}, Removed(name)
		case !known[name]:
			return Limits{}, fault.New(fault.Invalid, "unknown setting %.100q", name)
		}
		variables[EnvName(name)] = value
	}
	return FromEnv(func(name string) (string, bool) { value, ok := variables[name]; return value, ok })
}
