package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// inProduction gives a relay the pauses that it has in production.
func inProduction(r *relay.Relay) {
	r.Relist, r.MinPause, r.MaxPause = time.Minute, time.Second, time.Minute
}

// count returns the number of announcements with the text within a time.
func (l log) count(text string, within time.Duration) (n int) {
	end := time.After(within)
	for {
		select {
		case got := <-l:
			if strings.Contains(got, text) {
				n++
			}
		case <-end:
			return n
		}
	}
}

// forget drops the announcements so far.
func (l log) forget() {
	for len(l) > 0 {
		<-l
	}
}

// withResources has a backend list the resources.
func withResources(uris ...string) func(*scripted) {
	return func(s *scripted) { s.lists = listing("resources/list", entriesOf("resources/list", "uri", uris...)) }
}

var connectionState = regexp.MustCompile(`msg="backend connection changed".* state="?([a-z ]+)`)

// takeStates returns the logged states of the connection to a backend since the last call.
func takeStates(log *expect.Buffer) (states []string) {
	for _, m := range connectionState.FindAllStringSubmatch(log.Take(), -1) {
		states = append(states, strings.TrimSpace(m[1]))
	}
	return states
}

// GWN-07: an old replica, or one that is restarting, may answer that there is no stream. The relay asks again later. The test walks
// through the states of the relay's connection to a backend. Clients can subscribe while the stream is open.
func TestStatesOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, withResources("x://1"), func(s *scripted) { s.capabilities = `{"tools":{},"resources":{}}` })
		var lines expect.Buffer
		g := gatewayOver(t, memory(t), at("b", s))
		relaying(t, "r", g, newLog(), inProduction, func(r *relay.Relay) {
			r.Log = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		for _, step := range []struct {
			given  string
			change func()
			within time.Duration
			want   []string
		}{
			{"it notifies of nothing", func() {}, 4 * time.Minute, []string{"asking", "no stream"}},
			{"it notifies since it was updated", func() {
				s.change(func(s *scripted) { s.capabilities = `{"tools":{},"resources":{"subscribe":true}}` })
			}, 6 * time.Minute, []string{"asking", "connecting", "comparing", "streaming"}},
			{"its stream ends", s.hangUp, time.Minute, []string{"asking", "connecting", "comparing", "streaming"}},
			{"it does not serve streams", func() { s.refuse(405); s.hangUp() }, time.Minute, []string{"asking", "connecting", "no stream"}},
			{"it serves streams again", func() { s.refuse(0) }, 5 * time.Minute, []string{"asking", "connecting", "comparing", "streaming"}},
			{"its stream cannot be opened, and then it can", func() {
				s.refuse(503)
				s.hangUp()
				time.AfterFunc(3*time.Second, func() { s.refuse(0) })
			}, time.Minute, []string{"asking", "connecting", "asking", "connecting", "asking", "connecting", "comparing", "streaming"}},
		} {
			step.change()
			time.Sleep(step.within)
			if got := takeStates(&lines); !slices.Equal(slices.Compact(got), slices.Compact(step.want)) && !retries(got, step.want) {
				t.Errorf("%s: the states were %q, want %q", step.given, got, step.want)
			}
			streams := step.want[len(step.want)-1] == "streaming"
			if _, ok, _ := g.Subscribable(t.Context(), ann, "x://1"); ok != streams || (s.open() == 1) != streams {
				t.Errorf("%s: clients can subscribe: %t, open streams: %d, want a stream: %t", step.given, ok, s.open(), streams)
			}
		}
	})
}

// retries reports whether the states begin and end as wanted, with failed attempts in between.
func retries(got, want []string) bool {
	return len(got) >= 6 && len(want) >= 6 && slices.Equal(got[len(got)-4:], want[len(want)-4:]) && slices.Equal(got[:2], want[:2])
}

