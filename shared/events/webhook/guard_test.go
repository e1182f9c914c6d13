package webhook

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
		expect.Error(t, "SRF-02 "+text, strict.checkAddr(a))
		inner, carries := embeddedIPv4(a)
		if isMetadata := metadata[a] || carries && metadata[inner]; isMetadata != (loose.checkAddr(a) != nil) {
			t.Errorf("SRF-02 insecure: %s: metadata %v, error %v", text, isMetadata, loose.checkAddr(a))
		}
	}
	for _, text := range routable {
		expect.OK(t, strict.checkAddr(netip.MustParseAddr(text)), text)
	}
	expect.Error(t, "SRF-02 an address with a zone", strict.checkAddr(netip.MustParseAddr("2606:4700::1%eth0")))
	t.Run("every metadata address is refused in every embedding, even in development mode", func(t *testing.T) {
		for a := range metadata {
			if !a.Is4() {
				continue
			}
			b := a.As4()
			for _, form := range []string{
				"::ffff:%s", "::%s", "64:ff9b::%s", "2606:4700::5efe:%s",
			} {
				expect.Error(t, fmt.Sprintf(form, a), loose.checkAddr(netip.MustParseAddr(fmt.Sprintf(form, a))))
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
		expect.Equal(t, "SRF-02 the outcome for "+text, o.Category, Blocked)
		expect.Lacks(t, "SRF-05 the error", o.Err.Error(), text)
	}
	expect.Len(t, "SRF-02 the connections", seen.take(), 0)
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
		expect.Len(t, "the connections", seen.take(), 0)
		expect.Equal(t, "the served requests", served.Load(), 1)
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
		expect.Len(t, "the connections", seen.take(), 0)
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
			expect.Equal(t, "the error for "+target, fmt.Sprint(expect.ErrOf(g.checkURL(target))), want)
		}
	})
	t.Run("SRF-04 the port policy can be replaced", func(t *testing.T) {
		g := &Guard{Ports: []uint16{9443}}
		expect.Error(t, "a URL with port 443", expect.ErrOf(g.checkURL("https://example.com/")))
		expect.OK(t, expect.ErrOf(g.checkURL("https://example.com:9443/")))
	})
	t.Run("SRF-04 development mode also allows http, private addresses and names without a domain", func(t *testing.T) {
		g := &Guard{AllowInsecure: true, BlockedHosts: []string{"127.0.0.1:8080"}}
		for in, allowed := range map[string]bool{
			"http://127.0.0.1:9000/hook": true, "http://localhost:9000/": true, "http://receiver:9000/": true, "http://[::1]:9000/": true,
			"https://10.0.0.1/": true, "http://127.1/": false, "http://169.254.169.254/": false, "http://[::ffff:169.254.169.254]/": false,
			"http://127.0.0.1:8080/events": false, "http://0.0.0.0:8080/": false, "http://[::1]:8080/": false, "ftp://127.0.0.1/": false, "http://u@127.0.0.1/": false,
		} {
			expect.Equal(t, in+" is allowed", expect.ErrOf(g.checkURL(in)) == nil, allowed)
		}
		g.Resolver = newNameServer(t, localhost).resolver()
		expect.Error(t, "a connection by a name of the server itself", expect.ErrOf(g.dialContext(t.Context(), "tcp", "a.example.com:8080")))
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
	expect.Len(t, "the connections", seen.take(), 0)
}

// spellings returns URLs in which different parsers see different hosts or addresses (SRF-03).
func spellings() []string {
	var all []string
	add := func(urls ...string) { all = append(all, urls...) }
	for _, text := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.1.1", "100.100.100.200", "0.0.0.0"} {
		b := netip.MustParseAddr(text).As4()
		n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
		low24, low16 := n&0xffffff, n&0xffff
		for _, host := range []string{
			text, text + ".", text + ":443", text + ":8443",
			fmt.Sprint(n), fmt.Sprintf("0x%x", n), fmt.Sprintf("0X%X", n), fmt.Sprintf("0x%08x", n), fmt.Sprintf("0%o", n),
			fmt.Sprintf("0x%02x.0x%02x.0x%02x.0x%02x", b[0], b[1], b[2], b[3]),
			fmt.Sprintf("%#o.%#o.%#o.%#o", b[0], b[1], b[2], b[3]),
			fmt.Sprintf("0%03o.0%03o.0%03o.0%03o", b[0], b[1], b[2], b[3]),
			fmt.Sprintf("%d.%d", b[0], low24), fmt.Sprintf("%d.%d.%d", b[0], b[1], low16),
			fmt.Sprintf("0x%x.%d", b[0], low24), fmt.Sprintf("%d.0x%x", b[0], low24), fmt.Sprintf("%d.%d.0%o", b[0], b[1], low16),
			fmt.Sprintf("%03d.%03d.%03d.%03d", b[0], b[1], b[2], b[3]),
			fmt.Sprintf("%d.%d.%d.%d", int(b[0])+256, b[1], b[2], b[3]),
			fmt.Sprint(uint64(n) + 1<<32),
			"[::ffff:" + text + "]", "[::" + text + "]", "[64:ff9b::" + text + "]",
			fmt.Sprintf("[2002:%02x%02x:%02x%02x::]", b[0], b[1], b[2], b[3]),
			fmt.Sprintf("[2001:0:4136:e378:8000:63bf:%02x%02x:%02x%02x]", ^b[0], ^b[1], ^b[2], ^b[3]),
			fmt.Sprintf("[64:ff9b:1:%02x%02x:%02x:%02x00::]", b[0], b[1], b[2], b[3]),
			fmt.Sprintf("[2606:4700::5efe:%s]", text),
			fmt.Sprintf("[::ffff:%02x%02x:%02x%02x]", b[0], b[1], b[2], b[3]),
			"[" + text + "]",
			strings.ReplaceAll(text, ".", "。"), strings.ReplaceAll(text, ".", "．"), strings.ReplaceAll(text, ".", "%2e"), strings.ReplaceAll(text, ".", "%E3%80%82"),
			strings.Map(func(r rune) rune {
				if r >= '0' && r <= '9' {
					return r - '0' + '０'
				}
				return r
			}, text),
			"user@" + text, "user:pass@" + text, "example.com@" + text, text + ".nip.io.", "%31" + text[1:],
		} {
			add("https://" + host + "/")
		}
	}
	for _, host := range []string{
		"localhost", "LOCALHOST", "LocalHost", "localhost.", "a.localhost", "localhost.localdomain", "ip6-localhost",
		"metadata", "metadata.google.internal", "METADATA.GOOGLE.INTERNAL", "instance-data.ec2.internal", "foo.local", "router.lan", "x.onion", "x.home.arpa", "intranet",
		"[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::1%25lo]", "[::1%lo]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[fe80::1]",
		"[fd00:ec2::254]", "[FD00:EC2::254]", "[fd00:0ec2:0:0:0:0:0:254]", "[2606:4700::1%25eth0]", "[::ffff:8.8.8.8]", "[v1.fe80]", "[::1]x", "x[::1]", "[[::1]]", "[]", "[", "]", "[::1", "::1", "::1]",
		"1", "01", "0", "00", "0x", "0x0", "0x7f000001", "017700000001", "127.1", "127.0.1", "127.", ".127.0.0.1", "127..0.1", "127.0.0.1.", "1.2.3.4.5", "1.2.3.256", "1.2.3.08", "1.2.3.0x8", "8.8.8.8.", "a.1", "a.0x1", "example.0x7f",
		"ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "locaｌhost", "ｌｏｃａｌｈｏｓｔ", "①②⑦.⓪.⓪.①", "1۲۷.0.0.1", "localhoﬆ", "exämple.com", "例え.jp", "faß.de", "a\u200db.example", "\u00adlocalhost", "ℒocalhost", "l\u200bocalhost",
		"loc%61lhost", "%6c%6f%63%61%6c%68%6f%73%74", "example%2ecom", "example.com%00.evil.example", "example.com%0d%0aHost:x", "ex%41mple.com", "%5b::1%5d",
		"example.com:80", "example.com:22", "example.com:25", "example.com:6379", "example.com:0", "example.com:", "example.com:-1", "example.com:65536", "example.com:99999", "example.com:0443", "example.com:+443", "example.com:443x", "example.com:４４３", "example.com:443:443",
		"user@example.com", "user:password@example.com", "@example.com", ":@example.com", "a@b@example.com", "example.com\\@127.0.0.1", "127.0.0.1\\@example.com", "example.com#@127.0.0.1", "127.0.0.1#@example.com", "example.com%40127.0.0.1",
		"example.com.", "example..com", ".example.com", "-example.com", "example-.com", "exam ple.com", "exam\tple.com", "example.com\n", "example.com\r\n", "example.com\r\nX-Injected: 1", "example.com\x00", "example.com\x00.local", "ex\x7fample.com", "example.com\\", "example.com;127.0.0.1", "example.com,127.0.0.1", "example.com|x", "exa<mple.com", "exa\"mple.com", "exa*mple.com", "*", "*.com", "exa!mple.com", "$(x).com", "{x}.com", "exa'mple.com", "exa&mple.com", "exa=mple.com", "exa~mple.com",
		strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 127) + "com", strings.Repeat("a", 2000) + ".com", strings.Repeat("1", 300), "com", "",
		"xn--", "own.example.net", "OWN.example.net", "api.corp.example.net", "198.41.0.4",
	} {
		add("https://" + host + "/")
	}
	add(
		"", " ", "https:", "https:/", "https://", "https:///", "https:///example.com", "https:example.com", "//example.com/", "/path", "example.com", "example.com/x", "?", "#",
		"http://example.com/", "HTTP://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "dict://example.com:11211/", "ldap://example.com/", "ws://example.com/", "wss://example.com/", "javascript:alert(1)", "data:text/plain,x", "unix:///var/run/docker.sock", "http+unix://x/", "jar:https://example.com/", "https+x://example.com/",
		" https://example.com/", "https://example.com/ ", "\thttps://example.com/", "https ://example.com/", "https\n://example.com/", "h\x00ttps://example.com/", "\ufeffhttps://example.com/",
		"https:\\\\example.com\\", "https:/\\example.com/", "https:\\/example.com/", "https://\\127.0.0.1/", "https://example.com\\.127.0.0.1/",
		"https://example.com/\r\nX-Injected: 1", "https://example.com/%", "https://example.com/%zz", "https://example.com/\x00", "https://example.com/ü", "https://example.com/a b", "https://example.com/?q=\n", "https://example.com/#fragment", "https://example.com/#",
		"https://example.com/"+strings.Repeat("a", maxURL), "view-source:https://example.com/", "https://[::ffff:a9fe:a9fe]/latest/meta-data/", "https://0xa9fea9fe/latest/meta-data/", "https://169.254.169.254.xip.example../",
	)
	return all
}

