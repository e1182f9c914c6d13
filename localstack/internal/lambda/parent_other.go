//go:build !linux

package lambda

import "syscall"

// endWithParent puts a process into a group of its own. When its parent has ended, the kernel sends a stopped process of
// such a group SIGHUP and SIGCONT.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
