// Package periodictest imitates the clock of a process that Lambda has frozen.
package periodictest

import (
	"time"
	"unsafe"
)

// AfterFreeze returns the time as it is read after Lambda has frozen the process. The clock showed t before the freeze, and the freeze
// took the time d in whole seconds. Meanwhile, the wall clock continued and the monotonic clock stood still. With a negative d,
// AfterFreeze returns a reading before the freeze.
//
// Package time cannot create such a reading. So AfterFreeze changes t's field for the wall clock, whose lowest 30 bits are nanoseconds.
// The higher bits are seconds.
func AfterFreeze(t time.Time, d time.Duration) time.Time {
	if t == t.Round(0) { // t has only the wall clock
		return t.Add(d)
	}
	*(*uint64)(unsafe.Pointer(&t)) += uint64(d/time.Second) << 30
	return t
}