// TestGuard_Spellings sends to every spelling. A name server resolves every name to a loopback address with a
// listener on an allowed port. Still, there must be no attempt to connect.
func TestGuard_Spellings(t *testing.T) {
	var accepted atomic.Int32
	addr := startTCP(t, func(net.Conn, <-chan struct{}) { accepted.Add(1) })
	port := portOf(t, "http://"+addr)
	var seen dials
	hostile := newNameServer(t, localhost)
	guard := &Guard{
		Resolver: hostile.resolver(), dialed: seen.saw, Ports: []uint16{443, 8443, port},
		BlockedHosts: []string{"own.example.net", ".corp.example.net", "198.41.0.4"},
	}
	s := open(t, Options{Guard: guard})
	distinct := slices.Compact(slices.Sorted(slices.Values(spellings())))
	t.Logf("%d spellings", len(distinct))
	expect.AtLeast(t, "SRF-03 the number of spellings", len(distinct), 200)
	silent := func(t *testing.T) {
		t.Helper()
		for _, a := range seen.take() {
			t.Errorf("dialled %s", a)
		}
		expect.AtMost(t, "the connections", accepted.Load(), 0)
	}

	t.Run("SRF-03 SRF-06 each is refused at registration, with a message that says what is wrong", func(t *testing.T) {
		for _, target := range distinct {
			err := s.Check(target)
			if !fault.Is(err, fault.Invalid) || !strings.HasPrefix(err.Error(), "the target URL ") {
				t.Errorf("%.80q: %v", target, err)
			}
			expect.Fault(t, fmt.Sprintf("the challenge to %.80q", target), s.Verify(t.Context(), target, "sub_1", nil), fault.Invalid)
		}
		silent(t)
	})
	t.Run("SRF-03 deliveries open no connection and resolve no name", func(t *testing.T) {
		for _, target := range distinct {
			expect.Equal(t, fmt.Sprintf("%.80q", target), s.Send(t.Context(), request(target)).Category, Blocked)
		}
		expect.Len(t, "the resolved names", hostile.names(), 0)
		silent(t)
	})
	t.Run("SRF-03 the check at connecting is sufficient by itself", func(t *testing.T) {
		tried := 0
		for _, target := range distinct {
			u, err := url.Parse(target)
			if err != nil || u.Hostname() == "" {
				continue
			}
			tried++
			host := u.Hostname()
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			u.Scheme, u.Host = "http", fmt.Sprintf("%s:%d", host, port)
			// Skip the check of the URL: send through the transport,
			s.targets.Put("unchecked", u)
			expect.Differ(t, fmt.Sprintf("the outcome for %.80q", target), s.Send(t.Context(), request("unchecked")).Category, "")
			// and call the dialer directly.
			if conn, err := guard.dialContext(t.Context(), "tcp", u.Host); err == nil {
				_ = conn.Close()
				t.Errorf("%.80q: a connection", target)
			}
		}
		expect.AtLeast(t, "the number of dialed targets", tried, 200)
		silent(t)
	})
	t.Run("given a guard that allows it, the same listener is reached", func(t *testing.T) {
		loose := open(t, Options{Guard: &Guard{AllowInsecure: true, Resolver: hostile.resolver(), dialed: seen.saw}})
		loose.Send(t.Context(), request(fmt.Sprintf("http://own.example.net:%d/", port)))
		expect.AtLeast(t, "the dials", len(seen.take()), 1)
		expect.AtLeast(t, "the connections", accepted.Load(), 1)
	})
}

