//go:build unix

package descriptors

import "syscall"

// limit returns the soft limit on open files, or 1024 if it is unknown. Go raises the soft limit to the hard limit when a
// process starts.
func limit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return int(min(uint64(r.Cur), 1<<20))
}
