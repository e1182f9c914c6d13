package tools

import "time"

// SetProgressEvery sets the time between two progress notifications.
func SetProgressEvery(t *Tools, d time.Duration) { t.progressEvery = d }