func FuzzGuard_CheckURL(f *testing.F) {
	for _, s := range spellings() {
		f.Add(s)
	}
	f.Add("https://example.com:8443/a?b=c")
	g := &Guard{BlockedHosts: []string{"own.example.net"}}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := g.checkURL(raw)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("kind of %v", err)
			}
			return
		}
		again, err := g.checkURL(u.String())
		if err != nil || again.String() != u.String() {
			t.Fatalf("%q became %q, then %v, %v", raw, u, again, err)
		}
		host := u.Hostname()
		if a, err := netip.ParseAddr(host); err == nil {
			if g.checkAddr(a) != nil {
				t.Fatalf("%q leads to %s", raw, a)
			}
		} else if strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || !strings.Contains(host, ".") {
			t.Fatalf("%q has the host %q", raw, host)
		}
		if p := u.Port(); u.Scheme != "https" || u.User != nil || p != "" && p != "8443" {
			t.Fatalf("%q became %q", raw, u)
		}
	})
}

func FuzzParseRetryAfter(f *testing.F) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	f.Add("120")
	f.Add("Sat, 21 Nov 2026 12:10:00 GMT")
	f.Add(strconv.Itoa(1 << 62))
	f.Fuzz(func(t *testing.T, value string) {
		if d := parseRetryAfter(value, now); d < 0 || d > MaxRetryAfter {
			t.Fatalf("%q: %s", value, d)
		}
	})
}
