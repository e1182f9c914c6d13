// Package descriptors divides the process's limit on open files between incoming connections, outgoing connections and the database,
// so that none of them starves the others. It only reads the limit.
package descriptors

// reserve is the number of descriptors for the database with its log, the listener and the connections to backends.
const reserve = 64

// maxOutgoing limits the connections to endpoints if the limit on open files is very high.
const maxOutgoing = 4096

// Accepted returns the number of connections that a server may accept: the part of the limit that [Outgoing] leaves, at least half.
func Accepted() int { return accepted(limit()) }

// Outgoing returns the number of connections to endpoints that may be open concurrently: a quarter of the limit, at most 4096. A
// connection may briefly take two descriptors, to resolve the name and to try IPv4 and IPv6 concurrently.
func Outgoing() int { return outgoing(limit()) }

func accepted(limit int) int { return max(1, usable(limit)-2*outgoing(limit)) }

func outgoing(limit int) int { return max(1, min(maxOutgoing, usable(limit)/4)) }

// usable returns the descriptors that both kinds of connections share.
func usable(limit int) int { return max(limit/2, limit-reserve) }
