package stdio

import "golang.org/x/sys/unix"

// limitMemory limits the data of a process, and of each process that it starts. The limit counts heap, anonymous memory and thread
// stacks, but not reserved address space, because Node.js and Go reserve many gigabytes.
func limitMemory(pid int, bytes int64) error {
	err := unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}, nil)
	if err == unix.ESRCH {
		return nil // the process has already ended
	}
	return err
}
