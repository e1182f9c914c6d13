package webhook

import (
	"net/netip"

	"code.dny.dev/ssrf"
)

// The ranges that are not globally routable come from code.dny.dev/ssrf, which is generated from the IANA
// special-purpose registries. It refuses every special IPv4 range, everything outside 2000::/3 in IPv6 (which
// includes loopback, unique local, link local, v4-mapped, v4-compatible and NAT64), and the special ranges within
// 2000::/3 (Teredo, 6to4, documentation). This file adds what the registries do not list.
var special = ssrf.New(ssrf.WithAnyPort(), ssrf.WithAnyNetwork())

// metadata are the addresses at which cloud providers give credentials to any program on the machine. They are
// refused even if private addresses are allowed.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("169.254.169.254"): true, // AWS, GCP, Azure, Oracle, DigitalOcean
	netip.MustParseAddr("169.254.170.2"):   true, // AWS, container credentials
	netip.MustParseAddr("169.254.170.23"):  true, // AWS, EKS pod identity
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba
	netip.MustParseAddr("168.63.129.16"):   true, // Azure host agent; a public range
	netip.MustParseAddr("192.0.0.192"):     true, // Oracle
	netip.MustParseAddr("fd00:ec2::254"):   true, // AWS over IPv6
	netip.MustParseAddr("fd00:ec2::23"):    true, // AWS, EKS pod identity over IPv6
	netip.MustParseAddr("fd20:ce::254"):    true, // GCP over IPv6
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixToFour  = netip.MustParsePrefix("2002::/16")    // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")    // RFC 4380
	compatible = netip.MustParsePrefix("::/96")        // RFC 4291 section 2.5.5.1
)

// embeddedIPv4 returns the IPv4 address inside an IPv6 address, if there is one. A gateway or tunnel may forward traffic
// to it.
func embeddedIPv4(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	switch {
	case a.Is4In6(), nat64.Contains(a), compatible.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case teredo.Contains(a): // the client's address, inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	case b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP, RFC 5214
		return netip.AddrFrom4([4]byte(b[12:16])), true
	}
	return netip.Addr{}, false
}

// checkAddr returns an error if the address is one we must not connect to.
func (g *Guard) checkAddr(a netip.Addr) error {
	if a.Zone() != "" {
		return blocked("an address with a zone")
	}
	inner, carries := embeddedIPv4(a)
	if metadata[a] || carries && metadata[inner] {
		return blocked("a cloud metadata address")
	}
	if g.AllowInsecure {
		return nil
	}
	if carries { // even if the operator allowed the surrounding range, e.g. NAT64
		if err := g.checkAddr(inner); err != nil {
			return err
		}
	}
	for _, p := range g.allowNets {
		if p.Contains(a) {
			return nil
		}
	}
	if special.SafeAddr(a) != nil {
		return blocked("an address that is not globally routable")
	}
	return nil
}
