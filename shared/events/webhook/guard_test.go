package webhook

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// forbidden are addresses that we must never connect to (SRF-02): at least one of every special-purpose range,
// usually the first and the last.
var forbidden = []string{
	// IPv4
	"0.0.0.0", "0.0.0.1", "0.255.255.255", "10.0.0.0", "10.0.0.1", "10.255.255.255", "100.64.0.0", "100.64.0.1",
	"100.127.255.255", "127.0.0.0", "127.0.0.2", "127.1.2.3", "127.255.255.255", "169.254.0.0", "169.254.0.1",
	"169.254.255.255", "172.16.0.0", "172.16.0.1", "172.31.255.255", "192.0.0.0", "192.0.0.8", "192.0.0.170",
	"192.0.0.192", "192.0.0.255", "192.0.2.1", "192.0.2.255", "192.31.196.1", "192.52.193.1", "192.88.99.1",
	"192.168.0.0", "192.168.0.1", "192.168.255.255", "192.175.48.1", "198.18.0.0", "198.18.0.1", "198.19.255.255",
	"198.51.100.1", "203.0.113.1", "203.0.113.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "254.1.1.1", "255.255.255.255",
	// cloud metadata
	"169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16",
	"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
	// IPv6
	"::", "::1", "::2", "fc00::1", "fd00::1", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fe80::1", "fe80::5efe:1.2.3.4", "febf::1",
	"fec0::1", "ff00::1", "ff02::1", "ff0e::1", "100::1", "100:0:0:1::1", "2001:db8::1", "2001:db8:ffff::1", "3fff::1", "3fff:fff::1",
	"2001:2::1", "2001:1::1", "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1", "2001:1ff::1",
	"2620:4f:8000::1", "5f00::1", "4000::1", "8000::1", "e000::1", "200::1",
	// addresses that embed an IPv4 address, private or public
	"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:192.168.1.1", "::ffff:0:127.0.0.1",
	"::127.0.0.1", "::10.0.0.1", "::169.254.169.254", "::8.8.8.8",
	"64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::8.8.8.8",
	"64:ff9b:1::1", "64:ff9b:1:7f00:0:100::", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:ffff::8.8.8.8",
	"2002:7f00:1::1", "2002:a00:1::1", "2002:a9fe:a9fe::1", "2002:c0a8:101::", "2002:808:808::1",
	"2001::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:0:808:808:0:0:f5ff:fffe", "2001:0:1:1:1:1:5601:5601",
	"2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:127.0.0.1", "2606:4700::5efe:169.254.169.254",
}

var routable = []string{
	"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1",
	"169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.1", "192.167.255.255",
	"192.169.0.0", "198.17.255.255", "198.20.0.0", "203.0.112.1", "203.0.114.1", "223.255.255.255", "52.94.236.248",
	"2606:4700:4700::1111", "2001:4860:4860::8888", "2600:1f18::1", "2a00:1450:4001::1", "2001:200::1", "2c0f:f248::1", "2620:4f:8001::1",
	"2606:4700::5efe:8.8.8.8",
}

// TestGuard_Addresses tests the function that every dialed address passes (SRF-02).
func TestGuard_Addresses(t *testing.T) {
	strict, loose := &Guard{}, &Guard{AllowInsecure: true}
	for _, text := range forbidden {
		a := netip.MustParseAddr(text)
		if strict.checkAddr(a) == nil {
			t.Errorf("SRF-02 %s is allowed", text)
		}
		inner, carries := embeddedIPv4(a)
		if isMetadata := metadata[a] || carries && metadata[inner]; isMetadata != (loose.checkAddr(a) != nil) {
			t.Errorf("SRF-02 insecure: %s: metadata %v, error %v", text, isMetadata, loose.checkAddr(a))
		}
	}
	for _, text := range routable {
		if err := strict.checkAddr(netip.MustParseAddr(text)); err != nil {
			t.Errorf("%s is refused: %v", text, err)
		}
	}
	if strict.checkAddr(netip.MustParseAddr("2606:4700::1%eth0")) == nil {
		t.Error("SRF-02 an address with a zone is allowed")
	}
	t.Run("every metadata address is refused in every embedding, even in development mode", func(t *testing.T) {
		for a := range metadata {
			if !a.Is4() {
				continue
			}
			b := a.As4()
			for _, form := range []string{
				"::ffff:%s", "::%s", "64:ff9b::%s", "2606:4700::5efe:%s",
			} {
				if loose.checkAddr(netip.MustParseAddr(fmt.Sprintf(form, a))) == nil {
					t.Errorf(form+" is allowed", a)
				}
			}
			six := netip.MustParseAddr(fmt.Sprintf("2002:%02x%02x:%02x%02x::1", b[0], b[1], b[2], b[3]))
			ter := netip.MustParseAddr(fmt.Sprintf("2001:0:1:1:1:1:%02x%02x:%02x%02x", ^b[0], ^b[1], ^b[2], ^b[3]))
			if loose.checkAddr(six) == nil || loose.checkAddr(ter) == nil {
				t.Errorf("%s or %s is allowed", six, ter)
			}
		}
	})
	t.Run("addresses in the operator's networks are allowed", func(t *testing.T) {
		g := &Guard{allowNets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), nat64}}
		for text, allowed := range map[string]bool{
			"10.1.0.1": true, "10.2.0.1": false, "53.1.1.1": true,
			"64:ff9b::8.8.8.8": true, "64:ff9b::192.168.0.1": false, "64:ff9b::169.254.169.254": false,
			"64:ff9b::10.1.0.1": true,
		} {
			expect.Equal(t, fmt.Sprintf("%s is allowed", text), g.checkAddr(netip.MustParseAddr(text)) == nil, allowed)
		}
	})
}

