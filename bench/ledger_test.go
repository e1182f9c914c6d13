package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestPercentile(t *testing.T) {
	upTo := func(n int) (d []time.Duration) {
		for i := 1; i <= n; i++ {
			d = append(d, time.Duration(i))
		}
		return d
	}
	for _, tc := range []struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{nil, 50, 0},
		{upTo(1), 0, 1},
		{upTo(1), 100, 1},
		{upTo(2), 50, 1},
		{upTo(2), 51, 2},
		{upTo(10), 90, 9},
		{upTo(10), 99, 10},
		{upTo(100), 50, 50},
		{upTo(100), 99, 99},
		{upTo(100), 100, 100},
		{upTo(1000), 99.9, 999},
		{[]time.Duration{1, 1, 1, 7}, 75, 1},
		{[]time.Duration{1, 1, 1, 7}, 76, 7},
	} {
		expect.Equal(t, fmt.Sprintf("p%g of %d values", tc.p, len(tc.sorted)), percentile(tc.sorted, tc.p), tc.want)
	}
}

func TestLedgerCounts(t *testing.T) {
	// Given 4 events over 2 URIs with 2 subscribers each: endpoints 0 and 2 have URI 0, endpoints 1 and 3 URI 1.
	shape := Shape{Events: 4, URIs: 2, Subscribers: 2}
	type arrival struct {
		id       string
		endpoint int
	}
	all := []arrival{{"x-0", 0}, {"x-0", 2}, {"x-1", 1}, {"x-1", 3}, {"x-2", 0}, {"x-2", 2}, {"x-3", 1}, {"x-3", 3}}
	for _, tc := range []struct {
		name                      string
		arrivals                  []arrival
		lost, duplicates, strange int64
	}{
		{"nothing", nil, 8, 0, 0},
		{"everything", all, 0, 0, 0},
		{"everything twice", append(append([]arrival{}, all...), all...), 0, 8, 0},
		{"all but one", all[1:], 1, 0, 0},
		{"one twice, one lost", append(append([]arrival{}, all[1:]...), all[1]), 1, 1, 0},
		{"a wrong endpoint", []arrival{{"x-0", 1}}, 8, 0, 1},
		{"no endpoint", []arrival{{"x-0", 4}, {"x-0", -1}}, 8, 0, 2},
		{"no event", []arrival{{"x-4", 0}, {"x--1", 0}, {"x-", 0}, {"x-1e0", 1}}, 8, 0, 4},
		{"another run's", []arrival{{"y-0", 0}, {"", 0}}, 8, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger("x-", shape, nil)
			for _, a := range tc.arrivals {
				l.arrive([]byte(a.id), a.endpoint, time.Now())
			}
			if l.lost() != tc.lost || l.duplicates.Load() != tc.duplicates || l.strange.Load() != tc.strange {
				t.Errorf("got lost %d, duplicates %d, strange %d", l.lost(), l.duplicates.Load(), l.strange.Load())
			}
			select {
			case <-l.done:
				expect.AtMost(t, "the missing deliveries of a run that is done", tc.lost, 0)
			default:
				if tc.lost == 0 {
					t.Error("is not done")
				}
			}
		})
	}
}

func TestLedgerMeasuresFromWhenTheEventWasDue(t *testing.T) {
	s := Shape{Events: 3, URIs: 1, Subscribers: 1, Rate: 100}
	l := newLedger("x-", s, nil)
	for n := range s.Events {
		l.publishing(n, s.due(l.began, n))
	}
	l.arrive([]byte("x-2"), 0, l.began.Add(50*time.Millisecond)) // due after 20 ms
	l.arrive([]byte("x-0"), 0, l.began.Add(7*time.Millisecond))
	l.arrive([]byte("x-0"), 0, l.began.Add(time.Second)) // a duplicate changes nothing
	expect.Equal(t, "the latencies", fmt.Sprint(l.latencies()), "[7ms 30ms]")
	expect.Equal(t, "the last arrival after the begin", time.Duration(l.last.Load()), 50*time.Millisecond)
}

