// Package descriptors divides the process's limit on open files between the
// connections that it accepts and those that it opens, so that neither takes what the
// other needs, or what the database needs. It reads the limit and opens nothing.
package descriptors

// reserve is what neither may take: the database with its log, the listener,
// the connections to backends.
const reserve = 64

// most bounds the connections to endpoints where the limit on open files does not.
const most = 4096

// Accepted is how many connections a server may hold at once: what [Outgoing] leaves of the limit, half of it or more.
func Accepted() int { return accepted(limit()) }

// Outgoing is how many connections to endpoints may be open at once: a quarter of
// the limit, at most 4096. Resolving a name and trying IPv4 beside IPv6 take two
// descriptors each for a short time.
func Outgoing() int { return outgoing(limit()) }

func accepted(limit int) int { return max(1, usable(limit)-2*outgoing(limit)) }

func outgoing(limit int) int { return max(1, min(most, usable(limit)/4)) }

// usable is what the two share.
func usable(limit int) int { return max(limit/2, limit-reserve) }
