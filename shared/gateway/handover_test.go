package gateway

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/relay"
)

// inTime limits a relay's time, and sets the last part of it as the time for handing over.
func inTime(life, handover time.Duration) func(*relay.Relay) {
	until := time.Now().Add(life)
	return func(r *relay.Relay) { r.Until, r.Handover = until, handover }
}

// waitForEnd waits until a relay has ended by itself, and returns how long that took.
func waitForEnd(t *testing.T, what string, g *Gateway, l log, change func(*relay.Relay)) (took time.Duration) {
	t.Helper()
	began := time.Now()
	select {
	case <-runBounded(t, what, g, l, change):
		return time.Since(began)
	case <-time.After(patience):
		t.Fatalf("%s runs on", what)
	}
	return 0
}

// runBounded starts a relay that may end by itself.
func runBounded(t *testing.T, by string, g *Gateway, l log, change func(*relay.Relay)) <-chan struct{} {
	t.Helper()
	r := newRelay(by, g, l)
	change(r)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return done
}

// GWN-03, GWN-04: a process with limited time hands a backend over in the last part of that time. Its successor listens before it
// stops, so no update is lost and no earlier list change is announced again. A relay without work ends immediately.
func TestNothingIsLostOverAHandover(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) { s.stateless = stateless })
		db, l := memory(t), newLog()
		gateways := func() *Gateway { return gatewayOver(t, db, at("b", s)) }
		subscribe(t, gateways(), wants("x://1", "s"))
		began := time.Now()
		first := runBounded(t, "first", gateways(), l, inTime(6*time.Second, 4*time.Second))
		s.only(t, 1)
		l.has(t, `first default b notifications/resources/updated {"uri":"x://1"}`) // its subscription took effect
		if took := waitForEnd(t, "another one, early", gateways(), l, inTime(20*time.Second, 4*time.Second)); took > 3*time.Second {
			t.Errorf("it took %s to see that other relays have all backends", took)
		}
		s.list(oneTool("t", "u"))
		s.notify(toolsChanged)
		l.has(t, "first default b notifications/tools/list_changed")
		until(t, "the change is remembered", func() bool { return string(remembered(t, db)) != "?" })
		time.Sleep(time.Until(began.Add(2500 * time.Millisecond))) // until the last part of its time

		sent, stop, ended := 0, make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for tick := time.NewTicker(5 * time.Millisecond); ; sent++ {
				select {
				case <-stop:
					tick.Stop()
					return
				case <-tick.C:
					s.notify(updated(fmt.Sprintf("x://n%d", sent)))
				}
			}
		}()
		time.Sleep(300 * time.Millisecond)
		runBounded(t, "second", gateways(), l, inTime(20*time.Second, 4*time.Second))
		select {
		case <-first:
		case <-time.After(patience):
			t.Fatal("the first one goes on")
		}
		until(t, "one stream is open", func() bool { return s.open() == 1 })
		time.Sleep(500 * time.Millisecond)
		close(stop)
		<-ended
		times, by := map[string]int{}, map[string]int{}
		for _, text := range l.until(t, s) {
			who, what, _ := strings.Cut(text, " ")
			times[what]++
			by[who]++
			if strings.Contains(what, "list_changed") {
				t.Errorf("announced %q", text)
			}
		}
		repeats := 0
		for n := range sent {
			switch times[fmt.Sprintf(`default b notifications/resources/updated {"uri":"x://n%d","x":9007199254740993}`, n)] {
			case 0:
				t.Errorf("update %d of %d was lost", n, sent)
			case 1:
			default:
				repeats++
			}
		}
		t.Logf("%d updates, by %v, %d of them twice", sent, by, repeats)
		if by["first"] == 0 || by["second"] == 0 || repeats > sent/2 {
			t.Errorf("announced by %v, %d twice", by, repeats)
		}
		if times[`default b notifications/resources/updated {"uri":"x://1"}`] > 0 {
			t.Error("an update that the backend did not send was announced")
		}
	})
}

// GWN-03, GWN-06: after a holder has died, its successor announces an update of each subscribed resource, because it may have
// missed one, and each changed list.
func TestGapIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		db, l := memory(t), newLog()
		dies := &mortal{DB: db}
		g := gatewayOver(t, dies, at("b", s))
		subscribe(t, g, wants("x://1", "s"))
		end := relaying(t, "first", g, l)
		l.has(t, `first default b notifications/resources/updated {"uri":"x://1"}`) // its subscription took effect
		l.silent(t, s)
		dies.dead.Store(true)
		end()
		s.list(oneTool("t", "u"))
		relaying(t, "second", gatewayOver(t, db, at("b", s)), l)
		for _, want := range []string{"second default b notifications/tools/list_changed", `second default b notifications/resources/updated {"uri":"x://1"}`} {
			l.has(t, want)
		}
	})
}

// GWN-06: given a holder that dies right after it announced a change, then its successor announces the change again, because the
// hash of the list is unknown. The list may have changed back since.
func TestAnnouncedChangeWithoutAHashIsAnnouncedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		db, l := memory(t), newLog()
		dies := &mortal{DB: db}
		end := relaying(t, "first", gatewayOver(t, dies, at("b", s)), l)
		l.until(t, s)
		s.list(oneTool("t", "u"))
		s.notify(toolsChanged)
		l.has(t, "first default b notifications/tools/list_changed")
		dies.dead.Store(true)
		end()
		s.list(oneTool("t"))
		relaying(t, "second", gatewayOver(t, db, at("b", s)), l)
		l.has(t, "second default b notifications/tools/list_changed")
	})
}

// GWN-03: a relay with limited time ends immediately if there are no backends, keeps trying a backend that refuses it without
// letting other relays in, and returns the lease at the end of its time.
func TestBoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, l := memory(t), newLog()
		if took := waitForEnd(t, "without backends", gatewayOver(t, db), l, inTime(time.Minute, time.Second)); took > 5*time.Second {
			t.Errorf("it took %s to see that there is no backend", took)
		}
		s := newScripted(t, func(s *scripted) { s.getStatus = 503 })
		g := func() *Gateway { return gatewayOver(t, db, at("b", s)) }
		first := runBounded(t, "first", g(), l, inTime(2*time.Second, 100*time.Millisecond))
		until(t, "it has tried twice", func() bool { return len(s.received("initialize")) > 3 })
		if took := waitForEnd(t, "another one", g(), l, inTime(time.Minute, time.Second)); took > 5*time.Second {
			t.Errorf("it took %s to see that other relays have all backends", took)
		}
		<-first
		began := time.Now()
		second := runBounded(t, "second", g(), l, inTime(3*time.Second, 2*time.Second))
		until(t, "it tries", func() bool { return len(s.received("initialize")) > 5 })
		if took := time.Since(began); took > shortLease {
			t.Errorf("it took %s to have the lease", took)
		}
		time.Sleep(time.Until(began.Add(1100 * time.Millisecond)))
		runBounded(t, "third", g(), l, inTime(time.Minute, 2*time.Second))
		<-second // there is nothing to hand over, but the trying
		if took := time.Since(began); took > 2900*time.Millisecond {
			t.Errorf("it ended after %s", took)
		}
		s.refuse(0)
		until(t, "the stream is open", func() bool { return s.open() == 1 })
	})
}
