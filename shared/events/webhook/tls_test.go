package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

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
	for name, c := range map[string]struct {
		with func(*httptest.Server, *Options)
		want string // substring of the error
	}{
		"untrusted": {func(_ *httptest.Server, o *Options) { o.RootCAs = x509.NewCertPool() }, "authority"},
		"expired":   {certified(t, "example.com", -time.Hour), "expired"},
		"TLS 1.1": {func(srv *httptest.Server, _ *Options) {
			srv.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
		}, ""},
		"SRF-05 another name, which is not repeated": {certified(t, "s3cr3t-marker.example", time.Hour), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, s, target := serveTLS(t, ok, quiet, c.with)
			o := s.Send(t.Context(), request(target))
			if text := fmt.Sprintf("%v %+v", o.Err, o); o.Category != TLSError || !strings.Contains(text, c.want) || strings.Contains(text, "s3cr3t") {
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
		return open(t, Options{Guard: here(t)}),
			"https://example.com:" + port
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
	if got.proto != "HTTP/2.0" || got.method != http.MethodPost {
		t.Errorf("got %s %s", got.method, got.proto)
	}
	if err := Verify(got.header, got.body, formatSecret(r.Keys[0])); err != nil {
		t.Error(err)
	}
	var names []string
	for name := range got.header {
		names = append(names, strings.ToLower(name))
	}
	if len(names) != 7 { // content-length, content-type, user-agent, three of Standard Webhooks, the subscription
		t.Errorf("WHK-01 headers %v", names)
	}

	t.Run("WHK-11 a stream without a response times out, and others on the connection succeed", func(t *testing.T) {
		ended := make(chan struct{})
		_, s, target := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hang" {
				<-r.Context().Done()
				close(ended)
			}
		})
		slow := request(target + "/hang")
		slow.Timeout = 300 * time.Millisecond
		done := make(chan Outcome, 1)
		go func() { done <- s.Send(t.Context(), slow) }()
		for range 20 {
			delivers(t, s, request(target+"/"))
		}
		if o := <-done; o.Category != Timeout || o.Took > 8*time.Second {
			t.Errorf("got %+v", o)
		}
		<-ended // the endpoint sees the cancellation
		if o := s.Send(t.Context(), request(target+"/")); !o.OK() {
			t.Errorf("the connection can no longer be used: %v", o.Err)
		}
	})
	t.Run("WHK-11 a slow body times out", func(t *testing.T) {
		_, s, target := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
					_, _ = io.WriteString(w, "x")
					_ = http.NewResponseController(w).Flush()
				}
			}
		})
		r := request(target)
		r.Timeout = 300 * time.Millisecond
		failsAs(t, s, r, Timeout)
	})
	t.Run("SRF-04 an endless body is cut off", func(t *testing.T) {
		_, s, target := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		})
		delivers(t, s, request(target))
	})
	t.Run("SRF-04 SRF-05 a huge header is refused", func(t *testing.T) {
		_, s, target := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) {
			for i := range 200 {
				w.Header().Set("X-"+strconv.Itoa(i), strings.Repeat("s3cr3t", 200))
			}
		})
		o := s.Send(t.Context(), request(target))
		if o.Category != ConnectionRefused || strings.Contains(fmt.Sprintf("%+v %v", o, o.Err), "s3cr3t") {
			t.Errorf("got %+v", o)
		}
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
