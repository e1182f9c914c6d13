package webhook

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// captured holds parts of a received request.
type captured struct {
	header http.Header
	body   []byte
	host   string
	proto  string
	method string
}

func capture(into chan<- captured) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		into <- captured{r.Header, body, r.Host, r.Proto, r.Method}
	}
}

func TestSend_Headers(t *testing.T) {
	t.Run("WHK-01 a webhook is a POST with exactly the documented header fields", func(t *testing.T) {
		heads := make(chan []string, 1)
		addr := startTCP(t, func(c net.Conn, _ <-chan struct{}) {
			r := bufio.NewReader(c)
			head, err := readRequest(r)
			if err == nil {
				heads <- head
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		})
		r := request("http://" + addr + "/hook?a=b")
		r.RawSecret = []byte("raw")
		r.At = time.Unix(1_700_000_000, 0)
		expect.OK(t, open(t, Options{UserAgent: "mcp-events/1.2.3"}).Send(t.Context(), r).Err)
		got := <-heads
		want := []string{
			"POST /hook?a=b HTTP/1.1",
			"Content-Length: " + strconv.Itoa(len(r.Body)),
			"Content-Type: application/json",
			"Host: " + addr,
			"User-Agent: mcp-events/1.2.3",
			"X-Hub-Signature-256: " + signHub(r.RawSecret, r.Body),
			"X-MCP-Subscription-Id: sub_1",
			"webhook-id: evt_1",
			"webhook-signature: " + Sign(r.Keys, "evt_1", r.At, r.Body),
			"webhook-timestamp: 1700000000",
		}
		slices.Sort(got[1:])
		expect.Equal(t, "the header", strings.Join(got, "\n"), strings.Join(want, "\n"))
	})

	seen := make(chan captured, 1)
	srv := serve(t, capture(seen))
	s := open(t, Options{})
	send := func(t *testing.T, s *Sender, r Request) captured {
		t.Helper()
		expect.OK(t, s.Send(t.Context(), r).Err)
		return <-seen
	}

	t.Run("WHK-02 webhook-id is the event id at every attempt", func(t *testing.T) {
		for range 3 {
			expect.Equal(t, "the header webhook-id", send(t, s, request(srv.URL)).header.Get(HeaderID), "evt_1")
		}
	})

	t.Run("WHK-03 each attempt has its own timestamp and signature", func(t *testing.T) {
		r := request(srv.URL)
		var signatures []string
		for i := range 2 {
			r.At = time.Unix(1_700_000_000+int64(i), 999_999_999)
			got := send(t, s, r)
			expect.Equal(t, "the header webhook-timestamp", got.header.Get(HeaderTimestamp), strconv.FormatInt(r.At.Unix(), 10))
			signatures = append(signatures, got.header.Get(HeaderSignature))
		}
		expect.Differ(t, "the renewed signature", signatures[0], signatures[1])
	})

	t.Run("WHK-05 a v1a signature next to v1 verifies with the published key set", func(t *testing.T) {
		id := NewIdentity(expect.Value(ParseIdentity(GenerateIdentity()))(t))
		got := send(t, open(t, Options{Identity: id}), request(srv.URL))
		v1, v1a, ok := strings.Cut(got.header.Get(HeaderSignature), " ")
		if !ok || !strings.HasPrefix(v1, "v1,") || !strings.HasPrefix(v1a, "v1a,") {
			t.Fatalf("signatures %q", got.header.Get(HeaderSignature))
		}
		var set jwks
		if err := json.Unmarshal(id.JWKS(), &set); err != nil || len(set.Keys) != 1 {
			t.Fatalf("the key set is %s, %v", id.JWKS(), err)
		}
		signature := expect.Value(base64.StdEncoding.DecodeString(strings.TrimPrefix(v1a, "v1a,")))(t)
		verifies := func(key jwk, body string) bool {
			x, err := base64.RawURLEncoding.DecodeString(key.X)
			return err == nil && ed25519.Verify(x, []byte(got.header.Get(HeaderID)+"."+got.header.Get(HeaderTimestamp)+"."+body), signature)
		}
		expect.True(t, "the body verifies with the signing key", verifies(set.Keys[0], string(got.body)))
		expect.True(t, "a changed body does not verify", !verifies(set.Keys[0], string(got.body)+" "))
	})

	t.Run("without keys there is no signature", func(t *testing.T) {
		r := request(srv.URL)
		r.Keys = nil
		expect.Len(t, "the signatures", send(t, s, r).header.Values(HeaderSignature), 0)
	})
}

// TestSend_Statuses: WHK-07.
func TestSend_Statuses(t *testing.T) {
	var status atomic.Int32
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(int(status.Load())) })
	s := open(t, Options{})
	for code := 200; code < 1000; code++ {
		if code > 208 && code%7 != 0 && code%100 > 30 {
			continue
		}
		status.Store(int32(code))
		o := s.Send(t.Context(), request(srv.URL))
		want := HTTP5xx
		switch {
		case code < 300:
			want = ""
		case code < 500:
			want = HTTP4xx
		}
		if o.Status != code || o.Category != want || (o.Err == nil) != (want == "") {
			t.Errorf("WHK-07 status %d: got %d %q %v", code, o.Status, o.Category, o.Err)
		}
	}
}

