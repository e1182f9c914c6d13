//go:build !linux

package lambda

import "syscall"

// endWithParent puts a process into its own process group. When its parent has ended, the kernel sends SIGHUP and
// SIGCONT to such a group if it has a stopped process.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