// GWN-04, GWN-07: a resource that the backend refuses does not affect subscriptions to other resources.
func TestRefusedSubscriptionLeavesTheOthersAlone(t *testing.T) {
	for _, status := range []int{200, 400, 404, 405, 500, 501} {
		for _, noSession := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%d, backend without sessions %v", status, noSession), func(t *testing.T) {
				s := newScripted(t, func(s *scripted) { s.noSession = noSession })
				var refused atomic.Int64
				s.intercept(func(w http.ResponseWriter, _ *http.Request, m got) bool {
					if m.Method != "resources/subscribe" || !strings.Contains(string(m.Params), "bad") {
						return false
					}
					if refused.Add(1); status == 200 {
						m.fails(w, status, -32602, "unknown")
					} else {
						w.WriteHeader(status)
					}
					return true
				})
				l := newLog()
				g := gatewayOver(t, memory(t), at("b", s))
				subscribe(t, g, wants("x://victim", "v"))
				relaying(t, "r", g, l, inProduction)
				s.only(t, 1)
				subscribe(t, g, wants("x://bad", "a"))
				time.Sleep(12 * time.Minute)
				l.forget()
				s.notify(updated("x://victim"))
				expect.Equal(t, "announced updates of another resource", l.count("x://victim", time.Second), 1)
				s.only(t, 1)
				if n := refused.Load(); n < 2 || n > 4 {
					t.Errorf("in twelve minutes the refused resource was asked for %d times, want once every five minutes", n)
				}
			})
		}
	}
}

// GWN-04: the resources of one principal do not delay another principal's, whether they are many or slow.
func TestSubscriptionsOfPrincipalsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g, _ := follow(t, plain, inProduction)
		subscribed := make(chan string, 10_000)
		s.intercept(func(_ http.ResponseWriter, r *http.Request, m got) bool {
			if m.Method == "resources/subscribe" {
				if strings.Contains(string(m.Params), "hangs") {
					<-r.Context().Done()
					return true
				}
				time.Sleep(75 * time.Millisecond)
				subscribed <- string(m.Params)
			}
			return false
		})
		by := func(principal, uri string) {
			w := wants(uri, principal)
			w.Principal = principal
			subscribe(t, g, w)
		}
		for i := range 1000 {
			by("many", fmt.Sprintf("x://%d", i))
		}
		for i := range 50 {
			by("hangs", fmt.Sprintf("x://hangs/%d", i))
		}
		time.Sleep(2 * time.Second)
		began := time.Now()
		by("victim", "x://victim")
		for text := range subscribed {
			if strings.Contains(text, "victim") {
				break
			}
		}
		expect.AtMost(t, "the time that another principal's subscription took", time.Since(began), 2*time.Second)
	})
}

func TestPrincipalHasALimitOfResourcesAtABackend(t *testing.T) {
	g := gatewayOver(t, memory(t), at("b", newScripted(t)))
	w := func(i int, principal string) api.Subscription {
		w := wants(fmt.Sprint("x://", i), "s")
		w.Principal = principal
		return w
	}
	const maxWanted = 2000
	subscribe(t, g, w(0, "ann"))
	page := expect.Value(g.options.DB.Query(t.Context(), store.Query{Table: store.Sessions, Partition: "w#default#b", Limit: 1}))(t)
	expect.MustEqual(t, "the number of items", len(page.Items), 1)
	principal := page.Items[0].Sort[:len("p#")+32+1]
	for i := range maxWanted { // without counting them each time
		uri := w(i, "ann").URI
		key := store.Key{Table: store.Sessions, Partition: "w#default#b", Sort: fmt.Sprintf("%s%x#s", principal, sha256.Sum256([]byte(uri)))}
		expect.OK(t, g.options.DB.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte(uri), Expires: w(i, "ann").Until})))
	}
	expect.Fault(t, "one resource too many", g.Subscribe(t.Context(), w(maxWanted, "ann")), fault.Exhausted)
	subscribe(t, g, w(7, "ann"), w(maxWanted, "bob")) // prolonged, and another principal's
	unsubscribe(t, g, w(7, "ann"))
	subscribe(t, g, w(maxWanted, "ann"))
}

// GWN-04: a resource may change after the client subscribed and before the relay has subscribed at the backend. So the relay
// announces an update when its subscription takes effect.
func TestSubscriptionThatTakesEffectIsAnnounced(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) { s.stateless, s.getStatus = stateless, 503 })
		l := newLog()
		g := gatewayOver(t, memory(t), at("b", s))
		relaying(t, "r", g, l, inProduction)
		subscribe(t, g, wants("x://before", "s"))
		time.Sleep(5 * time.Minute) // there is no connection yet
		s.refuse(0)
		expect.Equal(t, "announcements of a resource that was subscribed to before the first connection", l.count("x://before", 10*time.Minute), 1)
		subscribe(t, g, wants("x://later", "s"))
		expect.Equal(t, "announcements of a resource that was subscribed to later", l.count("x://later", 10*time.Minute), 1)
	})
}

