//go:build unix

package descriptors

import "syscall"

// limit returns the soft limit, which the Go runtime raises to the hard limit.
func limit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return int(min(uint64(r.Cur), 1<<20))
}
