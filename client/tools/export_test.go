package tools

import "time"

// SetProgress sets how often a wait says that it waits.
func SetProgress(t *Tools, every time.Duration) { t.progress = every }
