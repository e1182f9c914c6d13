package lambda

import "syscall"

// endWithParent makes the kernel kill a process when its parent ends.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
