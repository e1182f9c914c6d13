package relay

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/test/expect"
)

// want adds n subscriptions of a principal.
func want(wanted map[string][]string, principal string, n int) {
	for i := range n {
		uri := fmt.Sprintf("%s/%d", principal, i)
		wanted[uri] = append(wanted[uri], principal)
	}
}

// GWN-21: principals share the subscriptions at a backend. None is refused because another one wants many.
func TestShare(t *testing.T) {
	const room = 30
	wanted, chosen := map[string][]string{}, map[string]bool{}
	choose := func(what string, want map[string]int) {
		t.Helper()
		for range 2 { // the second time, nothing has changed
			before := chosen
			chosen = share(wanted, func(uri string) bool { return before[uri] }, room)
			got := map[string]int{}
			for uri := range chosen {
				for _, p := range wanted[uri] {
					got[p]++
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", what, got, want)
			}
		}
	}
	want(wanted, "a", 20)
	choose("there is room for all", map[string]int{"a": 20})
	want(wanted, "b", 20)
	choose("two share the room", map[string]int{"a": 15, "b": 15})
	want(wanted, "c", 4)
	choose("one with few gets all of them", map[string]int{"a": 13, "b": 13, "c": 4})
	for uri, of := range wanted {
		if of[0] == "a" {
			wanted[uri] = append(of, "d")
		}
	}
	choose("equal interests share one", map[string]int{"a": 13, "b": 13, "c": 4, "d": 13})
	clear(wanted)
	for i := range 2 * room {
		want(wanted, fmt.Sprintf("p%02d", i), 1)
	}
	late := map[string]bool{}
	for i := range room {
		late[fmt.Sprintf("p%02d/0", room+i)] = true
	}
	if got := share(wanted, func(uri string) bool { return late[uri] }, room); !maps.Equal(got, late) {
		t.Errorf("among principals with one each, got %v, want the running ones", got)
	}
}

// GWN-21: given a backend with as many subscriptions as it may have, then one of a principal with many gives way to a principal with few.
func TestSubscriptionsGiveWay(t *testing.T) {
	e, _ := newListing(t, `{"events":[]}`)
	e.modes, e.running, e.refused = map[string]string{"e": client.ModePoll}, map[string]*reception{}, map[string]time.Time{}
	e.limit, e.Gap = rate.NewLimiter(eventRate, eventBurst), func(context.Context, string, string) error { return nil }
	e.Demand.Start = time.Nanosecond // no relay answers
	place, ended, stopped := e.backend.Place(), make(chan struct{}), 0
	close(ended)
	uri := func(i int) string { return fmt.Sprintf("event://~%s/e/%04d", place.Backend, i) }
	for i := range maxReceptions {
		expect.OK(t, e.Demand.Want(t.Context(), place.Workspace, fmt.Sprint("p", i/200), uri(i)))
		e.running[uri(i)] = &reception{cancel: func() { stopped++ }, done: ended}
	}
	few := "event://~" + place.Backend + "/e/e30"
	expect.OK(t, e.Demand.Want(t.Context(), place.Workspace, "few", few))
	for range 2 {
		expect.OK(t, e.adjust(t.Context()))
	}
	if e.running[few] == nil || len(e.running) != maxReceptions || stopped != 1 {
		t.Errorf("got %d subscriptions after %d were stopped, want %d after one", len(e.running), stopped, maxReceptions)
	}
	refused := 0
	for i := range maxReceptions {
		if s, err := e.Demand.State(t.Context(), place.Workspace, uri(i)); s.Error != "" || err != nil {
			refused++
		}
	}
	expect.Equal(t, "the subscriptions with an error", refused, 1)
	e.end()
}
