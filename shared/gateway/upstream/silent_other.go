//go:build !unix

package upstream

import "net"

// isSilent reports whether a connection is open and nothing has arrived on it. On this platform it cannot find out, and always
// returns false, so [direct] never reuses a connection.
func isSilent(net.Conn) bool { return false }
