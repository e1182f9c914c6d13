package console_test

import (
	"bytes"
	"encoding/json"
	"fmt"
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

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestPages: OPS-11. Each page is shown in light and dark and at phone width, without a fault.
func TestPages(t *testing.T) {
	w := start(t, withSources(t))
	good := w.subscribe("alice", "/ok", built, incident)
	down := w.subscribe("bob", "/down", built)
	w.subscribe("bob", "/gone", incident)
	for i := range 12 {
		w.publish(built, fmt.Sprintf("evt_build_%02d", i))
		w.publish(incident, fmt.Sprintf("evt_incident_%02d", i))
	}
	w.listed("dead-letters", 12)
	w.listed("deliveries?outcome=delivered&origin="+w.receiver.URL, 24)
	var failed struct{ Items []struct{ Event string } }
	w.listed("subscriptions/"+down+"/deliveries", 1) // after the first 503 it gets no attempt for seconds
	w.api("GET", "subscriptions/"+down+"/deliveries", "", &failed)
	event := failed.Items[0].Event
	w.api("PUT", "switches/event/github.pull_request", `{"reason":"the provider sends duplicates"}`, nil)
	w.api("POST", "subscriptions/"+down+"/pause", `{"reason":"until the endpoint is back"}`, nil)

	w.publishFrom("builds")
	pages := []struct{ name, hash, shows string }{
		{"now", "#/now", "It affects 2 subscriptions"},
		{"live", "#/live", "Live tail"},
		{"failing", "#/failing", "the endpoint answered"},
		{"failing-one", "#/failing/" + url.PathEscape(w.receiver.URL), "Affected subscriptions"},
		{"types", "#/types", "ci.build_finished"},
		{"sources", "#/sources", "unverified"},
		{"source", "#/sources/builds", "Try a request"},
		{"subscriptions", "#/subscriptions", good},
		{"subscription", "#/subscriptions/" + down, "Newest attempts"},
		{"deliveries", "#/deliveries", w.receiver.URL + "/ok"},
		{"delivery", "#/deliveries/" + down + "/" + event, "Attempt 1"},
		{"events", "#/events?name=ci.build_finished", "evt_build_11"},
		{"event", "#/events/" + event, "1 of 2 subscriptions"},
		{"dead-letters", "#/dead-letters", w.receiver.URL + "/gone"},
		{"switches", "#/switches", "the provider sends duplicates"},
		{"backends", "#/backends", "No servers"},
		{"audit", "#/audit", "subscription.pause"},
	}
	for _, kind := range []struct {
		name, scheme  string
		width, height int64
	}{{"light", "light", 1280, 800}, {"phone-dark", "dark", 360, 740}} {
		t.Run("OPS-11 "+kind.name, func(t *testing.T) {
			b := open(t, w.console())
			b.do(chromedp.EmulateViewport(kind.width, kind.height))
			b.scheme(kind.scheme)
			b.visit(w.console())
			b.fits("the sign-in")
			b.shoot("sign-in-" + kind.name)
			b.signIn("op")
			background := eval[string](b, `getComputedStyle(document.body).backgroundColor`)
			if dark := strings.HasPrefix(background, "rgb(14,"); dark != (kind.scheme == "dark") {
				t.Errorf("OPS-11 %s: the background is %s", kind.scheme, background)
			}
			for _, p := range pages {
				b.to(p.hash)
				b.shows(p.shows)
				b.fits(p.name)
				if kind.width < 720 {
					b.hasNoEmptyRows(p.name)
				}
				b.shoot(p.name + "-" + kind.name)
			}
		})
	}
}

// TestLargeNumbers: OPS-11. Numbers of a payload are shown as they were sent.
func TestLargeNumbers(t *testing.T) {
	w := start(t, nil)
	w.publishData(incident, "evt_large", map[string]any{"amounts": []json.Number{"9007199254740993", "1.50", "12345678901234567890.1"}})
	b := w.signIn(t, "")
	b.to("#/events/evt_large")
	for _, number := range []string{"9007199254740993", "1.50", "12345678901234567890.1"} {
		b.shows(number)
	}
}

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
	expect.Lacks(t, "OPS-11 the picture", b.text("main"), "127.0.0.1")
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

const (
	sourceKey = "the-secret-path-of-the-builds-0123456789"
	sources   = `sources:
  - name: builds
    verify: {scheme: none, secrets: ["env:MCPEVENTS_TEST_BUILDS"]}
    events:
      - {match: {body: {kind: [build]}}, name: ci.build_finished, id: /body/id, data: {build: /body/n, status: /body/state, note: /body/note}}
      - {match: {headers: {x-kind: [build]}}, name: ci.build_finished}
  - {name: alarms, from: eventbridge, events: [{match: {detail-type: [Build]}, name: ci.build_finished, data: /detail}]}
`
)

// withSources configures a server with sources.
func withSources(t *testing.T) func(*standalone.Options) {
	t.Setenv("MCPEVENTS_TEST_BUILDS", sourceKey)
	return func(o *standalone.Options) {
		o.Config = servertest.Config(t, callers("op", "op2", "alice", "bob"), sources)
	}
}

// send sends a request to a source.
func (w *world) send(source, key, body string) {
	w.Helper()
	resp, err := http.Post(w.s.URL+"/sources/"+source+"/"+key, "application/json", strings.NewReader(body))
	expect.OK(w, err)
	_ = resp.Body.Close()
}

// publishFrom sends a source requests of several outcomes, and waits until they are known.
func (w *world) publishFrom(source string) {
	w.Helper()
	for i := range 3 {
		w.send(source, sourceKey, fmt.Sprintf(`{"kind":"build","id":"src_%d","n":%d,"state":"passed"}`, i, i+1))
	}
	w.send(source, sourceKey, `{"kind":"other"}`)
	w.send(source, sourceKey, `{"kind":"build","id":"src_9","n":"nine","state":"passed"}`)
	w.send(source, "not-the-key", `{"kind":"build"}`)
	w.listed("sources/"+source+"/outcomes", 6)
}

// TestSourcesPage: OPS-11, SRC-04. What was refused is seen with its reason, while the page is open, and a request is tried.
func TestSourcesPage(t *testing.T) {
	w := start(t, withSources(t))
	w.publishFrom("builds")
	b := w.signIn(t, "#/sources")
	b.shows("eventbridge")
	b.click("tbody a", "builds")
	b.shows("POST /sources/builds/{key}")
	b.shows(`{"body":{"kind":["build"]}}`)
	t.Run("OPS-11 SRC-04 refused ones are seen with their reasons", func(t *testing.T) {
		b.js(`const s = document.querySelector("select[name=kind]"); s.value = "refused"; s.dispatchEvent(new Event("change", {bubbles: true}))`)
		b.until(`location.hash.includes("kind=refused") && document.querySelectorAll("table[aria-label=Outcomes] tbody tr").length === 2`)
		b.shows("unverified")
		b.shows("unfit")
		w.send("builds", sourceKey, `{"kind":"build","id":"src_later","n":"later","state":"passed"}`)
		b.until(`document.querySelectorAll("table[aria-label=Outcomes] tbody tr").length === 3`)
		b.shows("src_later")
	})
	t.Run("OPS-11 a refused filter stays in the form", func(t *testing.T) {
		b.to("#/sources/builds?since=never")
		b.shows("which is not a time")
		b.until(`document.querySelector("main input[name=since]").value === "never"`)
	})
	t.Run("OPS-11 SRC-01 a request is tried", func(t *testing.T) {
		evil := `<img src=x onerror=alert(1)>`
		b.try(`Content-Type: application/json` + "\n\n" + `{"kind":"build","id":"src_try","n":7,"state":"passed","note":"` + evil + `"}`)
		b.until(`document.querySelector(".trial")`)
		for _, text := range []string{"would become an event", "src_try", "event://ci/build-finished", "no request line", evil} {
			b.shows(text)
		}
		b.fits("a trial")
		b.shoot("source-trial-light")
		b.try(`Content-Type: application/json` + "\n\n" + `{"kind":"build","id":"src_try","n":"seven","state":"passed"}`)
		b.until(`document.querySelector(".trial li code")?.innerText === "/data/build"`)
		b.try("nothing of the sort")
		b.shows("is not an HTTP request")
		expect.Equal(t, "OPS-11 the elements from the request", eval[int](b, `document.querySelectorAll("main img").length`), 0)
		var audit, events struct{ Items []any }
		w.api("GET", "audit", "", &audit)
		w.api("GET", "events?name=ci.build_finished", "", &events)
		expect.Equal(t, "SRC-01 the number of entries of the trail", len(audit.Items), 0)
		expect.Equal(t, "SRC-01 the number of events", len(events.Items), 3)
	})
	t.Run("OPS-11 OPS-04 what did not fit is among the dead letters", func(t *testing.T) {
		w.listed("dead-letters?queue=inbox", 2)
		b.click("main a", "Requests that did not fit")
		b.until(`location.hash === "#/dead-letters?queue=inbox" && document.querySelectorAll("tbody tr").length === 2`)
		b.shows("message in the queue inbox")
		b.shows("source builds")
		b.shoot("dead-letters-of-sources-light")
	})
}

// try enters a request into the form and submits it.
func (b *browser) try(request string) {
	b.Helper()
	b.js(fmt.Sprintf(`document.querySelector("textarea").value = %q`, request))
	b.focus("form.try button")
	b.press(kb.Enter)
}
