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

// inTime lets a relay have so much time, and give over in the last part of it.
func inTime(life, handover time.Duration) func(*relay.Relay) {
	until := time.Now().Add(life)
	return func(r *relay.Relay) { r.Until, r.Handover = until, handover }
}

// ends waits until a relay has ended by itself.
func ends(t *testing.T, what string, g *Gateway, l log, change func(*relay.Relay)) (took time.Duration) {
	t.Helper()
	began := time.Now()
	select {
	case <-running(t, what, g, l, change):
		return time.Since(began)
	case <-time.After(patience):
		t.Fatalf("%s runs on", what)
	}
	return 0
}

// running is a relay that may end by itself.
func running(t *testing.T, by string, g *Gateway, l log, change func(*relay.Relay)) <-chan struct{} {
	t.Helper()
	r := newRelay(by, g, l)
	change(r)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return done
}

// GWN-03, GWN-04: a process whose time is bounded hands a backend over in the last part of that time: the
// next one listens before it stops. Of updates that come all the time none is lost, and the changes of
// lists before it are not announced again. One that comes when nothing is to be had goes at once.
func TestNothingIsLostOverAHandover(t *testing.T) {
	for name, stateless := range map[string]bool{"2025": false, "2026": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScripted(t, func(s *scripted) { s.stateless = stateless })
				db, l := memory(t), newLog()
				gateways := func() *Gateway { return gatewayOver(t, db, at("b", s)) }
				subscribe(t, gateways(), wants("x://1", "s"))
				began := time.Now()
				first := running(t, "first", gateways(), l, inTime(6*time.Second, 4*time.Second))
				s.only(t, 1)
				l.has(t, `first default b notifications/resources/updated {"uri":"x://1"}`) // its subscription took effect
				if took := ends(t, "another one, early", gateways(), l, inTime(20*time.Second, 4*time.Second)); took > 3*time.Second {
					t.Errorf("it took %s to see that nothing is to be had", took)
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
				running(t, "second", gateways(), l, inTime(20*time.Second, 4*time.Second))
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
		})
	}
}

// GWN-03, GWN-06: after a holder that died the next one notifies of each resource that is subscribed to, for an
// update may have been missed, and of each list that changed.
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

// GWN-06: a holder that dies right after it announced a change leaves it to the next one to announce again, for
// what the list was then is not known: it may be again what it was before.
func TestChangeThatIsNotRemembered(t *testing.T) {
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

// GWN-03: a process whose time is bounded goes at once when there is no backend, keeps a backend that refuses
// it without letting others in, and gives the lease back at the end of its time.
func TestBoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, l := memory(t), newLog()
		if took := ends(t, "without backends", gatewayOver(t, db), l, inTime(time.Minute, time.Second)); took > 5*time.Second {
			t.Errorf("it took %s to see that there is no backend", took)
		}
		s := newScripted(t, func(s *scripted) { s.getStatus = 503 })
		g := func() *Gateway { return gatewayOver(t, db, at("b", s)) }
		first := running(t, "first", g(), l, inTime(2*time.Second, 100*time.Millisecond))
		until(t, "it has tried twice", func() bool { return len(s.received("initialize")) > 3 })
		if took := ends(t, "another one", g(), l, inTime(time.Minute, time.Second)); took > 5*time.Second {
			t.Errorf("it took %s to see that nothing is to be had", took)
		}
		<-first
		began := time.Now()
		second := running(t, "second", g(), l, inTime(3*time.Second, 2*time.Second))
		until(t, "it tries", func() bool { return len(s.received("initialize")) > 5 })
		if took := time.Since(began); took > shortLease {
			t.Errorf("it took %s to have the lease", took)
		}
		time.Sleep(time.Until(began.Add(1100 * time.Millisecond)))
		running(t, "third", g(), l, inTime(time.Minute, 2*time.Second))
		<-second // there is nothing to hand over, but the trying
		if took := time.Since(began); took > 2900*time.Millisecond {
			t.Errorf("it ended after %s", took)
		}
		s.refuse(0)
		until(t, "the stream is open", func() bool { return s.open() == 1 })
	})
}
