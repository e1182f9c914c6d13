package check_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/test/expect"
)

// wrong is a rule that a rogue breaks: it changes the requests of a method, or each write of their responses.
type wrong struct {
	method   string // a text that the request's body contains
	request  func(req *http.Request, body string) string
	response func(text string) string
}

// replace returns a function that replaces the matches of a regular expression.
func replace(old, by string) func(string) string {
	expression := regexp.MustCompile(old)
	return func(text string) string { return expression.ReplaceAllString(text, by) }
}

// startRogue starts a proxy that breaks rules in front of a server, and returns its URL.
func startRogue(t *testing.T, server string, faults ...wrong) string {
	t.Helper()
	target := expect.Value(url.Parse(strings.TrimSuffix(server, "/mcp")))(t)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Header.Del("Accept-Encoding") },
		FlushInterval: -1,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		body, out := string(b), &changing{ResponseWriter: w}
		for _, f := range faults {
			if !strings.Contains(body, f.method) {
				continue
			}
			if f.request != nil {
				body = f.request(req, body)
			}
			if f.response != nil {
				out.changes = append(out.changes, f.response)
			}
		}
		req.Body, req.ContentLength = io.NopCloser(bytes.NewBufferString(body)), int64(len(body))
		proxy.ServeHTTP(out, req)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/mcp"
}

// changing changes the text of each write.
type changing struct {
	http.ResponseWriter
	changes []func(string) string
}

func (w *changing) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

func (w *changing) Write(b []byte) (int, error) {
	text := string(b)
	for _, change := range w.changes {
		text = change(text)
	}
	_, err := io.WriteString(w.ResponseWriter, text)
	return len(b), err
}

func (w *changing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestRulesThatAreBrokenFail(t *testing.T) {
	t.Parallel()
	o := startServer(t, nil)
	n := 0
	numbered := func(text string) string {
		n++
		return replace(`"id":"(sub|mev)?[^"]*","refreshBefore"`, fmt.Sprintf(`"id":"sub_%d","refreshBefore"`, n))(text)
	}
	o.URL = startRogue(
		t, o.URL,
		wrong{method: `"events/list"`, response: replace(`"delivery":\[[^]]*\](,[^{]*"name":"github.push")?`, `"delivery":["push","poll","webhook","pigeon"]$1`)},
		wrong{method: `"events/poll"`, response: replace(`"resultType":"complete"`, `"resultType":"done"`)},
		wrong{method: `"maxEvents"`, response: replace(`"hasMore":true`, `"hasMore":false`)},
		wrong{method: `"events/stream"`, response: replace(`subscriptionId":\d+`, `subscriptionId":0`)},
		wrong{method: `"secret":null`, request: func(_ *http.Request, body string) string {
			return strings.Replace(body, `"secret":null`, `"secret":"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"`, 1)
		}},
		wrong{method: `"events/subscribe"`, response: numbered, request: func(req *http.Request, body string) string {
			req.Header.Set("Authorization", "Bearer agent")
			return body
		}},
		wrong{method: `"events/unsubscribe"`, request: func(_ *http.Request, body string) string { return strings.Replace(body, "/first", "/elsewhere", 1) }},
	)
	report := runCheck(t, o)
	expectRules(t, report, check.Failed,
		"result-type", "list-delivery", "poll-max", "push-subscription-id", "webhook-principal", "webhook-secret", "webhook-key", "webhook-headers", "webhook-unsubscribe")
	if report.FailedMust < 9 {
		t.Errorf("got %d failed MUSTs, want at least 9", report.FailedMust)
	}
}

// A proxy between the server and the receiver makes the server look as if it sent wrong signatures and wrong ids, and repeated
// deliveries that were answered with 410 or 413.
func TestDeliveriesThatBreakRulesFail(t *testing.T) {
	t.Parallel()
	o := startServer(t, nil)
	var receiver atomic.Pointer[url.URL]
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		control := strings.Contains(req.Header.Get("webhook-id"), "msg_")
		again := 1
		switch {
		case control:
			req.Header.Set("webhook-id", "another-id")
		case strings.HasSuffix(req.URL.Path, "/gone"), strings.HasSuffix(req.URL.Path, "/large"):
			again = 2
		default:
			req.Header.Set("Content-Type", "text/plain")
			req.Header.Del("X-MCP-Subscription-Id")
			body = bytes.Replace(body, []byte(`"eventId":"`), []byte(`"eventId":"x`), 1)
		}
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(receiver.Load()) }}
		for range again {
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			recorded := httptest.NewRecorder()
			if proxy.ServeHTTP(recorded, req); again > 1 {
				continue
			}
			w.WriteHeader(recorded.Code)
			_, _ = w.Write(recorded.Body.Bytes())
			return
		}
		w.WriteHeader(http.StatusGone)
	}))
	defer broken.Close()
	o.Receiver = broken.URL
	l, err := net.Listen("tcp", "127.0.0.1:0") // to find an address at which nothing listens
	expect.OK(t, err)
	o.Listen = l.Addr().String()
	_ = l.Close()
	receiver.Store(&url.URL{Scheme: "http", Host: o.Listen})
	expectRules(t, runCheck(t, o), check.Failed, "webhook-envelope", "webhook-signature", "webhook-headers", "webhook-delivery", "webhook-410", "webhook-413", "webhook-id")
}
