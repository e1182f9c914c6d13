package auth

import "net/netip"

// ClientNetwork returns the network that limits count as one client: an IPv4 address, or an IPv6 network of 64 bits, which is what a
// client usually has. Addresses that cannot be parsed count as one client.
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