// TestSend_KeepsResponses: OPS-18. The kept part of a response is valid text, whatever the endpoint sends.
func TestSend_KeepsResponses(t *testing.T) {
	var status atomic.Int32
	var body atomic.Value
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, body.Load().(string))
	})
	s := open(t, Options{})
	long := strings.Repeat("é", MaxKept)
	for name, c := range map[string]struct {
		status int
		sent   string
		keep   bool
		want   string
	}{
		"a short one":                 {404, "no such queue", true, "no such queue"},
		"an empty one":                {500, "", true, ""},
		"the beginning of a long one": {500, "a" + long, true, "a" + long[:MaxKept-2] + "\uFFFD"},
		"one that is not text":        {400, "\xff\x00ok", true, "\uFFFD\x00ok"},
		"none after a success":        {200, "thanks", true, ""},
		"none unless it is asked":     {404, "no such queue", false, ""},
	} {
		t.Run("OPS-18 "+name, func(t *testing.T) {
			status.Store(int32(c.status))
			body.Store(c.sent)
			r := request(srv.URL)
			r.KeepResponse = c.keep
			o := s.Send(t.Context(), r)
			expect.Equal(t, "the status", o.Status, c.status)
			expect.Equal(t, "the response", o.Response, c.want)
			if o.Err != nil && c.sent != "" && strings.Contains(o.Err.Error(), c.sent) {
				t.Errorf("SRF-05 the error quotes the response: %v", o.Err)
			}
		})
	}
}

// TestSend_RetryAfter: WHK-09. Seconds and dates are parsed, and limited to a day.
func TestSend_RetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                                 0,
		"0":                                0,
		"120":                              2 * time.Minute,
		" 7 ":                              7 * time.Second,
		"86400":                            24 * time.Hour,
		"86401":                            24 * time.Hour,
		"99999999999999999999999999999999": 24 * time.Hour,
		"-5":                               0,
		"+5":                               0,
		"1.5":                              0,
		"soon":                             0,
		"Sat, 21 Nov 2026 12:10:00 GMT":    10 * time.Minute,
		"Saturday, 21-Nov-26 12:10:00 GMT": 10 * time.Minute,
		"Sat Nov 21 12:10:00 2026":         10 * time.Minute,
		"Sat, 21 Nov 2026 11:00:00 GMT":    0,
		"Fri, 21 Nov 2036 12:00:00 GMT":    24 * time.Hour,
		strings.Repeat("1", 10_000):        0,
	} {
		expect.Equal(t, fmt.Sprintf("%.40q", value), parseRetryAfter(value, now), want)
	}

	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "30")
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		w.WriteHeader(code)
	})
	s := open(t, Options{})
	for code, want := range map[int]time.Duration{200: 0, 429: 30 * time.Second, 502: 30 * time.Second, 503: 30 * time.Second, 504: 30 * time.Second} {
		expect.Equal(t, fmt.Sprintf("WHK-09 the pause after status %d", code), s.Send(t.Context(), request(srv.URL+"/?code="+strconv.Itoa(code))).RetryAfter, want)
	}
}

