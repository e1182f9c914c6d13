package webhook

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// captured is what an endpoint got.
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
	t.Run("WHK-01 a POST with exactly these fields, spelled as documented", func(t *testing.T) {
		heads := make(chan []string, 1)
		addr := raw(t, func(c net.Conn, _ <-chan struct{}) {
			r := bufio.NewReader(c)
			head, err := readRequest(r, r.Discard)
			if err == nil {
				heads <- head
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		})
		r := request("http://" + addr + "/hook?a=b")
		r.RawSecret = []byte("raw")
		r.At = time.Unix(1_700_000_000, 0)
		if o := open(t, Options{UserAgent: "mcp-events/1.2.3"}).Send(t.Context(), r); !o.OK() {
			t.Fatal(o.Err)
		}
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
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})

	seen := make(chan captured, 1)
	srv := serve(t, capture(seen))
	s := open(t, Options{})
	send := func(t *testing.T, s *Sender, r Request) captured {
		t.Helper()
		if o := s.Send(t.Context(), r); !o.OK() {
			t.Fatal(o.Err)
		}
		return <-seen
	}

	t.Run("WHK-02 webhook-id is the event id at every attempt", func(t *testing.T) {
		for range 3 {
			if got := send(t, s, request(srv.URL)).header.Get(HeaderID); got != "evt_1" {
				t.Errorf("webhook-id %q", got)
			}
		}
	})

	t.Run("WHK-03 timestamp and signature are those of the attempt", func(t *testing.T) {
		r := request(srv.URL)
		var signatures []string
		for i := range 2 {
			r.At = time.Unix(1_700_000_000+int64(i), 999_999_999)
			got := send(t, s, r)
			if v := got.header.Get(HeaderTimestamp); v != strconv.FormatInt(r.At.Unix(), 10) {
				t.Errorf("timestamp %q", v)
			}
			signatures = append(signatures, got.header.Get(HeaderSignature))
		}
		if signatures[0] == signatures[1] {
			t.Error("the signature was not renewed")
		}
	})

	t.Run("WHK-04 the signature is over the bytes sent", func(t *testing.T) {
		for _, body := range []string{
			`{}`, `{"a":"ü ñ 你好 😀"}`, "{\"a\" :\t1.0e+2,\n\"b\":\"\\ufffe\\u0000\"}", `{"n":12345678901234567890.10}`,
			`{"pad":"` + strings.Repeat("x", MaxBody-10) + `"}`,
		} {
			r := request(srv.URL)
			r.Body = []byte(body)
			got := send(t, s, r)
			if string(got.body) != body {
				t.Fatal("other bytes arrived")
			}
			wh, _ := standardwebhooks.NewWebhookRaw(r.Keys[0])
			if err := wh.Verify(got.body, got.header); err != nil {
				t.Error(err)
			}
			if err := wh.Verify(append(got.body, ' '), got.header); err == nil {
				t.Error("a changed body verifies")
			}
		}
	})

	t.Run("WHK-05 v1a beside v1 verifies by the published key set", func(t *testing.T) {
		key, err := ParseIdentity(GenerateIdentity())
		if err != nil {
			t.Fatal(err)
		}
		former, _, _ := ed25519.GenerateKey(nil)
		id := NewIdentity(key, former)
		got := send(t, open(t, Options{Identity: id}), request(srv.URL))
		v1, v1a, ok := strings.Cut(got.header.Get(HeaderSignature), " ")
		if !ok || !strings.HasPrefix(v1, "v1,") || !strings.HasPrefix(v1a, "v1a,") {
			t.Fatalf("signatures %q", got.header.Get(HeaderSignature))
		}
		keys, err := ParseJWKS(id.JWKS())
		if err != nil || len(keys) != 2 {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		if err := VerifyIdentity(got.header, got.body, keys...); err != nil {
			t.Error(err)
		}
		if err := VerifyIdentity(got.header, got.body, former); err == nil {
			t.Error("verifies by a key that did not sign")
		}
		if err := VerifyIdentity(got.header, append(got.body, ' '), keys...); err == nil {
			t.Error("a changed body verifies")
		}
	})

	t.Run("WHK-06 both secrets sign during a rotation", func(t *testing.T) {
		r := request(srv.URL)
		newer, older := []byte(strings.Repeat("n", 24)), []byte(strings.Repeat("o", 64))
		r.Keys = [][]byte{newer, older}
		got := send(t, s, r)
		if n := len(strings.Fields(got.header.Get(HeaderSignature))); n != 2 {
			t.Fatalf("%d signatures", n)
		}
		for _, key := range r.Keys {
			if err := Verify(got.header, got.body, FormatSecret(key)); err != nil {
				t.Error(err)
			}
		}
		r.Keys = r.Keys[:1]
		if got = send(t, s, r); Verify(got.header, got.body, FormatSecret(older)) == nil {
			t.Error("the old secret still verifies")
		}
	})

	t.Run("without keys there is no signature", func(t *testing.T) {
		r := request(srv.URL)
		r.Keys = nil
		if _, ok := send(t, s, r).header[http.CanonicalHeaderKey(HeaderSignature)]; ok {
			t.Error("there is one")
		}
	})
}

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
		if o.Status != code || o.Category != want || o.OK() != (want == "") || (o.Err == nil) != (want == "") {
			t.Errorf("WHK-07 status %d: got %d %q %v", code, o.Status, o.Category, o.Err)
		}
	}
	t.Run("a protocol switch is a failure", func(t *testing.T) {
		addr := raw(t, func(c net.Conn, _ <-chan struct{}) {
			r := bufio.NewReader(c)
			_, _ = readRequest(r, r.Discard)
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
		})
		if o := s.Send(t.Context(), request("http://"+addr)); o.OK() || o.Status != 101 {
			t.Errorf("got %+v", o)
		}
	})
}

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
		if got := ParseRetryAfter(value, now); got != want {
			t.Errorf("%.40q: got %s, want %s", value, got, want)
		}
	}

	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "30")
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		w.WriteHeader(code)
	})
	s := open(t, Options{})
	for code, want := range map[int]time.Duration{200: 0, 429: 30 * time.Second, 502: 30 * time.Second, 503: 30 * time.Second, 504: 30 * time.Second} {
		if o := s.Send(t.Context(), request(srv.URL+"/?code="+strconv.Itoa(code))); o.RetryAfter != want {
			t.Errorf("WHK-09 status %d: got %s, want %s", code, o.RetryAfter, want)
		}
	}
}

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
		if o.OK() || o.Status != code || o.Category != HTTP4xx {
			t.Errorf("WHK-07 %d: got %+v", code, o)
		}
		if requests.Load() != 1 {
			t.Errorf("WHK-07 %d: %d requests", code, requests.Load())
		}
	}
	if contacted.Load() != 0 {
		t.Errorf("WHK-07 SRF-04 a redirect was followed %d times", contacted.Load())
	}
}