func TestLedgerTakesConcurrentArrivals(t *testing.T) {
	s := Shape{Events: 1000, URIs: 1, Subscribers: 2}
	l := newLedger("x-", s, nil)
	var wg sync.WaitGroup
	for range 4 { // each delivery comes four times
		wg.Go(func() {
			for n := range s.Events {
				l.arrive(fmt.Appendf(nil, "x-%d", n), 0, time.Now())
				l.arrive(fmt.Appendf(nil, "x-%d", n), 1, time.Now())
			}
		})
	}
	wg.Wait()
	<-l.done
	if l.arrived.Load() != 2000 || l.duplicates.Load() != 6000 || l.lost() != 0 {
		t.Errorf("got arrived %d, duplicates %d, lost %d", l.arrived.Load(), l.duplicates.Load(), l.lost())
	}
}

func TestShapeRefuses(t *testing.T) {
	good := Shape{Events: 1, Batch: 1, Publishers: 1, URIs: 1, Subscribers: 1, Payload: 1}
	expect.OK(t, good.check())
	for name, change := range map[string]func(*Shape){
		"no events":                   func(s *Shape) { s.Events = 0 },
		"no batch":                    func(s *Shape) { s.Batch = 0 },
		"no URIs":                     func(s *Shape) { s.URIs = -1 },
		"a negative rate":             func(s *Shape) { s.Rate = -1 },
		"more than memory holds":      func(s *Shape) { s.Events, s.Subscribers = 1e6, 1e3 },
		"an unknown client":           func(s *Shape) { s.Client = "curl" },
		"an origin that has no hangs": func(s *Shape) { s.HangOrigin = true },
	} {
		s := good
		change(&s)
		if s.check() == nil {
			t.Errorf("%s is allowed", name)
		}
	}
}

func TestPlaceholdersAreFilledIn(t *testing.T) {
	v := values{id: "a-1", uri: "event://x", payload: `{"p":1}`, target: "http://t", n: 7}
	for in, want := range map[string]string{
		"":                                "",
		"plain":                           "plain",
		`{"id":"{{id}}","d":{{payload}}}`: `{"id":"a-1","d":{"p":1}}`,
		"{{ uri }}{{target}}{{n}}":        "event://xhttp://t7",
		"{{unknown}} {{id":                "{{unknown}} {{id",
		`{"a":{"b":{{n}}}}`:               `{"a":{"b":7}}`,
	} {
		expect.Equal(t, fmt.Sprintf("%q", in), string(parseTemplate(in).append(nil, v)), want)
	}
}

func TestTextAtPointer(t *testing.T) {
	const doc = `{"id":"a","n":1,"in":{"x/y":["p","q"],"~":"t"}}`
	for pointer, want := range map[string]string{
		"/id": "a", "/n": "", "/in/x~1y/1": "q", "/in/x~1y/2": "", "/in/x~1y/-1": "", "/in/~0": "t", "/no": "", "/id/x": "",
	} {
		expect.Equal(t, pointer, text([]byte(doc), pointer), want)
	}
	expect.Equal(t, "text in a document that is not JSON", text([]byte("{"), "/id"), "")
}