// GWN-05: a listen that the backend refuses does not cause an announcement.
func TestRefusedListenAnnouncesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) { s.stateless = true })
		var listens atomic.Int64
		s.on("subscriptions/listen", func(w http.ResponseWriter, _ *http.Request, m got) {
			listens.Add(1)
			m.fails(w, http.StatusNotFound, -32601, "Method not found")
		})
		l := newLog()
		g := gatewayOver(t, memory(t), at("b", s))
		subscribe(t, g, wants("x://1", "s"))
		relaying(t, "r", g, l, inProduction)
		expect.AtMost(t, "the announced updates in 20 minutes", l.count("notifications/resources/updated", 20*time.Minute), 0)
		expect.AtMost(t, "the listens in 20 minutes", listens.Load(), 80)
	})
}

// GWN-04: a backend of 2026-07-28 may refuse a listen for one of its resources, or leave it out of its acknowledgment.
func TestRefusedResourceOfAListenLeavesTheOthersAlone(t *testing.T) {
	bad := func(text string) bool { return strings.Contains(text, "bad") }
	for name, change := range map[string]func(*scripted){
		"left out": func(s *scripted) { s.refused = bad },
		"refused":  func(*scripted) {},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newScripted(t, func(s *scripted) { s.stateless = true }, change)
			s.intercept(func(w http.ResponseWriter, _ *http.Request, m got) bool {
				if name != "refused" || m.Method != "subscriptions/listen" || !bad(string(m.Params)) {
					return false
				}
				m.fails(w, http.StatusBadRequest, -32602, "unknown resource")
				return true
			})
			l := newLog()
			g := gatewayOver(t, memory(t), at("b", s))
			for _, uri := range []string{"x://1", "x://2", "x://bad", "x://3"} {
				subscribe(t, g, wants(uri, "s"))
			}
			relaying(t, "r", g, l, inProduction)
			time.Sleep(time.Minute)
			subscribe(t, g, wants("x://bad/2", "s"), wants("x://4", "s"))
			time.Sleep(time.Minute)
			for _, uri := range []string{"x://1", "x://2", "x://3", "x://4"} {
				l.forget()
				s.sendTo(uri+`"`, updated(uri))
				expect.Equal(t, fmt.Sprintf("updates of %s were announced", uri), l.count(uri, time.Second), 1)
			}
		})
	}
}

// GWN-04: a backend of 2026-07-28 may never acknowledge a listen. The relay then assumes that it took effect.
func TestListenWithoutAnAcknowledgment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g, l := follow(t, func(s *scripted) { s.stateless, s.mute = true, true }, inProduction)
		subscribe(t, g, wants("x://1", "s"))
		expect.Equal(t, "announced updates of a new subscription", l.count("x://1", time.Minute), 1)
		s.sendTo("toolsListChanged\":true", toolsChanged)
		expect.Equal(t, "announced changes", l.count("tools/list_changed", time.Minute), 1)
	})
}

// GWN-06: a backend of 2026-07-28 may acknowledge a listen without a list whose changes it promised. The relay then compares the lists
// periodically.
func TestListThatIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l := follow(t, func(s *scripted) {
			s.stateless, s.refused = true, func(name string) bool { return name == "toolsListChanged" }
		}, inProduction)
		time.Sleep(time.Minute)
		l.forget()
		s.list(oneTool("u"))
		expect.Equal(t, "announced changes", l.count("tools/list_changed", 3*time.Minute), 1)
	})
}

// GWN-07: the pause grows with each failed attempt, whatever time the backend takes to fail.
func TestSlowBackendIsAskedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		tries := make(chan time.Time, 1000)
		s.on("server/discover", func(_ http.ResponseWriter, r *http.Request, m got) {
			tries <- time.Now()
			<-r.Context().Done()
		})
		relaying(t, "r", gatewayOver(t, memory(t), at("b", s)), newLog(), inProduction)
		time.Sleep(20 * time.Minute)
		last, pause := time.Now(), time.Duration(0)
		for range len(tries) {
			next := <-tries
			last, pause = next, next.Sub(last)
		}
		expect.AtLeast(t, "the pause after 20 minutes in which the backend does not answer", pause, 35*time.Second)
	})
}

// withoutHashes is a store that cannot read the hashes of lists while failing is set.
type withoutHashes struct {
	store.DB
	failing *atomic.Bool
}

