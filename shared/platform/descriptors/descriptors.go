// Package descriptors divides the file descriptors that the process may open between incoming connections, outgoing connections and the
// database, so that no part takes all of them.
package descriptors

// reserve is the number of descriptors for everything except connections to clients and to webhook endpoints: the database with its log,
// the listener and the connections to backends.
const reserve = 64

// MaxIncoming returns the number of client connections that a server may accept. The connections of [MaxOutgoing] may take up
// to half of the usable descriptors, and clients get the rest.
func MaxIncoming() int { return incomingOf(limit()) }

// MaxOutgoing returns the number of connections to webhook endpoints that may be open concurrently: a quarter of the usable descriptors,
// at most 4096. Each counts as two descriptors, because it may briefly need a second one to resolve the name or to try IPv4 and IPv6.
func MaxOutgoing() int { return outgoingOf(limit()) }

func incomingOf(limit int) int { return max(1, usableOf(limit)-2*outgoingOf(limit)) }

func outgoingOf(limit int) int { return max(1, min(4096, usableOf(limit)/4)) }

// usableOf returns how many descriptors remain for incoming and outgoing connections.
func usableOf(limit int) int { return max(limit/2, limit-reserve) }