// TestSend_Redirects: WHK-07, SRF-04.
func TestSend_Redirects(t *testing.T) {
	var contacted atomic.Int32
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { contacted.Add(1) })
	for _, code := range []int{300, 301, 302, 303, 304, 305, 307, 308} {
		var requests atomic.Int32
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			w.Header().Set("Location", elsewhere.URL)
			w.Header().Set("Refresh", "0; url="+elsewhere.URL)
			w.Header().Set("Alt-Svc", `http/1.1="`+elsewhere.Listener.Addr().String()+`"; ma=60`)
			w.WriteHeader(code)
		})
		s := open(t, Options{})
		o := s.Send(t.Context(), request(srv.URL))
		expect.Equal(t, "WHK-07 the status", o.Status, code)
		expect.Equal(t, "WHK-07 the category", o.Category, HTTP4xx)
		expect.Equal(t, fmt.Sprintf("WHK-07 requests with status %d", code), requests.Load(), 1)
	}
	expect.Equal(t, "WHK-07 SRF-04 redirects that were followed", contacted.Load(), 0)
}

func TestSend_Failures(t *testing.T) {
	closed := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	refused := closed.Addr().String()
	_ = closed.Close()

	t.Run("connection_refused", func(t *testing.T) {
		o := open(t, Options{}).Send(t.Context(), request("http://"+refused))
		expect.Equal(t, "the category", o.Category, ConnectionRefused)
		expect.Error(t, "the error", o.Err, "refused")
	})
	t.Run("dns_error", func(t *testing.T) {
		names := newNameServer(t, func(string) []netip.Addr { return nil })
		o := open(t, Options{Guard: &Guard{Resolver: names.resolver()}}).Send(t.Context(), request("https://nowhere.example"))
		expect.Equal(t, "the category", o.Category, DNSError)
		expect.Equal(t, "the published category", o.Category.ToPublished(), ConnectionRefused)
		for _, name := range names.names() {
			expect.Equal(t, "the looked up name", name, "nowhere.example.")
		}
	})
	t.Run("a name server that does not respond", func(t *testing.T) {
		conn := expect.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
		defer conn.Close()
		silent := &nameServer{conn: conn}
		r := request("https://nowhere.example")
		r.Timeout = 100 * time.Millisecond
		o := open(t, Options{Guard: &Guard{Resolver: silent.resolver()}}).Send(t.Context(), r)
		if o.Category != Timeout && o.Category != DNSError || o.Took > 8*time.Second {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("aborted by the caller", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		addr := startTCP(t, func(c net.Conn, done <-chan struct{}) {
			r := bufio.NewReader(c)
			_, _ = readRequest(r)
			cancel()
			<-done
		})
		expect.Equal(t, "the outcome", open(t, Options{}).Send(ctx, request("http://"+addr)).Category, Aborted)
	})
	t.Run("a body over the limit is not sent", func(t *testing.T) {
		r := request("http://" + refused)
		r.Body = make([]byte, MaxBody+1)
		if o := open(t, Options{}).Send(t.Context(), r); o.Status != 413 || o.Category != HTTP4xx {
			t.Errorf("got %+v", o)
		}
	})
}

// TestSend_NoProxyFromTheEnvironment: SRF-04.
func TestSend_NoProxyFromTheEnvironment(t *testing.T) {
	var proxied atomic.Int32
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) { proxied.Add(1); w.WriteHeader(299) })
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	t.Setenv("NO_PROXY", "")
	srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	// The environment's proxy is never used for loopback addresses, so the test needs a name.
	guard := here(t)
	target := "http://hooks.example.net:" + strconv.Itoa(int(portOf(t, srv.URL)))
	o := open(t, Options{Guard: guard}).Send(t.Context(), request(target))
	expect.Equal(t, "SRF-04 the status", o.Status, 200)
	expect.Equal(t, "SRF-04 the requests at the proxy", proxied.Load(), 0)
}

// certificate returns a self-signed certificate, and a pool that trusts it.
func certificate(t *testing.T, name string, until time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := expect.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true,
	}
	der := expect.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	cert := expect.Value(x509.ParseCertificate(der))(t)
	p := x509.NewCertPool()
	p.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, p
}

// certified makes a server of [serveTLS] use a certificate with the given lifetime, which its sender trusts.
func certified(t *testing.T, name string, life time.Duration) func(*httptest.Server, *Options) {
	return func(srv *httptest.Server, o *Options) {
		cert, trust := certificate(t, name, time.Now().Add(life))
		srv.TLS, o.RootCAs = &tls.Config{Certificates: []tls.Certificate{cert}}, trust
	}
}

func quiet(srv *httptest.Server, _ *Options) { srv.Config.ErrorLog = log.New(io.Discard, "", 0) }

