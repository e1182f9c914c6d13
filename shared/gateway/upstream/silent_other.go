//go:build !unix

package upstream

import "net"

// silent reports whether a connection is open and nothing has arrived on it. On this platform it cannot find out, and always
// returns false, so [direct] never reuses a connection.
func silent(net.Conn) bool { return false }
