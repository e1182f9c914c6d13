package spec

import "slices"

// severities are the levels of log messages, from the least to the most severe (RFC 5424, with the names of MCP).
var severities = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// KnownSeverity reports whether a level of log messages exists.
func KnownSeverity(level string) bool { return slices.Contains(severities, level) }

// SevereAs reports whether a level is at least as severe as another. An unknown level is the least severe.
func SevereAs(level, least string) bool {
	return slices.Index(severities, level) >= slices.Index(severities, least)
}
