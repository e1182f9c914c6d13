package config

import (
	"reflect"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// EnvSettings is the variable with the settings for which the deployment has no parameter, named as the
// flags are: "quota=50;webhook-timeout=10s".
const EnvSettings = EnvPrefix + "SETTINGS"

// withSettings also looks in [EnvSettings]. A setting that is unknown, there twice, or there and in its own
// variable is of kind fault.Invalid: nobody could say which one counts.
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
			return nil, fault.New(fault.Invalid, "%s: %s is there twice", EnvSettings, name)
		case set && own != "":
			return nil, fault.New(fault.Invalid, "%s: %s has a parameter or a variable of its own, which is %.100q", EnvSettings, name, own)
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

// Names are the names of all limits, as flags.
func Names() map[string]bool {
	names := map[string]bool{}
	t := reflect.TypeFor[Limits]()
	for i := range t.NumField() {
		names[t.Field(i).Tag.Get("name")] = true
	}
	return names
}

// FromNames returns the limits with the given values, by the names of the flags, and the defaults of all others. It
// ignores the environment.
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
