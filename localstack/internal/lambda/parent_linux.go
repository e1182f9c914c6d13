package lambda

import "syscall"

// endWithParent has the kernel kill a process whose parent has ended.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
