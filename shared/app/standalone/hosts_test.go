package standalone

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// An entry that no host or origin equals would silently have no effect, so that for example a blocked target would not be blocked.
func TestHostsAndOrigins(t *testing.T) {
	complete := func(change func(*config.Limits)) (config.Limits, error) {
		o := Options{Data: ":memory:", Limits: DefaultLimits()}
		change(&o.Limits)
		err := o.complete()
		return o.Limits, err
	}
	for _, host := range []string{"events.example.com", "Events.example.com:8443", "10.0.0.1", "[fd00::1]:8080", "[fd00::1]", "fd00::1", "localhost", ""} {
		expect.OK(t, expect.ErrOf(complete(func(l *config.Limits) { l.BlockedTargets, l.AllowedHosts = []string{host}, []string{host} })), "the host "+host)
	}
	expect.OK(t, expect.ErrOf(complete(func(l *config.Limits) { l.BlockedTargets = []string{".example.com"} })), "a blocked suffix")
	expect.Fault(t, "an allowed suffix", expect.ErrOf(complete(func(l *config.Limits) { l.AllowedHosts = []string{".example.com"} })), fault.Invalid)
	for _, host := range []string{
		"https://events.example.com", "events.example.com/mcp", "*.example.com", "*", "events.example.com.", "a@events.example.com",
		"events.example.com:https", "b\u00fccher.example", "a.example b.example",
	} {
		expect.Fault(t, "the blocked target "+host, expect.ErrOf(complete(func(l *config.Limits) { l.BlockedTargets = []string{host} })), fault.Invalid)
		expect.Fault(t, "the allowed host "+host, expect.ErrOf(complete(func(l *config.Limits) { l.AllowedHosts = []string{host} })), fault.Invalid)
	}
	for _, origin := range []string{"https://console.example.com", "http://localhost:3000", "http://[::1]:3000", "vscode-webview://0ab", "https://a.example:8443", "null", ""} {
		expect.OK(t, expect.ErrOf(complete(func(l *config.Limits) { l.AllowedOrigins = []string{origin} })), "the origin "+origin)
	}
	for _, origin := range []string{
		"https://console.example.com/", "console.example.com", "*", "https://*.example.com", "https://Console.example.com",
		"https://console.example.com:443", "http://a.example:80",
	} {
		expect.Fault(t, "the origin "+origin, expect.ErrOf(complete(func(l *config.Limits) { l.AllowedOrigins = []string{origin} })), fault.Invalid)
	}
	l, err := complete(func(l *config.Limits) {
		l.BlockedTargets, l.JWTAudience = []string{"a.example", " b.example"}, []string{"https://a.example/mcp", " b "}
	})
	expect.OK(t, err, "lists with spaces")
	expect.Equal(t, "the blocked target", l.BlockedTargets[1], "b.example")
	expect.Equal(t, "the audience", l.JWTAudience[1], "b")
}
