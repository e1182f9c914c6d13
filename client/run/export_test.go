package run

import (
	"testing"
	"time"
)

// SetGrace changes for one test how long a command may take to end after SIGTERM.
func SetGrace(t *testing.T, d time.Duration) {
	before := grace
	grace = d
	t.Cleanup(func() { grace = before })
}
