package gateway

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// waiting counts the goroutines that wait for a view.
func waiting() int {
	all := make([]byte, 4<<20)
	return strings.Count(string(all[:runtime.Stack(all, true)]), "refresh.(*Value[...]).get(")
}

// GWN-01, GWN-02: given many callers that need a backend's list, then the backend is asked once for its capabilities and once for
// each page.
func TestWaitingCallersShareOneFetch(t *testing.T) {
	goOn := make(chan struct{})
	s := newScripted(t, func(s *scripted) { s.stateless = true })
	s.list(func(method, cursor string) string {
		<-goOn
		if cursor == "" {
			return `{"tools":[{"name":"a"}],"nextCursor":"2"}`
		}
		return oneTool("b")(method, "")
	})
	g := gatewayOver(t, memory(t), at("b", s))
	const callers = 30
	var all sync.WaitGroup
	ready := make(chan struct{}, callers)
	for range callers {
		all.Go(func() {
			ready <- struct{}{}
			sees(t, g, of(ann), "a", "b")
		})
	}
	for range callers {
		<-ready
	}
	until(t, "the list is asked for", func() bool { return len(s.received("tools/list")) == 1 })
	until(t, "all callers wait", func() bool { return waiting() >= callers })
	close(goOn)
	all.Wait()
	if discovers, pages := len(s.received("server/discover")), len(s.received("tools/list")); discovers != 1 || pages != 2 {
		t.Errorf("%d callers: it was asked %d times what it serves and for %d pages, want 1 and 2", callers, discovers, pages)
	}
}

// GWN-01: given a backend that answers with an error, when 20 callers wait for its list, then the backend is asked at most twice,
// because one of them may ask again, and all get the previous list. The next caller asks again immediately.
func TestWaitingCallersShareAFailure(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.stateless = true })
	g := gatewayOver(t, memory(t), at("b", s))
	g.List(t.Context(), of(ann), api.Tools)
	goOn := make(chan struct{})
	s.list(func(string, string) string { <-goOn; return `[` })
	g.Followed(t.Context())[0].Outdate()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			sees(t, g, of(ann), "t")
		})
	}
	until(t, "the list is asked for", func() bool { return len(s.received("tools/list")) == 2 })
	until(t, "all callers wait", func() bool { return waiting() >= 20 })
	close(goOn)
	all.Wait()
	if n := len(s.received("tools/list")) - 1; n > 2 {
		t.Errorf("20 callers asked %d times, want at most 2", n)
	}
	s.list(oneTool("u"))
	// After the failure the list is fetched again.
	sees(t, g, of(ann), "u")
}

// GWN-01: given a caller that starts a fetch and leaves, then the fetch continues for the others. Each caller waits no longer than
// its own context.
func TestFetchOutlivesItsCaller(t *testing.T) {
	goOn := make(chan struct{})
	s := newScripted(t, func(s *scripted) { s.stateless = true })
	s.list(func(method, _ string) string { <-goOn; return oneTool("t")(method, "") })
	g := gatewayOver(t, memory(t), at("b", s))
	first, leave := context.WithCancel(t.Context())
	begun, others := make(chan struct{}), make(chan []string, 3)
	go func() { g.List(first, of(ann), api.Tools); close(begun) }()
	until(t, "the list is asked for", func() bool { return len(s.received("tools/list")) == 1 })
	for range 3 {
		go func() { others <- names(g.List(t.Context(), of(ann), api.Tools)) }()
	}
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if got := names(g.List(short, of(ann), api.Tools)); got != nil {
		t.Errorf("got %q", got)
	}
	leave()
	<-begun
	close(goOn)
	for range 3 {
		select {
		case got := <-others:
			if !slices.Equal(got, []string{"t"}) {
				t.Errorf("another caller got %q", got)
			}
		case <-time.After(patience):
			t.Fatal("another caller hangs")
		}
	}
	if n := len(s.received("tools/list")); n > 2 {
		t.Errorf("%d requests, want one more at most", n)
	}
}

// GWN-01: calls use a list with a time to live of 0 without fetching it again. Lists fetch it each time.
func TestCallsUseAListThatMayNotBeKept(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.stateless = true
		s.lists = func(method, _ string) string {
			return `{"tools":[{"name":"t"}],"ttlMs":0,"cacheScope":"public"}`
		}
		s.call = func(t *turn) { t.result(`{"resultType":"complete"}`) }
	})
	g := gatewayOver(t, memory(t), at("b", s))
	for range 3 {
		mustCall(t, g, statelessClient(ann), "t")
	}
	if n := len(s.received("tools/list")); n != 1 {
		t.Errorf("three calls asked %d times for the list", n)
	}
	for range 3 {
		g.List(t.Context(), of(ann), api.Tools)
	}
	if n := len(s.received("tools/list")); n != 4 {
		t.Errorf("three lists asked %d times, want 3", n-1)
	}
}