func (w withoutHashes) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	if w.failing.Load() && strings.HasPrefix(keys[0].Sort, "list#") {
		return nil, errors.New("cut off")
	}
	return w.DB.Get(ctx, keys...)
}

// GWN-03, GWN-04: only the connection that took the lease over continues the previous one without a gap.
func TestGapAfterAHandoverThatFailedIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		var failing atomic.Bool
		db, l := withoutHashes{memory(t), &failing}, newLog()
		gateways := func() *Gateway { return gatewayOver(t, db, at("b", s)) }
		subscribe(t, gateways(), wants("x://1", "s"))
		began := time.Now()
		_, first := runBounded(t, "first", gateways(), l, inTime(6*time.Second, 4*time.Second))
		l.has(t, `first default b notifications/resources/updated {"uri":"x://1"}`)
		time.Sleep(time.Until(began.Add(2500 * time.Millisecond)))
		failing.Store(true)
		runBounded(t, "second", gateways(), l, func(r *relay.Relay) {
			inTime(60*time.Second, 4*time.Second)(r)
			r.MinPause, r.MaxPause = time.Second, time.Minute
		})
		<-first
		expect.Eventually(t, "no relay listens", func() bool { return s.open() == 0 })
		failing.Store(false) // the resource changes now
		expect.Equal(t, "updates that were announced after the gap", l.count(`updated {"uri":"x://1"}`, 20*time.Second), 1)
	})
}

// GWN-04, GWN-06: a change that the throttle held is announced later, even if the first attempt to write it to the log fails.
func TestHeldChangeWhoseAnnouncementFailsIsAnnouncedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail atomic.Bool
		var failed atomic.Int64
		s, _, l := follow(t, plain, func(r *relay.Relay) {
			announce := r.Announce
			r.Announce = func(ctx context.Context, workspace, backend string, notice json.RawMessage) error {
				if fail.Load() && strings.Contains(string(notice), "tools/list_changed") {
					failed.Add(1)
					return errors.New("the log is throttled")
				}
				return announce(ctx, workspace, backend, notice)
			}
		})
		l.until(t, s)
		for range 51 { // the last one is held
			s.notify(toolsChanged)
		}
		time.Sleep(200 * time.Millisecond)
		fail.Store(true)
		expect.Eventually(t, "the held change could not be announced", func() bool { return failed.Load() > 0 })
		fail.Store(false)
		l.forget()
		if n := l.count("tools/list_changed", time.Minute); n == 0 {
			t.Error("the held change was never announced")
		}
	})
}

// GWN-04: the relay continues to read notifications while it answers a ping.
func TestPingWhoseAnswerHangsDelaysNoNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l := follow(t, func(s *scripted) { s.hang = func(method string) bool { return method == "" } }, inProduction)
		l.until(t, s)
		for i := range 10 {
			s.notify(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
		}
		s.notify(toolsChanged)
		expect.Equal(t, "changes that were announced after the pings", l.count("tools/list_changed", time.Minute), 1)
	})
}

// GWN-07: a session whose notifications/initialized fails is ended.
func TestSessionWhoseInitializedFailsIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		s.on("notifications/initialized", func(w http.ResponseWriter, _ *http.Request, _ got) { w.WriteHeader(http.StatusServiceUnavailable) })
		relaying(t, "r", gatewayOver(t, memory(t), at("b", s)), newLog(), inProduction)
		time.Sleep(20 * time.Minute)
		expect.AtMost(t, "the open sessions at the backend after 20 minutes", s.alive(), 1)
	})
}

// GWN-07: a proxy may keep the stream of a dead backend open. The relay notices it with pings.
func TestStreamOfADeadBackendIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := follow(t, plain, inProduction)
		var dead atomic.Bool
		s.intercept(func(_ http.ResponseWriter, r *http.Request, m got) bool {
			if dead.Load() && r.Method == http.MethodPost {
				<-r.Context().Done()
				return true
			}
			return false
		})
		dead.Store(true)
		untilIn(t, "the stream is closed", 10*time.Minute, func() bool { return s.open() == 0 })
		dead.Store(false)
		untilIn(t, "a new one is open", 10*time.Minute, func() bool { return s.open() == 1 })
	})
}

// untilIn waits like until, but for a given time on the clock of the test's bubble.
func untilIn(t *testing.T, what string, most time.Duration, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(time.Second) {
		if time.Since(began) > most {
			t.Fatalf("not within %s: %s", most, what)
		}
	}
}

