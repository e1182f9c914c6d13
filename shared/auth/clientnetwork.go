package auth

import "net/netip"

// ClientNetwork returns the network that limits count as one client. That is an IPv4 address or an IPv6 network of 64 bits, because a
// client usually has a whole network of that size. Addresses that cannot be parsed count as one client.
func ClientNetwork(remote string) netip.Prefix {
	ip, err := netip.ParseAddr(remote) // on Lambda, without a port
	if withPort, bad := netip.ParseAddrPort(remote); bad == nil {
		ip, err = withPort.Addr(), nil
	}
	if err != nil {
		return netip.Prefix{}
	}
	bits := 32
	if ip = ip.Unmap(); ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // drops a zone
	return p
}
