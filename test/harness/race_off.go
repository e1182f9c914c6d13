//go:build !race

package harness

// Race reports whether the test binary was built with the race detector; the
// servers that [StartServer] runs are then built with it too.
const Race = false
