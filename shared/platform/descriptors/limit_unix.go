//go:build unix

package descriptors

import "syscall"

// limit is the soft limit, which the Go runtime raised to the hard one.
func limit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return int(min(uint64(r.Cur), 1<<20))
}
