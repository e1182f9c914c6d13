// Package periodictest imitates the clock of a process that Lambda has frozen.
package periodictest

import (
	"time"
	"unsafe"
)

// AfterFreeze returns the reading of the clock after Lambda has frozen the process for d, in whole seconds, if the reading before was t.
// Meanwhile, the wall clock continued and the monotonic clock stood still. With a negative d, AfterFreeze returns an earlier reading.
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