func TestReadAdapter(t *testing.T) {
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "adapter.yaml")
		expect.OK(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	a, err := ReadAdapter(write(`{"name":"other","publish":{"url":"http://127.0.0.1:9/p","headers":{"A":"b"},"body":"{{id}}"},"received":{"pointer":"/id"}}`))
	if err != nil || a.Name != "other" || a.Publish.Headers["A"] != "b" || a.Received.Pointer != "/id" {
		t.Errorf("got %+v, %v", a, err)
	}
	for name, text := range map[string]string{
		"nothing":              ``,
		"an unknown member":    "publish: {url: 'http://x', body: '{{id}}'}\nreceived: {header: a}\nspeed: 9",
		"no URL":               "publish: {body: '{{id}}'}\nreceived: {header: a}",
		"another scheme":       "publish: {url: 'ftp://x', body: '{{id}}'}\nreceived: {header: a}",
		"no id":                "publish: {url: 'http://x', body: '{{n}}'}\nreceived: {header: a}",
		"no way to find ids":   "publish: {url: 'http://x', body: '{{id}}'}",
		"two ways to find ids": "publish: {url: 'http://x', body: '{{id}}'}\nreceived: {header: a, pointer: /b}",
		"a bad register URL":   "publish: {url: 'http://x', body: '{{id}}'}\nregister: {url: x}\nreceived: {header: a}",
	} {
		expect.Error(t, name, expect.ErrOf(ReadAdapter(write(text))))
	}
	expect.Error(t, "a missing file", expect.ErrOf(ReadAdapter("no such file")))
}

func TestMessagesOfHTTPAreRead(t *testing.T) {
	const next = "POST /endpoint/1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
	for _, tc := range []struct{ name, text, start, id, body string }{
		{"a request", "POST /endpoint/7 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nWEBHOOK-ID: a-1\r\n\r\nabc", "POST /endpoint/7 HTTP/1.1", "a-1", "abc"},
		{"no body", "POST / HTTP/1.1\r\nwebhook-id:  a \r\n\r\n", "POST / HTTP/1.1", "a", ""},
		{"chunks", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "POST / HTTP/1.1", "", "abcde"},
		{"chunks with a trailer", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", "POST / HTTP/1.1", "", "a"},
		{"bare line feeds", "POST / HTTP/1.1\nContent-Length: 1\n\nz", "POST / HTTP/1.1", "", "z"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := bufio.NewReader(strings.NewReader(tc.text + next))
			var m message
			expect.OK(t, m.read(r))
			if string(m.start()) != tc.start || string(m.header("webhook-id")) != tc.id || string(m.body) != tc.body {
				t.Errorf("got %q, id %q, body %q", m.start(), m.header("webhook-id"), m.body)
			}
			if err := m.read(r); err != nil || string(m.start())+"\r\nContent-Length: 0\r\n\r\n" != next || len(m.body) != 0 {
				t.Errorf("the next message is %q, %v", m.start(), err)
			}
		})
	}
	for _, text := range []string{
		"", "POST / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabc", "\r\n",
	} {
		var m message
		expect.Error(t, text, m.read(bufio.NewReader(strings.NewReader(text))))
	}
}

func TestCallerTalksToNetHTTP(t *testing.T) {
	var conns atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/close":
			w.Header().Set("Connection", "close")
		case "/chunks":
			_, _ = io.WriteString(w, "chunk ")
			w.(http.Flusher).Flush()
		case "/bad":
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, r.Header.Get("X-A")+string(b))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	c := &caller{}
	defer c.close()
	for _, step := range []struct {
		path, want string
		conns      int
	}{{"/", "1body", 1}, {"/chunks", "chunk 1body", 1}, {"/close", "1body", 1}, {"/", "1body", 2}} {
		u, _ := url.Parse(s.URL + step.path)
		got, err := c.post(u, []byte("X-A: 1\r\n"), []byte("body"))
		if err != nil || string(got) != step.want || int(conns.Load()) != step.conns {
			t.Errorf("%s: got %q, %v, %d connections", step.path, got, err, conns.Load())
		}
	}
	// When the server closes a connection that rests, the caller opens another.
	s.CloseClientConnections()
	u, _ := url.Parse(s.URL)
	expect.OK(t, expect.ErrOf(c.post(u, nil, nil)))
	u.Path = "/bad"
	if _, err := c.post(u, nil, []byte("why")); err == nil || !strings.Contains(err.Error(), "418") || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v", err)
	}
}