// TestSend_HostileEndpoints shows that nothing an endpoint does holds a worker
// past the timeout (WHK-11), makes it read without end (SRF-04), or reaches the
// error (SRF-05).
func TestSend_HostileEndpoints(t *testing.T) {
	const marker = "S3CR3T-MARKER"
	writing := func(head, unit string, pause time.Duration) func(net.Conn, <-chan struct{}) {
		return func(c net.Conn, done <-chan struct{}) {
			r := bufio.NewReader(c)
			if _, err := readRequest(r, r.Discard); err != nil {
				return
			}
			_, err := io.WriteString(c, head)
			for err == nil {
				if pause > 0 {
					select {
					case <-done:
						return
					case <-time.After(pause):
					}
				}
				_, err = io.WriteString(c, unit)
			}
		}
	}
	once := func(answer string) func(net.Conn, <-chan struct{}) {
		return func(c net.Conn, _ <-chan struct{}) {
			r := bufio.NewReader(c)
			if _, err := readRequest(r, r.Discard); err == nil {
				_, _ = io.WriteString(c, answer)
			}
		}
	}
	silent := func(c net.Conn, done <-chan struct{}) { <-done }
	big := strings.Repeat("a", 64<<10)
	for name, tt := range map[string]struct {
		handle func(net.Conn, <-chan struct{})
		want   Category
		status int
	}{
		"never answers":                 {silent, Timeout, 0},
		"drips a status line":           {writing("HTTP/1.1 ", "2", 20*time.Millisecond), Timeout, 0},
		"drips a header":                {writing("HTTP/1.1 200 OK\r\nX-"+marker+": ", "x", 20*time.Millisecond), Timeout, 0},
		"drips a body":                  {writing("HTTP/1.1 200 OK\r\nContent-Length: 16000\r\n\r\n", "x", 20*time.Millisecond), Timeout, 0},
		"drips chunks":                  {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", 20*time.Millisecond), Timeout, 0},
		"drips a failure":               {writing("HTTP/1.1 500 No\r\nContent-Length: 16000\r\n\r\n", "x", 20*time.Millisecond), Timeout, 0},
		"drips 1xx":                     {writing("", "HTTP/1.1 103 Early Hints\r\nLink: "+marker+"\r\n\r\n", 20*time.Millisecond), Timeout, 0},
		"floods 1xx":                    {writing("", "HTTP/1.1 103 Early Hints\r\nLink: "+marker+"\r\n\r\n", 0), ConnectionRefused, 0},
		"floods 100":                    {writing("", "HTTP/1.1 100 Continue\r\n\r\n", 0), ConnectionRefused, 0},
		"floods 102":                    {writing("", "HTTP/1.1 102 Processing\r\n\r\n", 0), ConnectionRefused, 0},
		"sends a huge header":           {writing("HTTP/1.1 200 OK\r\nX-Big: "+marker, big, 0), ConnectionRefused, 0},
		"sends headers without end":     {writing("HTTP/1.1 200 OK\r\n", "X-A: "+marker+"\r\n", 0), ConnectionRefused, 0},
		"sends an endless body":         {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "10000\r\n"+big+"\r\n", 0), "", 200},
		"sends an endless failure":      {writing("HTTP/1.1 500 No\r\n\r\n", big, 0), HTTP5xx, 500},
		"sends a body without length":   {once("HTTP/1.1 200 OK\r\n\r\n" + marker), "", 200},
		"breaks off a body":             {once("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + marker), "", 200},
		"breaks off a failure":          {once("HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\n" + marker), HTTP5xx, 500},
		"closes at once":                {func(net.Conn, <-chan struct{}) {}, ConnectionRefused, 0},
		"closes after the request":      {once(""), ConnectionRefused, 0},
		"resets":                        {func(c net.Conn, _ <-chan struct{}) { _ = c.(*net.TCPConn).SetLinger(0) }, ConnectionRefused, 0},
		"speaks no HTTP":                {once(marker + " nonsense\r\n\r\n"), ConnectionRefused, 0},
		"sends a status that is none":   {once("HTTP/1.1 2x0 " + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends a negative length":       {once("HTTP/1.1 200 OK\r\nContent-Length: -" + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends two lengths":             {once("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n" + marker), ConnectionRefused, 0},
		"sends a broken header":         {once("HTTP/1.1 200 OK\r\n" + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends NUL in a header":         {once("HTTP/1.1 200 OK\r\nX: \x00" + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends an unknown encoding":     {once("HTTP/1.1 200 OK\r\nTransfer-Encoding: " + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"answers with a secret reason":  {once("HTTP/1.1 503 " + marker + "\r\nX: " + marker + "\r\nContent-Length: 13\r\n\r\n" + marker), HTTP5xx, 503},
		"answers 404 with a long body":  {once("HTTP/1.1 404 " + marker + "\r\n\r\n" + strings.Repeat(marker, 4000)), HTTP4xx, 404},
		"speaks HTTP/2 unasked":         {once("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), ConnectionRefused, 0},
		"claims an encoding it has not": {once("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 13\r\n\r\n" + marker), "", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := raw(t, tt.handle)
			s := open(t, Options{})
			r := request("http://" + addr)
			r.Timeout = 5 * time.Second
			if tt.want == Timeout {
				r.Timeout = 200 * time.Millisecond
			}
			o := s.Send(t.Context(), r)
			if o.Category != tt.want || o.Status != tt.status {
				t.Errorf("got %q, status %d, %v; want %q, %d", o.Category, o.Status, o.Err, tt.want, tt.status)
			}
			if o.Took > r.Timeout+2*time.Second {
				t.Errorf("WHK-11 held for %s", o.Took)
			}
			if text := fmt.Sprintf("%+v %#v %v", o, o, o.Err); strings.Contains(text, marker) || strings.Contains(text, "nonsense") {
				t.Errorf("SRF-05 the outcome repeats the endpoint: %s", text)
			}
			if f, ok := errors.AsType[*Failure](o.Err); o.Err != nil && (!ok || f.Category != o.Category) {
				t.Errorf("error %#v", o.Err)
			}
		})
	}
}

func TestSend_DoesNotDecompress(t *testing.T) {
	var accept atomic.Value
	bomb := strings.Repeat("\x00", 1<<20) // would be read whole if it was unpacked
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		accept.Store(r.Header.Get("Accept-Encoding"))
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, bomb)
	})
	o := open(t, Options{}).Send(t.Context(), request(srv.URL))
	if !o.OK() || accept.Load() != "" {
		t.Errorf("SRF-04 got %+v, Accept-Encoding %q", o, accept.Load())
	}
}

func TestSend_ReadsAtMostTheBound(t *testing.T) {
	wrote := make(chan int64, 1)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var n int64
		chunk := make([]byte, 32<<10)
		for {
			m, err := w.Write(chunk)
			if n += int64(m); err != nil || n > 1<<30 {
				wrote <- n
				return
			}
		}
	})
	o := open(t, Options{}).Send(t.Context(), request(srv.URL))
	if !o.OK() {
		t.Fatal(o.Err)
	}
	if n := <-wrote; n > 64<<20 { // what the kernel's buffers took
		t.Errorf("SRF-04 %d bytes were taken", n)
	}
}

func TestSend_Failures(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := closed.Addr().String()
	_ = closed.Close()

	t.Run("connection_refused", func(t *testing.T) {
		o := open(t, Options{}).Send(t.Context(), request("http://"+refused))
		if o.Category != ConnectionRefused || !strings.Contains(o.Err.Error(), "refused") {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("dns_error", func(t *testing.T) {
		names := newNameServer(t, func(string) []netip.Addr { return nil })
		o := open(t, Options{Guard: &Guard{Resolver: names.resolver()}}).Send(t.Context(), request("https://nowhere.example"))
		if o.Category != DNSError || o.Category.Published() != ConnectionRefused {
			t.Errorf("got %+v", o)
		}
		for _, name := range names.names() {
			if name != "nowhere.example." {
				t.Errorf("asked for %q: names must be absolute", name)
			}
		}
	})
	t.Run("a name server that is silent", func(t *testing.T) {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent := &nameServer{conn: conn}
		r := request("https://nowhere.example")
		r.Timeout = 100 * time.Millisecond
		o := open(t, Options{Guard: &Guard{Resolver: silent.resolver()}}).Send(t.Context(), r)
		if o.Category != Timeout && o.Category != DNSError || o.Took > 2*time.Second {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("aborted by the caller", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		addr := raw(t, func(c net.Conn, done <-chan struct{}) {
			r := bufio.NewReader(c)
			_, _ = readRequest(r, r.Discard)
			cancel()
			<-done
		})
		if o := open(t, Options{}).Send(ctx, request("http://"+addr)); o.Category != Aborted || o.OK() {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("a body over the limit is not sent", func(t *testing.T) {
		r := request("http://" + refused)
		r.Body = make([]byte, MaxBody+1)
		if o := open(t, Options{}).Send(t.Context(), r); o.Status != 413 || o.Category != HTTP4xx {
			t.Errorf("got %+v", o)
		}
	})
}

func TestSend_NoProxyFromTheEnvironment(t *testing.T) {
	var proxied atomic.Int32
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) { proxied.Add(1); w.WriteHeader(299) })
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	t.Setenv("NO_PROXY", "")
	srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	// The environment's proxy is not used for loopback addresses anyway, so a name is needed.
	guard := &Guard{AllowInsecure: true, Resolver: newNameServer(t, localhost).resolver()}
	target := "http://hooks.example.net:" + strconv.Itoa(int(portOf(t, srv.URL)))
	o := open(t, Options{Guard: guard}).Send(t.Context(), request(target))
	if o.Status != 200 || proxied.Load() != 0 {
		t.Errorf("SRF-04 got %+v, %d requests at the proxy", o, proxied.Load())
	}
}

func TestSend_ConfiguredProxy(t *testing.T) {
	connects := make(chan string, 1)
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) {
		connects <- r.Method + " " + r.Host
		w.WriteHeader(http.StatusForbidden)
	})
	u, _ := url.Parse(proxy.URL)
	s := open(t, Options{Guard: &Guard{}, Proxy: u})
	o := s.Send(t.Context(), request("https://hooks.example.com/x"))
	if got := <-connects; got != "CONNECT hooks.example.com:443" || o.OK() {
		t.Errorf("got %q, %+v", got, o)
	}
	if o := s.Send(t.Context(), request("https://10.0.0.1/x")); o.Category != Blocked {
		t.Errorf("got %+v", o)
	}
}

func TestSend_Connections(t *testing.T) {
	var opened, now, most atomic.Int32
	started := func(srv *httptest.Server) {
		srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				opened.Add(1)
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
			case http.StateClosed, http.StateHijacked:
				now.Add(-1)
			}
		}
		srv.Start()
		t.Cleanup(srv.Close)
	}

	t.Run("WHK-17 a connection is reused, also after an answer with a body", func(t *testing.T) {
		opened.Store(0)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			_, _ = w.Write(make([]byte, maxAnswer))
		}))
		started(srv)
		s := open(t, Options{})
		for range 50 {
			s.Send(t.Context(), request(srv.URL))
		}
		if n := opened.Load(); n != 1 {
			t.Errorf("%d connections for 50 attempts", n)
		}
	})

	t.Run("WHK-17 connections to one host are bounded", func(t *testing.T) {
		opened.Store(0)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		started(srv)
		s := open(t, Options{ConnsPerHost: 3})
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				if o := s.Send(t.Context(), request(srv.URL)); !o.OK() {
					t.Error(o.Err)
				}
			})
		}
		wg.Wait()
		if n := opened.Load(); n > 3 {
			t.Errorf("%d connections", n)
		}
	})

	t.Run("WHK-17 thousands of hosts leave few connections open", func(t *testing.T) {
		opened.Store(0)
		now.Store(0)
		most.Store(0)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		started(srv)
		port := strconv.Itoa(int(portOf(t, srv.URL)))
		const idle, workers, hosts = 40, 16, 2000
		s := open(t, Options{
			IdleConns: idle,
			Guard:     &Guard{AllowInsecure: true, Resolver: newNameServer(t, localhost).resolver()},
		})
		next := make(chan int, workers)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for i := range next {
					o := s.Send(t.Context(), request(fmt.Sprintf("http://h%d.example.com:%s/", i, port)))
					if !o.OK() {
						t.Error(o.Err)
					}
				}
			})
		}
		for i := range hosts {
			next <- i
		}
		close(next)
		wg.Wait()
		// The server learns of a closed connection a little later than the sender.
		if n := most.Load(); n > idle+3*workers {
			t.Errorf("%d connections open at once, opened %d", n, opened.Load())
		}
		if n := opened.Load(); n < hosts {
			t.Errorf("opened %d connections for %d hosts", n, hosts)
		}
	})

	t.Run("a kept connection that was closed is replaced", func(t *testing.T) {
		var conns, ids atomic.Int32
		addr := raw(t, func(c net.Conn, _ <-chan struct{}) {
			first := conns.Add(1) == 1
			r := bufio.NewReader(c)
			for n := 1; ; n++ {
				if _, err := readRequest(r, r.Discard); err != nil {
					return
				}
				ids.Add(1)
				if first && n == 2 {
					return // what an endpoint's idle timeout looks like when it loses the race
				}
				_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		})
		s := open(t, Options{})
		for range 2 {
			if o := s.Send(t.Context(), request("http://"+addr)); !o.OK() {
				t.Fatal(o.Err)
			}
		}
		if conns.Load() != 2 || ids.Load() != 3 {
			t.Errorf("%d connections, %d requests", conns.Load(), ids.Load())
		}
	})
}
