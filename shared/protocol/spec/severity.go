package spec

import "slices"

// severities are the levels of log messages, those of RFC 5424 as MCP names them, the least first.
var severities = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// KnownSeverity reports whether there is such a level of log messages.
func KnownSeverity(level string) bool { return slices.Contains(severities, level) }

// SevereAs reports whether a level is as severe as another one, or more. One that does
// not exist is the least.
func SevereAs(level, least string) bool {
	return slices.Index(severities, level) >= slices.Index(severities, least)
}
