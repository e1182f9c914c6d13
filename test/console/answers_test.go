package console_test

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/test/expect"
)

// nextAttempt matches the number of the next attempt, which depends on how fast the browser is.
var nextAttempt = regexp.MustCompile(`attempt [2-9] follows`)

// TestDidItArrive: OPS-11 OPS-17. Did event X reach endpoint Y, and if not, why: three steps from any page. The page shows the reason that
// the server computed, and an event that a subscription filters out is delivered only after a warning.
func TestDidItArrive(t *testing.T) {
	w := start(t, nil)
	w.subscribe("alice", "/ok", built)
	gone := w.subscribe("bob", "/gone", built)
	w.subscribe("bob", "/down", built)
	paused := w.subscribe("bob", "/paused", built)
	filtered := servertest.SubscribeEvents(t, w.s.URL, "bob", w.receiver.URL+"/filtered", "ci.build_finished", map[string]any{"status": "failed"})
	w.api("POST", "subscriptions/"+paused+"/pause", `{"reason":"moving"}`, nil)
	w.publish(built, "evt_1")
	w.listed("deliveries?event=evt_1", 3)
	late := w.subscribe("alice", "/late", built)
	other := w.subscribe("alice", "/other", incident)
	b := w.signIn(t, "#/audit")
	b.focus("#search")
	b.press("evt_1" + kb.Enter)
	b.shows("1 of 6 subscriptions")
	found := func(id string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].find(r => r.innerText.includes(%q))`, id)
	}
	row := func(id string) string { return eval[string](b, found(id)+`.innerText.replace(/\s+/g, " ")`) }
	for at, want := range map[string]string{
		"/ok":       "delivered the endpoint answered 200 to attempt 1",
		gone:        "given up given up after 1 attempt; the endpoint answered 413",
		"/down":     "waiting the endpoint answered 503; attempt N follows at",
		"/paused":   "paused the subscription is paused by op: moving",
		"/filtered": `filtered the subscription asks for status "failed", and the event has "passed"`,
		late:        "subscribed later it subscribed after the event was published",
	} {
		got := row(at)
		expect.Contains(t, "OPS-17 "+at, nextAttempt.ReplaceAllString(got, "attempt N follows"), want)
	}
	for _, at := range []string{"/down", "/paused"} {
		expect.Lacks(t, "OPS-17 the row of an event that still comes, at "+at, row(at), "Deliver")
	}
	b.shoot("outcomes-light")
	b.until(`document.querySelector("h1 button").getAttribute("aria-label") === "Copy evt_1"`)
	b.js(found(filtered) + `.querySelector("button:not(.icon)").click()`)
	b.until(`document.querySelector("dialog[open]")?.innerText.includes("asks for status")`)
	b.click("dialog[open] button", "Deliver anyway")
	b.until(found(filtered) + `.innerText.includes("delivered")`) // the page is read again while something waits
	b.to("#/events/evt_1?subscription=" + other)
	b.shows(`the subscription asks for uri ["` + incident + `"], and the event has "` + built + `"`)
	b.to("#/events/evt_1")
	b.js(found(gone) + `.querySelector("a[href*=deliveries]").click()`)
	b.shows("Given up after 1 attempt")
	b.shows("Dead letter")
}

// TestSearch: OPS-11. A text is looked up as everything that it may be. One hit opens its page, and a page lists several hits, or the
// failed lookups.
func TestSearch(t *testing.T) {
	w := start(t, nil)
	sub := w.subscribe("alice", "/ok", built)
	w.publish(built, "evt_1")
	w.listed("deliveries?event=evt_1", 1)
	b := w.signIn(t, "")
	search := func(text string) {
		b.focus("#search")
		b.press(text + kb.Enter)
	}
	host := strings.TrimPrefix(w.receiver.URL, "http://")
	for text, hash := range map[string]string{
		sub: "#/subscriptions/" + sub, "subscription://" + sub: "#/subscriptions/" + sub, "evt_1": "#/events/evt_1", "alice": "#/subscriptions?principal=alice",
		"ci.build_finished": "#/events?name=ci.build_finished", "build_fin": "#/events?name=ci.build_finished",
		built: "#/events?uri=" + url.QueryEscape(built), host: "#/subscriptions?origin=" + url.QueryEscape(w.receiver.URL),
		w.receiver.URL + "/ok?key=1": "#/subscriptions?origin=" + url.QueryEscape(w.receiver.URL),
	} {
		search(text)
		b.until(fmt.Sprintf(`location.hash === %q`, hash))
		b.settled()
	}
	search("github")
	b.shows("the event type github.pull_request")
	b.shows("the event type github.push")
	search("no-such-thing")
	b.shows("Nothing was found.")
	b.shows("Not found: a subscription with this id; an event with this id; an owner of subscriptions; an event type.")
	b.shoot("search-light")
}

// TestSearchDuringAnOutage: OPS-11. A search that got no answer does not say that there is no such thing.
func TestSearchDuringAnOutage(t *testing.T) {
	w := start(t, nil)
	b := w.signIn(t, "#/audit")
	b.js(`const ask = fetch; window.fetch = (at, o) => (String(at).includes("/outcomes") ? Promise.reject(new TypeError("lost")) : ask(at, o))`)
	b.to("#/search/evt_1")
	b.shows("The server does not answer.")
	expect.Lacks(t, "OPS-11 the page", b.text("main"), "Nothing was found")
}

// TestSearchInALargeCatalog: OPS-11. The search knows all event types, and not only those on the first page of their list.
func TestSearchInALargeCatalog(t *testing.T) {
	w := start(t, func(o *standalone.Options) {
		var types strings.Builder
		types.WriteString("events:\n")
		for i := range 120 {
			fmt.Fprintf(&types, "  - {name: type.n%d, uri: \"event://types/%d\", title: A type, description: A type, payloadSchema: {type: object}}\n", i, i)
		}
		o.Catalog = []byte(types.String())
	})
	b := w.signIn(t, "")
	b.to("#/search/type.n119")
	b.until(`location.hash === "#/events?name=type.n119"`)
}

// TestEventsWithTheSameID: OPS-11. Two events may have the same id if their URIs differ. A page of one of them does not change to the other.
func TestEventsWithTheSameID(t *testing.T) {
	w := start(t, nil)
	sub := w.subscribe("alice", "/ok", built)
	w.publish(built, "seven")
	w.listed("deliveries?event=seven", 1)
	w.publishData(incident, "seven", map[string]any{"title": "the other"})
	b := w.signIn(t, "#/deliveries")
	b.click("td a", "seven")
	b.click("dd a", "seven")
	b.shows("1 of 1 subscription")
	b.js(`document.querySelector("input[name=subscription]").value = ` + strconv.Quote(sub))
	b.click("main button", "Filter")
	b.until(`location.hash.includes("subscription=")`)
	b.settled()
	b.shows("1 of 1 subscription")
	b.click("main a", "Clear")
	b.until(`!location.hash.includes("subscription=")`)
	b.settled()
	b.shows("1 of 1 subscription")
	b.until(`document.querySelector("dl").innerText.includes(` + strconv.Quote(built) + `)`)
}

// TestTimes: OPS-11. A filter takes a duration before now, and a refused one leaves the form as it is. Times can be shown in UTC. A page
// keeps its figures when the server is lost, and says of when they are.
func TestTimes(t *testing.T) {
	w := start(t, nil)
	w.subscribe("alice", "/ok", built)
	w.publish(built, "evt_1")
	w.listed("deliveries?event=evt_1", 1)
	b := w.signIn(t, "#/deliveries?since=1h")
	b.shows("evt_1")
	b.to("#/deliveries?until=15m")
	b.shows("No attempt matches.")
	b.to("#/deliveries?since=99999999999999h") // before the first day that a browser knows
	b.shows("which is not a time")
	b.until(`document.querySelector("input[name=since]").value === "99999999999999h"`)
	b.to("#/deliveries?since=yesterday")
	b.shows("which is not a time")
	b.until(`document.querySelector("input[name=since]").value === "yesterday"`)
	b.js(`document.querySelector("input[name=since]").value = "24h"`)
	b.click("main button", "Filter")
	b.shows("evt_1")
	b.until(`[...document.querySelectorAll("#types option")].some(o => o.value === "ci.build_finished")`)
	w.publish(built, "evt_2")
	w.listed("deliveries?event=evt_2", 1)
	b.shows("As of ")
	b.click(".as-of button", "Update now")
	b.shows("evt_2")
	b.click(".zone", "Local times (")
	b.until(`document.querySelector("td time").title.includes(" UTC ")`)
	b.click(".zone", "Times in UTC")
	b.js(`window.fetch = () => Promise.reject(new TypeError("lost")); dispatchEvent(new Event("reload"))`)
	b.shows("The server does not answer. The page below is from")
	b.until(`document.querySelector(".stale").innerText.includes("evt_1")`)
}

// TestPickedTime: OPS-11. A day and a time can be picked, and an error keeps the fields that were filled in.
func TestPickedTime(t *testing.T) {
	w := start(t, nil)
	w.subscribe("alice", "/ok", built)
	w.publish(built, "evt_1")
	w.listed("deliveries?event=evt_1", 1)
	b := w.signIn(t, "#/deliveries")
	b.shows("evt_1")
	pick := func(value string) {
		b.js(fmt.Sprintf(`{ const e = document.querySelector("input[type=datetime-local]"); e.value = %q; e.dispatchEvent(new Event("input", {bubbles: true})) }`, value))
		b.click("main button", "Filter")
	}
	pick("2100-01-02T03:04")
	b.shows("No attempt matches.")
	b.until(`document.querySelector("input[name=since]").value === "2100-01-02 03:04"`)
	b.until(`new URLSearchParams(location.hash.split("?")[1]).get("since") === "2100-01-02 03:04"`)
	b.js(`document.querySelector("input[name=until]").value = "yesterday"`)
	pick("2001-01-02T03:04")
	b.until(`document.querySelector("[role=alert]")`)
	b.until(`document.querySelector("input[name=since]").value === "2001-01-02 03:04" && document.querySelector("input[name=until]").value === "yesterday"`)
	b.js(`document.querySelector("input[name=until]").value = ""`)
	b.click("main button", "Filter")
	b.shows("evt_1")
}

// TestLists: OPS-11. A list is read again by itself, but not while a person works with it. Long ids are shortened by their style only,
// and are copied whole.
func TestLists(t *testing.T) {
	w := start(t, nil)
	sub := w.subscribe("bob", "/gone", built)
	w.publish(built, "evt_1")
	w.listed("dead-letters", 1)
	b := w.signIn(t, "#/dead-letters")
	b.shows("evt_1")
	b.shows("Updated every 10 s.")
	b.js(`{ const wait = setTimeout; window.setTimeout = (f, ms) => wait(f, ms / 20); dispatchEvent(new Event("reload")) }`) // 10 s are 0.5 s
	w.publish(built, "evt_2")
	b.shows("evt_2")
	b.js(`document.querySelector("tbody input").click()`)
	b.shows("Retry selected (1)")
	b.shows("Updates wait because rows are selected.")
	w.publish(built, "evt_3")
	w.listed("dead-letters", 3)
	b.js(`document.querySelector("tbody input").click()`)
	b.shows("evt_3")
	b.focus("main input[name=since]")
	b.shows("Updates wait because a form has the focus.")
	w.publish(built, "evt_4")
	w.listed("dead-letters", 4)
	expect.Lacks(t, "OPS-11 the list while its form had the focus", b.text("main"), "evt_4")
	b.press(kb.Enter)
	b.shows("evt_4")
	b.to("#/subscriptions")
	b.until(fmt.Sprintf(`document.querySelector("tbody a").innerText === %q && document.querySelector("tbody a").title === %q`, sub, sub))
	b.until(`(e => e.scrollWidth > e.clientWidth)(document.querySelector("tbody a .head"))`)
	b.until(fmt.Sprintf(`document.querySelector("tbody button.icon").ariaLabel === "Copy %s"`, sub))
	b.js(`Object.defineProperty(navigator, "clipboard", {value: {writeText: async (text) => { window.copied = text }}})`)
	b.focus("tbody button.icon")
	b.press(kb.Enter)
	b.until(fmt.Sprintf(`window.copied === %q`, sub))
}

// TestFailingEndpoints: OPS-11. An origin that fails has a page with its first failure, its last status, and the affected subscriptions.
func TestFailingEndpoints(t *testing.T) {
	w := start(t, nil)
	w.subscribe("alice", "/ok", built)
	gone := w.subscribe("bob", "/gone", built)
	w.publish(built, "evt_1")
	w.listed("dead-letters", 1)
	b := w.signIn(t, "")
	b.shows("It affects 1 subscription.")
	b.click(".menu a", "Failing")
	b.shows("the endpoint answered 413 (too large)")
	b.shows("1 of 2")
	b.to("#/failing?since=7d")
	b.shows("since 7d")
	b.until(`document.querySelectorAll("tbody tr").length === 1 && document.querySelector("input[name=since]").value === "7d"`)
	b.to("#/failing?since=never")
	b.shows("which is not a time")
	b.to("#/failing")
	b.click("tbody a", w.receiver.URL)
	b.shows("First seen")
	b.shows("the endpoint answered 413 (too large)")
	b.shows("1 of 2 subscriptions")
	b.until(fmt.Sprintf(`document.querySelector("table[aria-label='Affected subscriptions'] a").hash === "#/subscriptions/%s"`, gone))
	b.until(`document.querySelectorAll("table[aria-label='Newest failures'] tbody tr").length === 1`)
	b.to("#/subscriptions")
	b.until(`document.querySelector("table[aria-label='Subscriptions']").innerText.includes("the endpoint answered 413 (too large)")`)
	b.js(`history.back()`)
	b.click("main button", "Write a note")
	b.until(`document.activeElement?.name === "text"`)
	b.press("their team knows" + kb.Enter)
	b.shows("their team knows op, ")
	b.to("#/failing")
	b.shows("their team knows op, ")
	b.js(`history.back()`)
	b.click("main button", "Remove the note")
	b.shows("Write a note")
	expect.Lacks(t, "OPS-11 the page", b.text("main"), "their team knows")
	b.click("main button", "Pause this origin")
	b.click("dialog[open] button", "Pause")
	b.click("main button", "Resume")
	b.until(`[...document.querySelectorAll("main button")].some(e => e.innerText === "Pause this origin")`)
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
	b := w.signIn(t, "#/dead-letters?event=ci.build_finished")
	b.until(`document.querySelectorAll("tbody input").length === 40`)
	b.until(`[...document.querySelectorAll(".menu a")].some(a => a.innerText.replace(/\s+/g, " ") === "Dead letters 40")`)
	b.shows("op in workspace default at " + strings.TrimPrefix(w.s.AdminURL, "http://"))
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
	b.shows("1 delivery per second")
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

// TestRetriesThatAreRefused: OPS-11. A selected dead letter of an ended subscription stays, and the other selected ones are retried.
func TestRetriesThatAreRefused(t *testing.T) {
	w := start(t, nil)
	w.subscribe("bob", "/gone/1", built)
	ended := w.subscribe("bob", "/gone/2", incident)
	w.publish(built, "evt_1")
	w.listed("dead-letters", 1)
	w.publishData(incident, "evt_2", map[string]any{"title": "a"})
	w.listed("dead-letters", 2)
	w.api("DELETE", "subscriptions/"+ended, "", nil)
	w.mended.Store(true)
	b := w.signIn(t, "#/dead-letters?replay=rpl_of_last_month")
	b.until(`document.querySelectorAll("tbody input").length === 2`)
	b.js(`document.querySelector("thead input").click()`)
	b.click("button", "Retry selected (2)") // the newest first, whose subscription has ended
	b.shows("1 of 2 dead letters cannot be delivered again: the subscription of the dead letter has ended.")
	b.shows("Retry selected (1)")
	b.until(`document.querySelectorAll("tbody input").length === 1`)
}

// TestSteering: OPS-11. A subscription is paused, resumed, tested and ended. An event type is paused and resumed.
func TestSteering(t *testing.T) {
	w := start(t, nil)
	sub := w.subscribe("alice", "/ok", built)
	b := w.signIn(t, "#/subscriptions/"+sub)
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
	b.shows("Delivered with attempt 1")
	b.to("#/types")
	b.click("main button", "Pause")
	b.click("dialog[open] button", "Pause")
	b.until(`[...document.querySelectorAll("main .badge")].some(e => e.innerText === "paused")`)
	b.to("#/subscriptions/" + sub)
	b.js(`const ask = fetch; window.fetch = (at, o) => (o.method === "DELETE" ? Promise.reject(new TypeError("lost")) : ask(at, o))`)
	b.click("main button", "End")
	b.click("dialog[open] button", "End it")
	b.shows("The server does not answer.")
	expect.Equal(t, "OPS-11 the page after a failure", eval[string](b, `location.hash`), "#/subscriptions/"+sub)
	b.js(`window.fetch = ask`)
	b.click("main button", "End")
	b.click("dialog[open] button", "End it")
	b.shows("No subscription matches.")
}

// TestResumeDisabled: OPS-11. An operator resumes a subscription that is disabled because its endpoint answered 410.
func TestResumeDisabled(t *testing.T) {
	w := start(t, nil)
	sub := w.subscribe("alice", "/left", built)
	w.publish(built, "evt_1")
	w.listed("subscriptions?state=disabled", 1)
	b := open(t, w.console())
	b.visit(w.console() + "#/subscriptions/" + sub)
	b.signIn("op")
	b.shows("410 Gone")
	buttons := func() string {
		return eval[string](b, `[...document.querySelectorAll("main .actions button")].map(e => e.innerText).join(", ")`)
	}
	expect.Equal(t, "OPS-11 the buttons of a disabled subscription", buttons(), "Resume, End")
	b.shoot("subscription-disabled")
	b.click("main button", "Resume")
	b.until(`document.querySelector("h1 .badge").innerText === "active"`)
	expect.Equal(t, "OPS-11 the buttons afterwards", buttons(), "Pause, Send a test event, End")
	b.shoot("subscription-resumed")
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
	b.shows(w.receiver.URL + "/ok")
	b.fits("the live tail")
	b.shoot("live-rows-light")
	b.click("main button", "Stop")
	w.publish(built, "evt_2")
	w.listed("deliveries?event=evt_2", 1)
	b.js(`document.querySelector("#tab-deliveries").focus()`)
	b.press(kb.ArrowRight)
	b.until(`document.activeElement?.id === "tab-events" && document.activeElement.ariaSelected === "true"`)
	b.shows("evt_1")
	b.click("main button", "Continue")
	w.publish(built, "evt_3")
	b.shows("evt_3")
	b.to("#/now")
	b.until(`document.querySelectorAll("line-chart canvas").length === 3`)
	b.shows("Nothing is wrong")
}