// TestGuard_AnswersOfNameServers sends to a harmless name that the name server resolves to a forbidden address
// (SRF-01, SRF-02). No connection may be opened.
func TestGuard_AnswersOfNameServers(t *testing.T) {
	var seen dials
	var answer atomic.Value
	names := newNameServer(t, func(string) []netip.Addr { return answer.Load().([]netip.Addr) })
	s := open(t, Options{Guard: &Guard{Resolver: names.resolver(), dialed: seen.saw}})
	for _, text := range forbidden {
		a := netip.MustParseAddr(text)
		answer.Store([]netip.Addr{a})
		o := s.Send(t.Context(), request("https://hooks.example.com/x"))
		if o.Category != Blocked || o.OK() {
			t.Errorf("SRF-02 %s: got %+v", text, o)
		}
		if strings.Contains(o.Err.Error(), text) {
			t.Errorf("SRF-05 the error reveals the address of a name: %v", o.Err)
		}
	}
	if all := seen.take(); len(all) > 0 {
		t.Errorf("SRF-02 connected to %v", all)
	}
}

// TestGuard_Rebinding tests a name that resolves to a public address when the subscription is registered and to a
// private one at delivery.
func TestGuard_Rebinding(t *testing.T) {
	var seen dials
	var answer atomic.Value
	var served atomic.Int32
	answer.Store([]netip.Addr{loopback.Addr()})
	secret, key := NewSecret()
	echo := newEndpoint(secret)
	srv, s, target := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get(HeaderID), VerificationPrefix) {
			served.Add(1)
		}
		echo(w, r)
	})
	s.guard.dialed = seen.saw
	s.guard.Resolver = newNameServer(t, func(string) []netip.Addr { return answer.Load().([]netip.Addr) }).resolver()

	webhook := request(target)
	webhook.Keys = [][]byte{key}
	t.Run("SRF-01 a name that is public at registration and private at delivery is refused", func(t *testing.T) {
		expect.OK(t, s.Verify(t.Context(), target, "sub_1", [][]byte{key}))
		expect.OK(t, s.Send(t.Context(), webhook).Err)
		if all := seen.take(); len(all) != 1 || all[0].Addr() != loopback.Addr() {
			t.Fatalf("connected to %v", all)
		}
		for _, later := range []string{"127.0.0.2", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.2", "fd00:ec2::254"} {
			answer.Store([]netip.Addr{netip.MustParseAddr(later)})
			// A new sender has no kept connection to the previously checked address.
			expect.Equal(t, later, open(t, Options{Guard: s.guard, RootCAs: pool(srv)}).Send(t.Context(), webhook).Category, Blocked)
		}
		if all := seen.take(); len(all) > 0 || served.Load() != 1 {
			t.Errorf("connected to %v, served %d", all, served.Load())
		}
	})
	t.Run("SRF-01 of several addresses only the allowed ones are tried", func(t *testing.T) {
		answer.Store([]netip.Addr{
			netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1"), loopback.Addr(), netip.MustParseAddr("169.254.169.254"),
		})
		delivers(t, open(t, Options{Guard: s.guard, RootCAs: pool(srv)}), webhook)
		for _, a := range seen.take() {
			expect.Equal(t, "the address of the connection", a.Addr(), loopback.Addr())
		}
	})
	t.Run("SRF-01 a name that changes its address between the checks of one attempt is refused", func(t *testing.T) {
		var n atomic.Int32
		s.guard.Resolver = newNameServer(t, func(string) []netip.Addr {
			if n.Add(1)%2 == 1 {
				return []netip.Addr{netip.MustParseAddr("127.0.0.3")}
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.4")}
		}).resolver()
		failsAs(t, open(t, Options{Guard: s.guard, RootCAs: pool(srv)}), webhook, Blocked)
		if all := seen.take(); len(all) > 0 {
			t.Errorf("connected to %v", all)
		}
	})
}

