package webhook

import (
	"fmt"
	"net"
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
		if host == "xn--" { // as a label of its own it is not a domain
			add("https://" + host + "/")
			continue
		}
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
	if len(distinct) < 200 {
		t.Errorf("SRF-03 only %d spellings", len(distinct))
	}
	silent := func(t *testing.T) {
		t.Helper()
		for _, a := range seen.take() {
			t.Errorf("dialled %s", a)
		}
		if n := accepted.Load(); n > 0 {
			t.Errorf("%d connections", n)
		}
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
		if asked := hostile.names(); len(asked) > 0 {
			t.Errorf("names were resolved: %v", asked)
		}
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
			if o := s.Send(t.Context(), request("unchecked")); o.OK() {
				t.Errorf("%.80q: got %+v", target, o)
			}
			// and call the dialer directly.
			if conn, err := guard.dialContext(t.Context(), "tcp", u.Host); err == nil {
				_ = conn.Close()
				t.Errorf("%.80q: a connection", target)
			}
		}
		if tried < 200 {
			t.Errorf("only %d were dialed", tried)
		}
		silent(t)
	})
	t.Run("given a guard that allows it, the same listener is reached", func(t *testing.T) {
		loose := open(t, Options{Guard: &Guard{AllowInsecure: true, Resolver: hostile.resolver(), dialed: seen.saw}})
		loose.Send(t.Context(), request(fmt.Sprintf("http://own.example.net:%d/", port)))
		if len(seen.take()) == 0 || accepted.Load() == 0 {
			t.Error("got no dials, want at least one")
		}
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
