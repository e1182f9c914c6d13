package console_test

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestPictures: OPS-11. It makes the pictures of docs/console.md (docs-now.png and docs-event.png in build/console). The pages show what a
// server answers, with names instead of the loopback addresses of the endpoints, and with a quarter of an hour of traffic in the charts.
func TestPictures(t *testing.T) {
	w := start(t, func(o *standalone.Options) {
		o.Config = servertest.Config(t, callers("op", "release-bot", "nightly-agent", "oncall-agent", "reports"), "")
	})
	names := map[string]string{}
	endpoint := func(host string) string {
		s := httptest.NewServer(w.receiver.Config.Handler)
		t.Cleanup(s.Close)
		names[s.URL] = "https://" + host
		return s.URL
	}
	acme, globex, initech := endpoint("hooks.acme.example"), endpoint("agents.globex.example"), endpoint("events.initech.example")
	servertest.Subscribe(t, w.s.URL, "release-bot", acme+"/mcp-events", built, incident)
	servertest.Subscribe(t, w.s.URL, "oncall-agent", globex+"/down/inbox", built)
	servertest.Subscribe(t, w.s.URL, "reports", initech+"/gone/builds", built)
	paused := servertest.Subscribe(t, w.s.URL, "nightly-agent", acme+"/nightly", built)
	servertest.SubscribeEvents(t, w.s.URL, "nightly-agent", globex+"/failed-builds", "ci.build_finished", map[string]any{"status": "failed"})
	w.api("POST", "subscriptions/"+paused+"/pause", `{"reason":"new endpoint on Monday"}`, nil)
	w.api("PUT", "switches/event/github.pull_request", `{"reason":"the provider sends duplicates"}`, nil)
	w.publish(incident, "evt_incident_2291")
	w.publishData(built, "evt_build_8841", map[string]any{"build": 8841})
	w.listed("deliveries?event=evt_build_8841", 3)
	w.listed("deliveries?event=evt_incident_2291", 1)
	servertest.Subscribe(t, w.s.URL, "reports", initech+"/late", built)

	front := httptest.NewServer(w.named(names))
	t.Cleanup(front.Close)
	b := open(t, front.URL)
	b.scheme("dark")
	b.visit(front.URL + "/console/")
	b.signIn("op")
	b.shows("https://agents.globex.example")
	b.shows("https://events.initech.example")
	b.until(`document.querySelectorAll("line-chart canvas").length === 3`)
	b.shoot("docs-now")
	b.scheme("light")
	b.to("#/events/evt_build_8841")
	for _, text := range []string{"1 of 6 subscriptions", "https://hooks.acme.example/mcp-events", "paused by op: new endpoint on Monday", "subscribed later", "8841"} {
		b.shows(text)
	}
	b.shoot("docs-event")
	if text := b.text("main"); strings.Contains(text, "127.0.0.1") {
		t.Errorf("OPS-11 the picture shows a loopback address: %s", text)
	}
}

// named returns a proxy of the server that replaces addresses by names, and fills the charts of the overview.
func (w *world) named(names map[string]string) http.Handler {
	to, err := url.Parse(w.s.AdminURL)
	expect.OK(w, err)
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: func(resp *http.Response) error {
			if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
				return nil
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			for address, name := range names {
				body = bytes.ReplaceAll(body, []byte(address), []byte(name))
			}
			if resp.Request.URL.Path == "/admin/v1/overview" {
				body, err = withTraffic(body)
			}
			resp.Body = io.NopCloser(bytes.NewReader(body))
			resp.ContentLength = int64(len(body))
			resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return err
		},
	}
}

// withTraffic gives an overview a quarter of an hour of traffic, with a failing endpoint in the last minutes.
func withTraffic(body []byte) ([]byte, error) {
	var overview map[string]any
	if err := json.Unmarshal(body, &overview); err != nil {
		return nil, err
	}
	const steps = 100
	end := time.Now().Truncate(10 * time.Second)
	var series []map[string]any
	attempts, failed := 0, 0
	for i := range steps {
		x := float64(i)
		n := int(9 + 3*math.Sin(x/9) + 1.6*math.Sin(x*2.3) + math.Cos(x*5.1))
		bad := i % 29 / 28
		if i > 70 {
			bad = 1 + i%3/2
		}
		attempts, failed = attempts+n, failed+bad
		series = append(series, map[string]any{
			"at": end.Add(time.Duration(i-steps) * 10 * time.Second), "attempts": n, "failed": bad,
			"p50Ms": 38 + 6*math.Sin(x/5) + 3*math.Cos(x*3), "p95Ms": 140 + 35*math.Sin(x/8) + 25*math.Cos(x*1.7),
		})
	}
	recent, ok := overview["recent"].(map[string]any)
	if !ok {
		return nil, io.ErrUnexpectedEOF
	}
	for i, of := range []map[string]any{
		{"attempts": attempts / 4, "failed": failed - 3, "since": end.Add(-290 * time.Second)}, {"attempts": attempts / 3, "failed": 3, "since": end.Add(-830 * time.Second)},
	} {
		if list, _ := recent["failing"].([]any); i < len(list) {
			maps.Copy(list[i].(map[string]any), of)
		}
	}
	recent["series"], recent["attempts"], recent["failed"] = series, attempts, failed
	return json.Marshal(overview)
}
