package console_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
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
	b := open(t, w.console())
	b.visit(w.console())
	b.signIn("op")
	b.to("#/events/evt_large")
	for _, number := range []string{"9007199254740993", "1.50", "12345678901234567890.1"} {
		b.shows(number)
	}
}
