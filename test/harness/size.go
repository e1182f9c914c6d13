//go:build unix

package harness

import "os"

// FullVariable makes the tests as large as they are meant to be: make test-release.
const FullVariable = "MCPEVENTS_TEST_FULL"

// Full reports whether the large tests run at their full size.
func Full() bool { return os.Getenv(FullVariable) != "" }

// Size returns how much a large test does: quick in the tests of every change, which take minutes, and full in a run by
// hand.
func Size(quick, full int) int {
	if Full() {
		return full
	}
	return quick
}
