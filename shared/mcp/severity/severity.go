// Package severity orders the levels of log messages, which are those of RFC 5424.
package severity

import "slices"

// levels are the severities as MCP names them, the least first.
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// Known reports whether there is such a level.
func Known(level string) bool { return slices.Contains(levels, level) }

// AtLeast reports whether a level is as severe as another one, or more. One that does
// not exist is the least.
func AtLeast(level, least string) bool {
	return slices.Index(levels, level) >= slices.Index(levels, least)
}
