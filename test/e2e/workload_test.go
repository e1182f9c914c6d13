//go:build unix

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// published is an event that the system has accepted.
type published struct {
	harness.Event
	ID             string
	Publisher, Seq int
}

// workload is the events of the main job's publishers: count events each, of five types and thirteen URIs.
type workload struct {
	publishers, count int
	events            map[string]*published // by id
}

// event returns the seq-th event of a publisher, without an id.
func (w *workload) event(publisher, seq int) harness.Event {
	n := publisher*w.count + seq
	pick := func(shift int, values ...string) string { return values[(n/shift)%len(values)] }
	switch n % 5 {
	case 0:
		return harness.Event{
			URI: "event://github/" + pick(5, "acme", "globex") + "/" + pick(10, "website", "api") + "/pull_request",
			Data: object{
				"action": "opened", "number": n + 1,
				"pull_request": object{"title": "Größe <&> \u2028 " + fmt.Sprint(n), "author": "octocat", "labels": []string{"a", "b"}},
			},
		}
	case 1:
		return harness.Event{
			URI: "event://ci/build-finished",
			Data: object{
				"build": n + 1, "status": pick(5, "passed", "failed", "cancelled"), "pipeline": "main",
				"exact": 9007199254740993, "durationSeconds": 12.5,
			},
		}
	case 2:
		return harness.Event{
			URI:  "event://deploy/" + pick(5, "production", "staging") + "/" + pick(10, "web", "api") + "/finished",
			Data: object{"version": fmt.Sprintf("1.%d.0", n), "outcome": "succeeded"},
		}
	case 3:
		return harness.Event{
			URI:  "event://incidents/" + pick(5, "payments", "search") + "/created",
			Data: object{"id": fmt.Sprint(n), "title": "It is down", "severity": pick(10, "critical", "warning", "info")},
		}
	}
	return harness.Event{
		URI:  "event://chat/acme/" + pick(5, "general", "random") + "/message",
		Data: object{"id": fmt.Sprint(n), "user": "u1", "text": strings.Repeat("words ", n%40), "thread": nil},
	}
}