func TestGuard_CheckURL(t *testing.T) {
	g := &Guard{BlockedHosts: []string{"own.example.net", ".corp.example.net", "other.example.net:8443"}}
	for in, want := range map[string]string{
		"https://example.com":                       "https://example.com/",
		"https://example.com/":                      "https://example.com/",
		"HTTPS://Example.COM:443/Path?q=%20#":       "",
		"HTTPS://Example.COM:443/Path?q=%20":        "https://example.com/Path?q=%20",
		"https://example.com:8443/a/../b":           "https://example.com:8443/a/../b",
		"https://a-b.c_d.example.com/%2F%20;x?a=@&": "https://a-b.c_d.example.com/%2F%20;x?a=@&",
		"https://xn--exmple-cua.com/":               "https://xn--exmple-cua.com/",
		"https://1.1.1.1/":                          "https://1.1.1.1/",
		"https://[2606:4700:4700::1111]:8443/":      "https://[2606:4700:4700::1111]:8443/",
		"https://1password.example/":                "https://1password.example/",
		"https://1e100.net/":                        "https://1e100.net/",
		"https://corp.example.net/":                 "https://corp.example.net/",
		"https://other.example.net/":                "https://other.example.net/",
		"https://other.example.net:8443/":           "",
		"https://x.corp.example.net/":               "",
		"https://own.example.net:8443/":             "",
		"https://user@example.com/x@y":              "",
		"https://example.com/x@y":                   "https://example.com/x@y",
	} {
		u, err := g.checkURL(in)
		switch {
		case want == "" && !fault.Is(err, fault.Invalid):
			t.Errorf("SRF-04 %s is accepted: %v", in, err)
		case want != "" && (err != nil || u.String() != want):
			t.Errorf("%s: got %v, %v; want %s", in, u, err, want)
		}
	}
	t.Run("SRF-06 the error for a port names it and the allowed ones", func(t *testing.T) {
		for target, want := range map[string]string{
			"https://example.com:22/":    "the target URL has port 22, which is not allowed (allowed: 443, 8443)",
			"https://example.com:65536/": `the target URL has the port "65536", not a number from 1 to 65535`,
		} {
			if _, err := g.checkURL(target); err == nil || err.Error() != want {
				t.Errorf("%s: got %v", target, err)
			}
		}
	})
	t.Run("SRF-04 the port policy can be replaced", func(t *testing.T) {
		g := &Guard{Ports: []uint16{9443}}
		if _, err := g.checkURL("https://example.com/"); err == nil {
			t.Error("443 is accepted")
		}
		if _, err := g.checkURL("https://example.com:9443/"); err != nil {
			t.Error(err)
		}
	})
	t.Run("SRF-04 development mode also allows http, private addresses and names without a domain", func(t *testing.T) {
		g := &Guard{AllowInsecure: true, BlockedHosts: []string{"127.0.0.1:8080"}}
		for in, allowed := range map[string]bool{
			"http://127.0.0.1:9000/hook": true, "http://localhost:9000/": true, "http://receiver:9000/": true, "http://[::1]:9000/": true,
			"https://10.0.0.1/": true, "http://127.1/": false, "http://169.254.169.254/": false, "http://[::ffff:169.254.169.254]/": false,
			"http://127.0.0.1:8080/events": false, "http://0.0.0.0:8080/": false, "http://[::1]:8080/": false, "ftp://127.0.0.1/": false, "http://u@127.0.0.1/": false,
		} {
			if _, err := g.checkURL(in); (err == nil) != allowed {
				t.Errorf("%s: %v", in, err)
			}
		}
		names := newNameServer(t, localhost)
		g.Resolver = names.resolver()
		if c, err := g.dialContext(t.Context(), "tcp", "a.example.com:8080"); err == nil {
			_ = c.Close()
			t.Error("a name leads to the server itself")
		}
	})
}

// TestSend_CheckedAtEveryAttempt tests a target that was registered under less strict rules.
func TestSend_CheckedAtEveryAttempt(t *testing.T) {
	var seen dials
	s := open(t, Options{Guard: &Guard{dialed: seen.saw}})
	for _, target := range []string{"http://example.com/", "https://127.0.0.1:9000/", "https://10.0.0.1/"} {
		for range 2 { // the second time from the cache of targets
			expect.Equal(t, fmt.Sprintf("SRF-01 SRF-04 %s", target), s.Send(t.Context(), request(target)).Category, Blocked)
		}
	}
	if all := seen.take(); len(all) > 0 {
		t.Errorf("connected to %v", all)
	}
}
