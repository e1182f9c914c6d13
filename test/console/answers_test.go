package console_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/auth"
)

// TestDidItArrive: OPS-11. Did event X reach endpoint Y, and if not, why: three steps from any page.
func TestDidItArrive(t *testing.T) {
	w := start(t, nil)
	w.subscribe("alice", "/ok", built)
	gone := w.subscribe("bob", "/gone", built)
	w.publish(built, "evt_1")
	w.listed("deliveries?event=evt_1", 2)
	late := w.subscribe("alice", "/late", built)
	b := open(t, w.console())
	b.visit(w.console() + "#/audit")
	b.signIn("op")
	b.focus("#search")
	b.press("evt_1" + kb.Enter)
	b.shows("1 of 3 subscriptions")
	row := func(id string) string {
		return eval[string](b, fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].find(r => r.innerText.includes(%q)).innerText.replace(/\s+/g, " ")`, id))
	}
	if got := row("/ok"); !strings.Contains(got, "reached at the first attempt") {
		t.Errorf("OPS-11 got %q", got)
	}
	if got := row(gone); !strings.Contains(got, "given up 1 attempt; the endpoint answered 4xx") {
		t.Errorf("OPS-11 got %q", got)
	}
	if got := row(late); !strings.Contains(got, "not for it it subscribed later") {
		t.Errorf("OPS-11 got %q", got)
	}
	b.js(fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].find(r => r.innerText.includes(%q)).querySelector("a[href*=deliveries]").click()`, gone))
	b.shows("Given up after 1 attempt")
	b.shows("Dead letter")
}

// TestReplay: OPS-11. Dead letters are selected and retried, counted by a dry run, replayed at a rate, watched, and left.
func TestReplay(t *testing.T) {
	w := start(t, nil)
	w.subscribe("bob", "/gone", built)
	for i := range 40 {
		w.publish(built, fmt.Sprintf("evt_%02d", i))
	}
	w.listed("dead-letters?limit=100", 40)
	w.mended.Store(true)
	b := open(t, w.console())
	b.visit(w.console() + "#/dead-letters?event=ci.build_finished")
	b.signIn("op")
	b.until(`document.querySelectorAll("tbody input").length === 40`)
	b.js(`document.querySelector("tbody input").click()`)
	b.click("button", "Retry selected (1)")
	b.shows("1 dead letter is delivered again")
	b.until(`document.querySelectorAll("tbody input").length === 39`)
	b.click("button", "Replay all of these")
	b.until(`document.querySelector("dialog[open]")?.innerText.includes("Replay 39 dead letters?")`)
	b.shoot("replay-dialog-light")
	b.js(`document.querySelector("dialog input").value = 1`)
	b.click("dialog[open] button", "Replay")
	b.until(`document.querySelector(".job progress")?.max === 39`)
	b.shows("1 delivery a second")
	b.shoot("replay-light")
	b.click(".job button", "Cancel")
	b.until(`document.querySelector(".job")?.innerText.includes("canceled")`)
	b.click("button", "Replay all of these")
	b.until(`document.querySelector("dialog[open] input")`)
	b.js(`document.querySelector("dialog input").value = 1000`)
	b.click("dialog[open] button", "Replay")
	b.until(`document.querySelector(".job")?.innerText.includes("done")`)
	b.shows("No dead letters.")
	b.to("#/audit")
	b.shows("replay.cancel")
	b.until(`[...document.querySelectorAll("tbody tr")].every(r => r.innerText.includes("op console"))`)
}

// TestSteering: OPS-11. A subscription is paused, resumed, tested and ended. An event type is paused and resumed.
func TestSteering(t *testing.T) {
	w := start(t, nil)
	sub := w.subscribe("alice", "/ok", built)
	b := open(t, w.console())
	b.visit(w.console() + "#/subscriptions/" + sub)
	b.signIn("op")
	b.click("main button", "Pause")
	b.until(`document.activeElement?.name === "reason"`)
	b.press("by hand" + kb.Enter)
	b.until(`document.querySelector("h1 .badge").innerText === "paused"`)
	b.to("#/switches")
	b.shows("by hand")
	b.click("main button", "Resume")
	b.shows("Nothing is paused.")
	b.to("#/subscriptions/" + sub)
	b.until(`document.querySelector("h1 .badge").innerText === "active"`)
	b.click("main button", "Send a test event")
	b.until(`location.hash.includes("/test_")`)
	for b.text(".sum") == "" { // its list is read when it has been attempted
		b.to("#/now")
		b.js(`history.back()`)
		b.settled()
	}
	b.shows("Reached at attempt 1")
	b.to("#/types")
	b.click("main button", "Pause")
	b.click("dialog[open] button", "Pause")
	b.until(`[...document.querySelectorAll("main .badge")].some(e => e.innerText === "paused")`)
	b.to("#/subscriptions/" + sub)
	b.click("main button", "End")
	b.click("dialog[open] button", "End it")
	b.shows("No subscription has all of that.")
}

// TestLiveTail: OPS-11. What happens while one looks is shown, and can be stopped.
func TestLiveTail(t *testing.T) {
	w := start(t, func(o *standalone.Options) { o.Auth, o.Config = auth.ModeNone, nil })
	w.subscribe("", "/ok", built)
	b := open(t, w.console())
	b.visit(w.console() + "#/live") // with --auth none without a sign-in
	b.until(`document.querySelector("h1").innerText.includes("live")`)
	w.publish(built, "evt_1")
	b.shows("evt_1")
	b.click("main button", "Stop")
	w.publish(built, "evt_2")
	w.listed("deliveries?event=evt_2", 1)
	b.js(`document.querySelector("#tab-deliveries").focus()`)
	b.press(kb.ArrowRight)
	b.until(`document.activeElement?.id === "tab-events" && document.activeElement.ariaSelected === "true"`)
	b.shows("evt_1")
	b.click("main button", "Go on")
	w.publish(built, "evt_3")
	b.shows("evt_3")
	b.to("#/now")
	b.until(`document.querySelectorAll("line-chart canvas").length === 3`)
	b.shows("Nothing is wrong")
}