// run publishes all events. Publishers run concurrently, and each sends its requests one after the other: single
// events, arrays and CloudEvents, with and without ids chosen by the publisher.
func (w *workload) run(tb testing.TB, target *harness.Target) {
	tb.Helper()
	w.events = map[string]*published{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for p := range w.publishers {
		wg.Go(func() {
			seq := 0
			for step := 0; seq < w.count; step++ {
				n := 1
				if step%5 == 2 {
					n = min(4, w.count-seq)
				}
				events := make([]harness.Event, n)
				for i := range events {
					events[i] = w.event(p, seq+i)
					if step%2 == 0 {
						events[i].ID = fmt.Sprintf("p%d-%d", p, seq+i)
					}
				}
				accepted, err := w.publish(tb.Context(), target, step, events)
				if err != nil || len(accepted) != n {
					tb.Errorf("publisher %d: %d of %d events accepted: %v", p, len(accepted), n, err)
					return
				}
				mu.Lock()
				for i, a := range accepted {
					if a.URI != events[i].URI || events[i].ID != "" && a.ID != events[i].ID {
						tb.Errorf("published %s as %q, accepted %s as %q", events[i].URI, events[i].ID, a.URI, a.ID)
					}
					if w.events[a.ID] != nil {
						tb.Errorf("the id %q was assigned twice", a.ID)
					}
					w.events[a.ID] = &published{Event: events[i], ID: a.ID, Publisher: p, Seq: seq + i}
				}
				mu.Unlock()
				seq += n
			}
		})
	}
	wg.Wait()
	expect.MustEqual(tb, "the accepted events", len(w.events), w.publishers*w.count)
}

// publish sends events in the content mode of the step.
func (w *workload) publish(ctx context.Context, t *harness.Target, step int, events []harness.Event) ([]harness.Accepted, error) {
	switch {
	case events[0].ID == "":
	case len(events) > 1 && step%4 == 0:
		return t.TryPublishCloudEvents(ctx, "publisher", harness.ModeBatch, events...)
	case len(events) == 1 && step%5 == 3:
		return t.TryPublishCloudEvents(ctx, "publisher", harness.ModeBinary, events...)
	case len(events) == 1 && step%5 == 4:
		return t.TryPublishCloudEvents(ctx, "publisher", harness.ModeStructured, events...)
	}
	return t.TryPublish(ctx, "publisher", events...)
}

// wanted returns the ids of the events for which f is true.
func (w *workload) wanted(f func(*published) bool) map[string]*published {
	out := map[string]*published{}
	for id, e := range w.events {
		if f(e) {
			out[id] = e
		}
	}
	return out
}

// under returns a function that reports whether an event's URI is one of the given ones or below one.
func under(uris ...string) func(*published) bool {
	return func(e *published) bool {
		return slices.ContainsFunc(uris, func(uri string) bool {
			return e.URI == uri || strings.HasPrefix(e.URI, uri+"/")
		})
	}
}

// checkStream checks that a stream sent exactly the wanted events, once each, and in the order of publishing per URI
// and publisher. Repetitions are allowed where the log has several writers: if appending to it takes longer than two
// seconds, it is repeated, and readers that saw the first append see the event twice.
func checkStream(t *testing.T, name string, got []*harness.Update, want map[string]*published, repeatable bool) {
	t.Helper()
	seen := map[string]bool{}
	last := map[string]int{}
	for _, u := range got {
		e := want[u.EventID]
		switch {
		case u.EventID == "":
			t.Errorf("stream %s: an update of %s has no event id", name, u.URI)
		case e == nil:
			t.Errorf("stream %s: got %s of %s, which it did not ask for", name, u.EventID, u.URI)
		case seen[u.EventID]:
			expect.True(t, "stream "+name+": it may get "+u.EventID+" twice", repeatable)
		default:
			seen[u.EventID] = true
			expect.Equal(t, fmt.Sprintf("stream %s: %s has the URI", name, u.EventID), u.URI, e.URI)
			key := fmt.Sprintf("%d %s", e.Publisher, e.URI)
			if before, ok := last[key]; ok && before > e.Seq {
				t.Errorf("stream %s: publisher %d's events of %s: number %d arrived after number %d", name, e.Publisher, e.URI, e.Seq, before)
			}
			last[key] = e.Seq
		}
	}
	for id := range want {
		expect.True(t, "stream "+name+": it has "+id+" of "+want[id].URI, seen[id])
	}
}

// checkEndpoint checks that an endpoint received exactly the wanted events, and that every request is well-formed and
// signed. It returns the number of repetitions.
func checkEndpoint(t *testing.T, e *harness.Endpoint, want map[string]*published, body func(*testing.T, *harness.Delivery, *published)) (repeated int) {
	t.Helper()
	for id := range e.IDs() {
		if want[id] == nil {
			t.Errorf("endpoint %s: got %s, which it did not ask for", e.Name, id)
		}
	}
	seen := map[string]bool{}
	for _, d := range e.Deliveries() {
		p := want[d.ID()]
		if p == nil {
			continue
		}
		if seen[d.ID()] {
			repeated++
			continue
		}
		seen[d.ID()] = true
		expect.OK(t, d.Verify(e.Secret()), e.Name, d.ID())
		body(t, d, p)
	}
	for id := range want {
		expect.True(t, "endpoint "+e.Name+": it has "+id+" of "+want[id].URI, seen[id])
	}
	return repeated
}

// sep1803Body checks the body of a registered subscription's webhook.
func sep1803Body(subscription string) func(*testing.T, *harness.Delivery, *published) {
	return func(t *testing.T, d *harness.Delivery, p *published) {
		t.Helper()
		body := decode[map[string]any](t, d.Body)
		if body["uri"] != p.URI || body["subscription"] != subscription || body["type"] == "" {
			t.Errorf("webhook of %s: body %.300s", p.ID, d.Body)
		}
		checkTimeAndData(t, d, p, body["timestamp"])
	}
}

// eventsBody checks the body of an MCP Events extension webhook.
func eventsBody(name string) func(*testing.T, *harness.Delivery, *published) {
	return func(t *testing.T, d *harness.Delivery, p *published) {
		t.Helper()
		body := decode[map[string]any](t, d.Body)
		if body["eventId"] != p.ID || body["name"] != name {
			t.Errorf("webhook of %s: body %.300s", p.ID, d.Body)
		}
		checkTimeAndData(t, d, p, body["timestamp"])
	}
}

func checkTimeAndData(t *testing.T, d *harness.Delivery, p *published, timestamp any) {
	t.Helper()
	if at, err := time.Parse(time.RFC3339, fmt.Sprint(timestamp)); err != nil || time.Since(at) > time.Hour {
		t.Errorf("webhook of %s: timestamp %v", p.ID, timestamp)
	}
	body := decode[struct{ Data rawJSON }](t, d.Body)
	if !sameJSON(t, body.Data, marshal(t, p.Data)) {
		t.Errorf("webhook of %s: data %.300s, want %.300s", p.ID, body.Data, marshal(t, p.Data))
	}
	if strings.Contains(string(marshal(t, p.Data)), "9007199254740993") && !strings.Contains(string(body.Data), "9007199254740993") {
		t.Errorf("webhook of %s: a large integer was changed: %.300s", p.ID, body.Data)
	}
	if d.Method != http.MethodPost || d.Header.Get("Content-Type") != "application/json" {
		t.Errorf("webhook of %s: %s of %s", p.ID, d.Method, d.Header.Get("Content-Type"))
	}
}
