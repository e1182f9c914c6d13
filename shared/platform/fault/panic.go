package fault

import (
	"fmt"
	"runtime/debug"
)

// Recovered turns a panic into an error of the function that defers it. Goroutines defer it, because a panic in one of
// them ends the process, and with it the work of all others.
func Recovered(err *error) {
	if p := recover(); p != nil {
		*err = Panicked(p)
	}
}

// Panicked returns the error for a recovered panic.
func Panicked(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }
