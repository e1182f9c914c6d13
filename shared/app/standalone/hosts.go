package standalone

import (
	"reflect"
	"regexp"
	"strings"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The expression hosts matches a host name or IP address, with or without a port. The expression origins matches an origin as
// browsers send it. Both also match an empty text, because lists in settings may have empty elements.
var (
	hosts   = regexp.MustCompile(`^([\w-]+(\.[\w-]+)*|[0-9a-fA-F]*:[0-9a-fA-F:.]*|\[[0-9a-fA-F:.]+\])?(:\d+)?$`)
	origins = regexp.MustCompile(`^(null|[a-z][a-z0-9+.-]*://([a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:\d+)?)?$`)
)

// checkHosts returns an error if a list in the settings has an entry that can never match. Such an entry would have no effect, and the
// operator would not notice. For example, a URL in --blocked-targets blocks nothing, because targets are compared by host. On AWS, the
// template refuses such entries.
func checkHosts(l config.Limits) error {
	for name, list := range map[string][]string{"blocked-targets": l.BlockedTargets, "allowed-hosts": l.AllowedHosts} {
		for _, host := range list {
			if name == "blocked-targets" { // in this setting, .example.com stands for all names below it
				host = strings.TrimPrefix(host, ".")
			}
			if !hosts.MatchString(host) {
				return fault.New(fault.Invalid, "--%s has %.100q, which is not a host, such as events.example.com", name, host)
			}
		}
	}
	for _, origin := range l.AllowedOrigins {
		if !isOrigin(origin) {
			return fault.New(fault.Invalid, "--allowed-origins has %.100q, which is not an origin as browsers send it, such as https://console.example.com", origin)
		}
	}
	return nil
}

// isOrigin reports whether the text is empty, or a value that a browser can send in the header Origin. Browsers leave out the default
// port.
func isOrigin(text string) bool {
	return origins.MatchString(text) && !(strings.HasPrefix(text, "https:") && strings.HasSuffix(text, ":443")) &&
		!(strings.HasPrefix(text, "http:") && strings.HasSuffix(text, ":80"))
}

// trimLists returns the limits without spaces around the elements of lists, as [config.FromEnv] returns them. The command line keeps the
// spaces. So without trimLists, no host would equal the second element of "a.example, b.example".
func trimLists(l config.Limits) config.Limits {
	v := reflect.ValueOf(&l).Elem()
	for i := range v.NumField() {
		if list, ok := v.Field(i).Interface().([]string); ok && list != nil {
			trimmed := make([]string, len(list))
			for i, element := range list {
				trimmed[i] = strings.TrimSpace(element)
			}
			v.Field(i).Set(reflect.ValueOf(trimmed))
		}
	}
	return l
}
