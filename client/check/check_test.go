package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// startServer starts a stand-alone server with quick retries and heartbeats, and returns the options that check it.
func startServer(t *testing.T, change func(*standalone.Options)) check.Options {
	t.Helper()
	o := servertest.Options(t, map[string]servertest.Caller{"agent": {Workspace: "default", Scopes: "events:read, events:subscribe"}})
	o.Limits.Heartbeat, o.Limits.EventsSchedule = time.Second, []time.Duration{0, time.Second, time.Second}
	o.Limits.MinTTL = time.Second
	if change != nil {
		change(&o)
	}
	s := servertest.Start(t, o)
	return check.Options{
		URL: s.URL + "/mcp", Key: "agent", Agent: "check/1", Event: "ci.build_finished", Wait: 10 * time.Second, Progress: func(text string) { t.Log(text) },
		Publish: func(ctx context.Context) error {
			_, err := s.Publish(ctx, "default", standalone.Event{URI: "event://ci/build-finished", Data: json.RawMessage(`{"build":7,"status":"passed"}`)})
			return err
		},
	}
}

// listIDs returns the ids of the rules that have a result.
func listIDs(r *check.Report, result string) (ids []string) {
	for _, one := range r.Results {
		if one.Result == result {
			ids = append(ids, one.ID)
		}
	}
	return ids
}

// runCheck checks a server.
func runCheck(t *testing.T, o check.Options) *check.Report {
	t.Helper()
	return expect.Value(check.Run(t.Context(), o))(t)
}

// expectRules checks that rules came to a result.
func expectRules(t *testing.T, r *check.Report, result string, ids ...string) {
	t.Helper()
	got := listIDs(r, result)
	for _, want := range ids {
		expect.Has(t, "RCH-06 the rules of "+string(result), got, want)
	}
}

func TestOurServerHoldsTheRules(t *testing.T) {
	t.Parallel()
	report := runCheck(t, startServer(t, nil))
	t.Run("RCH-06 EVX-25 it fails no rule, in the released profile", func(t *testing.T) {
		if got := listIDs(report, check.Failed); len(got) > 0 || report.Profile != "released" {
			t.Errorf("failed: %q in the profile %q %v, want none in released", got, report.Profile, report.ShownBy)
		}
	})
	t.Run("RCH-06 rules that need a public receiver or an operator are not testable", func(t *testing.T) {
		want := []string{"capability-absent", "error-mode", "webhook-https", "webhook-private", "terminated"}
		expect.List(t, "the rules that were not testable", listIDs(report, check.NotTestable), want)
	})
	t.Run("RCH-06 the report is a table, JSON and JUnit", func(t *testing.T) { checkWritten(t, report) })
}

func checkWritten(t *testing.T, report *check.Report) {
	var table, text, junit bytes.Buffer
	for _, err := range []error{report.Table(&table), report.JSON(&text), report.JUnit(&junit)} {
		expect.OK(t, err)
	}
	expect.Contains(t, "the table", table.String(), "passed        MUST    push-active", "profile: released")
	var again check.Report
	if err := json.Unmarshal(text.Bytes(), &again); err != nil || again.Passed != report.Passed || len(again.Results) != len(report.Results) {
		t.Errorf("%v: %s", err, text.String())
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(junit.Bytes(), &suite); err != nil || suite.Tests != len(report.Results) || len(suite.Cases) != suite.Tests || suite.Failures != 0 {
		t.Errorf("%v: %s", err, junit.String())
	}
	skipped := 0
	for _, c := range suite.Cases {
		if c.Skipped != nil {
			skipped++
		}
	}
	expect.Equal(t, "the skipped cases and those of the suite", skipped, suite.Skipped)
	expect.Equal(t, "the skipped cases and those of the report", skipped, report.NotTestable+report.Failed)
}

func TestAServerOfTheFinalProfileHoldsAllRules(t *testing.T) {
	t.Parallel()
	report := runCheck(t, startServer(t, func(o *standalone.Options) {
		o.Limits.Profile = "final"
		o.Catalog = append(o.Catalog, "  - {name: poll.only, uri: event://poll/only, delivery: [poll]}\n"...)
	}))
	if got := listIDs(report, check.Failed); len(got) > 0 || report.Profile != "final" {
		t.Errorf("RCH-06 EVX-25: failed: %q in the profile %q %v, want none in final", got, report.Profile, report.ShownBy)
	}
	if slices.Contains(listIDs(report, check.NotTestable), "error-mode") {
		t.Error("RCH-06: error-mode is not testable, want a request for a mode that the event type lacks")
	}
}

// Given a server for development, which does not authenticate callers, the check is green and says what to do for the rule that it
// could not test.
func TestAServerWithoutAuthentication(t *testing.T) {
	t.Parallel()
	o := startServer(t, func(o *standalone.Options) { o.Auth, o.Config = auth.ModeNone, nil })
	o.Key = ""
	report := runCheck(t, o)
	expect.Len(t, "RCH-06 the failed rules", listIDs(report, check.Failed), 0)
	i := slices.IndexFunc(report.Results, func(r check.Result) bool { return r.ID == "webhook-principal" })
	if got := report.Results[i]; got.Result != check.NotTestable || !strings.Contains(got.Detail, "--auth none") || !strings.Contains(got.Detail, "--key") {
		t.Errorf("RCH-06: got %+v, want a rule that is not testable, with what to do", got)
	}
}

// As in production, the receiver has a public URL. In this test it leads nowhere.
func TestAddressesThatAServerMustRefuse(t *testing.T) {
	t.Parallel()
	o := startServer(t, func(o *standalone.Options) { o.Limits.AllowInsecureTargets = false })
	o.Receiver = "https://receiver.invalid"
	report := runCheck(t, o)
	expectRules(t, report, check.Passed, "webhook-https", "webhook-private", "webhook-url", "webhook-secret")
	expectRules(t, report, check.Failed, "webhook-subscribe") // the receiver cannot be reached
}

func TestAServerWithoutEventsIsReported(t *testing.T) {
	t.Parallel()
	mine := sdk.NewServer(&sdk.Implementation{Name: "orders", Version: "1"}, nil)
	s := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return mine }, nil))
	defer s.Close()
	report, err := check.Run(t.Context(), check.Options{URL: s.URL, Agent: "check/1"})
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "does not offer MCP Events") {
		t.Fatalf("got %v, want an error of kind unsupported", err)
	}
	expect.List(t, "RCH-06: the passed rules", listIDs(report, check.Passed), []string{"capability-absent"})
	s.Close()
	if _, err := check.Run(t.Context(), check.Options{URL: s.URL, Agent: "check/1"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a server that does not listen: got %v, want an error of kind unavailable", err)
	}
	secret := check.Options{URL: s.URL + "/mcp/u/the-key", Agent: "check/1"}
	if _, err := check.Run(t.Context(), secret); err == nil || strings.Contains(err.Error(), "the-key") {
		t.Errorf("RCH-05 got %v, want an error without the secret path", err)
	}
	for _, bad := range []string{"", "foo", "ftp://x/", "http://"} {
		if _, err := check.Run(t.Context(), check.Options{URL: bad, Agent: "check/1"}); !fault.Is(err, fault.Invalid) {
			t.Errorf("RCH-06 the URL %q: got %v, want an error of kind invalid", bad, err)
		}
	}
}

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
	expect.AtLeast(t, "failed MUSTs", report.FailedMust, 9)
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
