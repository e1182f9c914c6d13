//go:build unix

package upstream

import (
	"net"
	"syscall"
)

// isSilent reports whether a connection is open and nothing has arrived on it, as far as the operating system can tell.
func isSilent(c net.Conn) bool {
	if k, ok := c.(*countingConn); ok {
		c = k.Conn
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return true // without a socket, the operating system cannot tell whether the connection is open
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var failure error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, failure = syscall.Read(int(fd), b[:]) // does not block, because Go sets its sockets to non-blocking mode
		return true
	})
	return err == nil && failure == syscall.EAGAIN
}
