package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
		for _, text := range []string{"would become an event", "src_try", "event://ci/build-finished", "not verified", evil} {
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
		if len(audit.Items) != 0 || len(events.Items) != 3 {
			t.Errorf("SRC-01 trying left %d entries and %d events", len(audit.Items), len(events.Items))
		}
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

// TestHostileSource: OPS-11. What a provider sends is text on the page.
func TestHostileSource(t *testing.T) {
	w := start(t, withSources(t))
	evil := `\"><img src=x onerror=alert(1)><script>alert(2)</script>` + strings.Repeat("w", 3000)
	w.send("builds", sourceKey, `{"kind":"build","id":"`+evil+`","n":"`+evil+`","state":"`+evil+`"}`)
	w.listed("sources/builds/outcomes", 1)
	b := open(t, w.console())
	b.do(chromedp.EmulateViewport(360, 740))
	b.visit(w.console())
	b.signIn("op")
	for _, at := range []string{"sources", "sources/builds", "sources/builds?kind=%22%3E%3Cimg%20src=x%3E", "sources/%3Cimg%20src=x%20onerror=alert(3)%3E", "dead-letters?queue=inbox"} {
		b.to("#/" + at)
		b.fits(at)
		expect.Equal(t, "OPS-11 the elements from outside at "+at, eval[int](b, `document.querySelectorAll("main img, main script, main [onerror]").length`), 0)
	}
	b.to("#/sources/builds")
	b.shows("onerror=alert(1)")
	b.shoot("source-hostile-phone")
}