func TestSend_TLS(t *testing.T) {
	ok := func(http.ResponseWriter, *http.Request) {}
	for name, with := range map[string]func(*httptest.Server, *Options){
		"untrusted": func(_ *httptest.Server, o *Options) { o.RootCAs = x509.NewCertPool() },
		"expired":   certified(t, "example.com", -time.Hour),
		"TLS 1.1": func(srv *httptest.Server, _ *Options) {
			srv.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
		},
		"SRF-05 another name, which is not repeated": certified(t, "s3cr3t-marker.example", time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			_, s, target := serveTLS(t, ok, quiet, with)
			o := s.Send(t.Context(), request(target))
			if text := fmt.Sprintf("%v %+v", o.Err, o); o.Category != TLSError || strings.Contains(text, "s3cr3t") {
				t.Errorf("got %+v", o)
			}
		})
	}
	t.Run("TLS 1.2 is accepted", func(t *testing.T) {
		_, s, target := serveTLS(t, ok, func(srv *httptest.Server, _ *Options) { srv.TLS = &tls.Config{MaxVersion: tls.VersionTLS12} })
		delivers(t, s, request(target))
	})

	guarded := func(addr string) (*Sender, string) {
		_, port, _ := net.SplitHostPort(addr)
		return open(t, Options{Guard: here(t)}), "https://example.com:" + port
	}
	t.Run("an endpoint without TLS is refused", func(t *testing.T) {
		s, target := guarded(startTCP(t, func(c net.Conn, done <-chan struct{}) {
			_, _ = io.WriteString(c, "HTTP/1.1 400 s3cr3t-marker\r\n\r\n")
			<-done
		}))
		o := s.Send(t.Context(), request(target))
		if o.Category != TLSError || strings.Contains(o.Err.Error(), "s3cr3t") {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("a connection that ends during the handshake fails", func(t *testing.T) {
		s, target := guarded(startTCP(t, func(c net.Conn, _ <-chan struct{}) { _, _ = c.Read(make([]byte, 100)) }))
		failsAs(t, s, request(target), TLSError)
	})
	t.Run("WHK-11 a handshake that never completes times out", func(t *testing.T) {
		s, target := guarded(startTCP(t, func(_ net.Conn, done <-chan struct{}) { <-done }))
		r := request(target)
		r.Timeout = 200 * time.Millisecond
		failsAs(t, s, r, Timeout)
	})
}

func TestSend_HTTP2(t *testing.T) {
	seen := make(chan captured, 1)
	_, s, target := serveTLS(t, capture(seen))
	r := request(target + "/hook")
	expect.OK(t, s.Send(t.Context(), r).Err)
	got := <-seen
	expect.Equal(t, "the protocol", got.proto, "HTTP/2.0")
	expect.Equal(t, "the method", got.method, http.MethodPost)
	expect.OK(t, Verify(got.header, got.body, formatSecret(r.Keys[0])))
	// content-length, content-type, user-agent, three of Standard Webhooks, the subscription
	expect.Len(t, "WHK-01 the headers", got.header, 7)

	t.Run("SRF-04 SRF-05 a huge header is refused", func(t *testing.T) {
		_, s, target := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) {
			for i := range 200 {
				w.Header().Set("X-"+strconv.Itoa(i), strings.Repeat("s3cr3t", 200))
			}
		})
		o := s.Send(t.Context(), request(target))
		expect.Equal(t, "the category", o.Category, ConnectionRefused)
		expect.Lacks(t, "the outcome", fmt.Sprintf("%+v %v", o, o.Err), "s3cr3t")
	})
}

// TestSend_KeepsTheName checks that only the address is resolved: the certificate, SNI and Host are for the name
// (SRF-01).
func TestSend_KeepsTheName(t *testing.T) {
	sni, host := make(chan string, 1), make(chan string, 1)
	_, s, target := serveTLS(t, func(_ http.ResponseWriter, r *http.Request) {
		sni <- r.TLS.ServerName
		host <- r.Host
	})
	expect.OK(t, s.Send(t.Context(), request(target+"/x")).Err)
	expect.Equal(t, "SRF-01 SNI", <-sni, "example.com")
	expect.Equal(t, "SRF-01 the host", "https://"+<-host, target)
	// The certificate does not match another name that resolves to the same address.
	failsAs(t, s, request(strings.Replace(target, "example.com", "other.example", 1)), TLSError)
}