// GWN-02: when a restarted backend announces a change, instances other than the relay's also learn its new capabilities.
func TestOtherInstanceAsksARestartedBackendAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) { s.capabilities = `{"prompts":{"listChanged":true}}` })
		db, l := memory(t), newLog()
		other := gatewayOver(t, db, at("b", s))
		sees(t, other, of(ann))
		relaying(t, "r", gatewayOver(t, db, at("b", s)), l)
		s.only(t, 1)
		time.Sleep(3 * time.Second)
		s.change(func(s *scripted) { s.capabilities = `{"prompts":{"listChanged":true},"tools":{"listChanged":true}}` })
		s.forget() // it was restarted
		s.hangUp()
		l.has(t, "r default b notifications/tools/list_changed")
		sees(t, other, of(ann), "t")
	})
}

// inTime limits a relay's time, and sets the last part of it as the time for handing over.
func inTime(life, handover time.Duration) func(*relay.Relay) {
	until := time.Now().Add(life)
	return func(r *relay.Relay) { r.Until, r.Handover = until, handover }
}

// waitForEnd waits until a relay has ended by itself, and returns how long that took.
func waitForEnd(t *testing.T, what string, g *Gateway, l log, change func(*relay.Relay)) (took time.Duration) {
	t.Helper()
	began := time.Now()
	_, done := runBounded(t, what, g, l, change)
	expect.Receive(t, what, done)
	return time.Since(began)
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
		_, first := runBounded(t, "first", gateways(), l, inTime(6*time.Second, 4*time.Second))
		s.only(t, 1)
		l.has(t, `first default b notifications/resources/updated {"uri":"x://1"}`) // its subscription took effect
		if took := waitForEnd(t, "another one, early", gateways(), l, inTime(20*time.Second, 4*time.Second)); took > 3*time.Second {
			t.Errorf("it took %s to see that other relays have all backends", took)
		}
		s.list(oneTool("t", "u"))
		s.notify(toolsChanged)
		l.has(t, "first default b notifications/tools/list_changed")
		expect.Eventually(t, "the change is remembered", func() bool { return string(remembered(t, db)) != "?" })
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
		expect.Receive(t, "the end of the first one", first)
		expect.Eventually(t, "one stream is open", func() bool { return s.open() == 1 })
		time.Sleep(500 * time.Millisecond)
		close(stop)
		<-ended
		times, by := map[string]int{}, map[string]int{}
		for _, text := range l.until(t, s) {
			who, what, _ := strings.Cut(text, " ")
			times[what]++
			by[who]++
			expect.Lacks(t, text, what, "list_changed")
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
		_, first := runBounded(t, "first", g(), l, inTime(2*time.Second, 100*time.Millisecond))
		expect.Eventually(t, "it has tried twice", func() bool { return len(s.received("initialize")) > 3 })
		if took := waitForEnd(t, "another one", g(), l, inTime(time.Minute, time.Second)); took > 5*time.Second {
			t.Errorf("it took %s to see that other relays have all backends", took)
		}
		<-first
		began := time.Now()
		_, second := runBounded(t, "second", g(), l, inTime(3*time.Second, 2*time.Second))
		expect.Eventually(t, "it tries", func() bool { return len(s.received("initialize")) > 5 })
		expect.AtMost(t, "the time until the lease was taken", time.Since(began), shortLease)
		time.Sleep(time.Until(began.Add(1100 * time.Millisecond)))
		runBounded(t, "third", g(), l, inTime(time.Minute, 2*time.Second))
		<-second // there is nothing to hand over, but the trying
		expect.AtMost(t, "the time until it ended", time.Since(began), 2900*time.Millisecond)
		s.refuse(0)
		expect.Eventually(t, "the stream is open", func() bool { return s.open() == 1 })
	})
}

// GWN-07: given a backend that was away for so long that the relay seldom tries to connect, when it is back and a client subscribes to a
// resource, then the relay connects soon.
func TestSubscriptionEndsThePauseOfTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g, _ := follow(t, withResources("x://a"), inProduction)
		s.intercept(unavailable)
		s.hangUp()
		time.Sleep(10 * time.Minute)
		s.intercept(nil)
		before := time.Now()
		subscribe(t, g, wants("x://a", "s1"))
		expect.Eventually(t, "it is subscribed", func() bool { return len(s.received("resources/subscribe")) == 1 })
		expect.AtMost(t, "the time until it is subscribed", time.Since(before), 3*time.Second)
	})
}
