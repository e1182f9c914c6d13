package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	toolsChanged = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	// shortLease is as short as a store that counts expiry in seconds allows.
	shortLease = 3 * time.Second
)

func updated(uri string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":%q,"x":9007199254740993}}`, uri)
}

// wants returns a client's subscription to a resource of backend b for an hour.
func wants(uri, holder string) api.Subscription {
	return api.Subscription{Place: api.Place{Workspace: "default", Backend: "b"}, URI: uri, Holder: holder, Until: time.Now().Add(time.Hour)}
}

func subscribe(t *testing.T, g *Gateway, wanted ...api.Subscription) {
	t.Helper()
	for _, w := range wanted {
		expect.OK(t, g.Subscribe(t.Context(), w))
	}
}

func unsubscribe(t *testing.T, g *Gateway, w api.Subscription) {
	t.Helper()
	expect.OK(t, g.Unsubscribe(t.Context(), w))
}

// log collects what relays announce, as "by workspace backend method params".
type log chan string

func newLog() log { return make(log, 10000) }

func newRelay(by string, g *Gateway, l log) *relay.Relay {
	return &relay.Relay{
		Backends: g.Followed, DB: g.options.DB, Log: g.options.Log, Lease: shortLease, Relist: 50 * time.Millisecond, MinPause: 20 * time.Millisecond, MaxPause: 200 * time.Millisecond,
		Announce: func(_ context.Context, workspace, backend string, notice json.RawMessage) error {
			var n api.Notice
			if err := json.Unmarshal(notice, &n); err != nil {
				return err
			}
			l <- strings.TrimSpace(strings.Join([]string{by, workspace, backend, n.Method, string(n.Params)}, " "))
			return nil
		},
	}
}

// relaying runs a relay. The function end ends it and waits.
func relaying(t *testing.T, by string, g *Gateway, l log, change ...func(*relay.Relay)) (end func()) {
	t.Helper()
	end, _ = runBounded(t, by, g, l, change...)
	return end
}

// runBounded starts a relay that may end by itself. Then it closes done.
func runBounded(t *testing.T, by string, g *Gateway, l log, change ...func(*relay.Relay)) (end func(), done <-chan struct{}) {
	t.Helper()
	r := newRelay(by, g, l)
	for _, c := range change {
		c(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	end = func() { cancel(); <-ended }
	t.Cleanup(end)
	return end, ended
}

// follow returns a backend, a gateway that serves it alone, and the announcements of a relay that has opened its stream.
func follow(t *testing.T, backend func(*scripted), how ...func(*relay.Relay)) (*scripted, *Gateway, log) {
	t.Helper()
	s, l := newScripted(t, backend), newLog()
	g := gatewayOver(t, memory(t), at("b", s))
	relaying(t, "r", g, l, how...)
	s.only(t, 1)
	return s, g, l
}

// plain leaves a backend as it is.
func plain(*scripted) {}

// until reads the log up to a marker that the backend sends now, and returns the announcements before it.
func (l log) until(t *testing.T, s *scripted) (before []string) {
	t.Helper()
	uri := fmt.Sprintf("mark:%d", time.Now().UnixNano())
	expect.Eventually(t, "a stream is open", func() bool { return s.notify(updated(uri)) > 0 })
	for {
		text := expect.Receive(t, "the mark", l)
		if strings.Contains(text, uri) {
			return before
		}
		before = append(before, text)
	}
}

// next waits for one announcement.
func (l log) next(t *testing.T) string {
	t.Helper()
	return expect.Receive(t, "an announcement", l)
}

// has waits for one announcement and checks its text.
func (l log) has(t *testing.T, want string) {
	t.Helper()
	expect.Equal(t, "announced", l.next(t), want)
}

// silent checks that there is no announcement.
func (l log) silent(t *testing.T, s *scripted) {
	t.Helper()
	expect.Len(t, "the announced changes", l.until(t, s), 0)
}

// mortal is a store whose writes fail when it is dead, as in a process that cannot reach its store.
type mortal struct {
	store.DB
	dead atomic.Bool
}

func (m *mortal) Write(ctx context.Context, ops ...store.Op) error {
	if m.dead.Load() {
		return errors.New("cut off")
	}
	return m.DB.Write(ctx, ops...)
}

// GWN-03, GWN-04: the whole deployment has one stream per backend, and each notification is announced once. When the holder ends,
// another relay opens the stream immediately. When the holder dies, another one opens it soon after the lease expires. Earlier
// notifications are not announced again.
func TestOneStreamForAllRelays(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) { s.stateless = stateless })
		db, l := memory(t), newLog()
		second := &mortal{DB: db}
		gateways := []*Gateway{gatewayOver(t, db, at("b", s)), gatewayOver(t, second, at("b", s)), gatewayOver(t, db, at("b", s))}
		endFirst := relaying(t, "first", gateways[0], l)
		s.only(t, 1)
		endSecond := relaying(t, "second", gateways[1], l)
		// Two relays that begin announce nothing.
		l.silent(t, s)
		was := remembered(t, db)
		s.list(oneTool("t", "u"))
		if n := s.notify(toolsChanged); n != 1 {
			t.Fatalf("%d streams", n)
		}
		s.notify(updated("x://<1>&2"))
		want := []string{
			"first default b notifications/tools/list_changed",
			`first default b notifications/resources/updated {"uri":"x://\u003c1\u003e\u00262","x":9007199254740993}`,
		}
		expect.List(t, "announced", l.until(t, s), want)
		expect.Eventually(t, "the list is remembered", func() bool {
			now := string(remembered(t, db))
			return now != string(was) && now != "?"
		})

		endFirst() // which gives its lease back
		left := time.Now()
		s.only(t, 2)
		expect.AtMost(t, "the time of the hand-over", time.Since(left), shortLease/2)
		// A hand-over announces nothing.
		l.silent(t, s)
		s.notify(toolsChanged)
		l.has(t, "second default b notifications/tools/list_changed")

		relaying(t, "third", gateways[2], l)
		second.dead.Store(true)
		endSecond() // its lease stays
		died := time.Now()
		s.only(t, 3)
		expect.AtMost(t, "the time of the hand-over", time.Since(died), shortLease+time.Second)
		l.until(t, s)
		s.notify(updated("x://3"))
		if got := l.next(t); !strings.HasPrefix(got, "third ") {
			t.Errorf("announced %q", got)
		}
		expect.Equal(t, "open streams", s.open(), 1)
	})
}

// GWN-04: the capability "resources" does not promise resource templates. A backend that does not know their method has no templates, and
// its changes are announced.
func TestChangesOfABackendWithoutResourceTemplatesAreAnnounced(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s, _, l := follow(t, func(s *scripted) {
			s.stateless = stateless
			s.lists = listing("tools/list", oneTool("t")("tools/list", ""), api.Templates.Method(), "")
		})
		s.notify(toolsChanged)
		l.has(t, "r default b notifications/tools/list_changed")
	})
}

// brokenPrompts makes a backend answer prompts/list with an error while fails is set.
func brokenPrompts(s *scripted, fails *atomic.Bool) {
	s.intercept(func(w http.ResponseWriter, _ *http.Request, m got) bool {
		if !fails.Load() || m.Method != api.Prompts.Method() {
			return false
		}
		m.fails(w, http.StatusOK, -32603, "it is broken")
		return true
	})
}

// GWN-04, GWN-06: a list that a backend always answers with an error does not affect its other lists, notifications and subscriptions. The
// relay logs the failure once.
func TestFailingListLeavesTheOthersAlone(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		var fails atomic.Bool
		fails.Store(true)
		var lines expect.Buffer
		s, g, l := follow(t, func(s *scripted) {
			s.stateless = stateless
			withResources("x://1")(s)
			brokenPrompts(s, &fails)
		}, inProduction, func(r *relay.Relay) { r.Log = slog.New(slog.NewTextHandler(&lines, nil)) })
		time.Sleep(10 * time.Minute)
		for range 2 {
			s.notify(toolsChanged)
			l.has(t, "r default b notifications/tools/list_changed")
			time.Sleep(10 * time.Minute)
		}
		if _, ok, err := g.Subscribable(t.Context(), ann, "x://1"); !ok || err != nil {
			t.Errorf("clients can subscribe to resources: %t, %v", ok, err)
		}
		s.only(t, 1)
		expect.Len(t, "the further announcements", l, 0)
		expect.Equal(t, "warnings", strings.Count(lines.String(), "level=WARN"), 1)
	})
}

// GWN-06: a change that was missed is announced as soon as its list can be fetched again, even if the relay fetches it because of another
// change, and only once.
func TestMissedChangeOfAFailingListIsAnnouncedLater(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, s *scripted, l log){
		"alone": func(*testing.T, *scripted, log) {},
		"with a change of another list": func(t *testing.T, s *scripted, l log) {
			s.notify(toolsChanged)
			l.has(t, "r default b notifications/tools/list_changed")
		},
	} {
		bubble(t, name, func(t *testing.T) {
			var fails atomic.Bool
			s, _, l := follow(t, func(s *scripted) { brokenPrompts(s, &fails) }, inProduction)
			l.until(t, s)
			fails.Store(true)
			s.list(listing("tools/list", oneTool("t")("tools/list", ""), "prompts/list", `{"prompts":[{"name":"new"}]}`))
			s.hangUp()
			s.only(t, 2)
			time.Sleep(10 * time.Minute)
			fails.Store(false)
			change(t, s, l)
			expect.Equal(t, "announced changes of prompts", l.count("prompts/list_changed", 10*time.Minute), 1)
			s.only(t, 2)
		})
	}
}

// GWN-06: given a client that got a list without the tools of a backend that did not respond, when the backend responds again, then the client
// is notified, although the relay finds the same list as before or has never read one.
func TestListWithoutABackendIsAnnouncedLater(t *testing.T) {
	for name, c := range map[string]struct{ known, connected bool }{
		"a new backend":                {false, false},
		"an unchanged backend":         {true, false},
		"a relay that stays connected": {true, true},
	} {
		bubble(t, name, func(t *testing.T) {
			s, db, l := newScripted(t), memory(t), newLog()
			if c.known {
				end := relaying(t, "earlier", gatewayOver(t, db, at("b", s)), l)
				l.until(t, s)
				end()
			}
			g := gatewayOver(t, db, at("b", s))
			run := func() { relaying(t, "r", g, l, inProduction) }
			if c.connected {
				run()
				time.Sleep(time.Minute)
				g = gatewayOver(t, db, at("b", s)) // another instance
			}
			s.intercept(unavailable)
			for range 2 {
				sees(t, g, of(ann))
			}
			s.intercept(nil)
			if !c.connected {
				run()
			}
			expect.Equal(t, "announced changes of tools", l.count("tools/list_changed", 10*time.Minute), 1)
			sees(t, g, of(ann), "t")
		})
	}
}

// remembered returns the stored hash of the list of tools.
func remembered(t *testing.T, db store.DB) []byte {
	t.Helper()
	items, err := db.Get(t.Context(), store.Key{Table: store.Sessions, Partition: "relay#default#b", Sort: "list#tools"})
	if err != nil || items[0] == nil {
		t.Fatalf("the list was not compared: %v", err)
	}
	return items[0].Value
}

// GWN-03: a holder that cannot renew its lease closes the stream.
func TestStreamGoesWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		db := &mortal{DB: memory(t)}
		relaying(t, "r", gatewayOver(t, db, at("b", s)), newLog())
		expect.Eventually(t, "the stream is open", func() bool { return s.open() == 1 })
		db.dead.Store(true)
		expect.Eventually(t, "the stream is closed", func() bool { return s.open() == 0 })
		db.dead.Store(false)
		expect.Eventually(t, "the stream is open again", func() bool { return s.open() == 1 })
	})
}

// GWN-06: a list that changed while no relay listened is announced once. Unchanged lists are not announced.
func TestMissedChangeIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l := follow(t, plain)
		l.until(t, s)
		s.refuse(http.StatusServiceUnavailable)
		s.hangUp()
		s.list(listing("tools/list", oneTool("t", "u")("tools/list", ""), "resources/list", `{"resources":[{"uri":"x://1","name":"new"}]}`,
			"resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"x://{id}","name":"new"}]}`))
		s.refuse(0)
		l.has(t, "r default b notifications/tools/list_changed")
		l.has(t, "r default b notifications/resources/list_changed")
		s.only(t, 2)
		s.hangUp()
		s.only(t, 3)
		// A new connection after which nothing has changed announces nothing.
		l.silent(t, s)
	})
}

// GWN-06, GWN-07: the lists of a backend without a stream or without notifications are compared periodically.
func TestBackendWithoutStreamIsListedAgain(t *testing.T) {
	for name, change := range map[string]func(*scripted){
		"405":              func(s *scripted) { s.getStatus = http.StatusMethodNotAllowed },
		"no notifications": func(s *scripted) { s.capabilities = `{"tools":{}}` },
		"405, and a list that fails": func(s *scripted) {
			s.getStatus = http.StatusMethodNotAllowed
			var fails atomic.Bool
			fails.Store(true)
			brokenPrompts(s, &fails)
		},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newScripted(t, change)
			l := newLog()
			relaying(t, "r", gatewayOver(t, memory(t), at("b", s)), l)
			expect.Eventually(t, "it was listed twice", func() bool { return len(s.received("tools/list")) > 1 })
			s.list(oneTool("u"))
			l.has(t, "r default b notifications/tools/list_changed")
			before := len(s.received("tools/list"))
			expect.Eventually(t, "it was listed again", func() bool { return len(s.received("tools/list")) > before+2 })
			if len(l) > 0 || s.open() > 0 {
				t.Errorf("announced %q as well, %d streams", l.next(t), s.open())
			}
			expect.AtMost(t, "the open sessions", s.alive(), 2)
		})
	}
}

// GWN-07: a server that serves only POST causes no warnings.
func TestBackendWithoutGETCausesNoWarning(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"404":               func(w http.ResponseWriter) { http.Error(w, "Cannot GET /mcp", http.StatusNotFound) },
		"405 with a reason": refuseWith(http.StatusMethodNotAllowed, -32000, "Method not allowed."),
	} {
		bubble(t, name, func(t *testing.T) {
			s := newScripted(t, func(s *scripted) { s.noSession = true })
			s.onGET(func(w http.ResponseWriter, _ *http.Request) { answer(w) })
			var lines expect.Buffer
			g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, Log: slog.New(slog.NewTextHandler(&lines, nil))})
			relaying(t, "r", g, newLog())
			expect.Eventually(t, "its lists were compared again and again", func() bool { return len(s.received("tools/list")) > 4 })
			expect.Lacks(t, "the log", lines.String(), "level=WARN", "level=ERROR")
			expect.AtMost(t, "the lines", strings.Count(lines.String(), "\n"), 1)
		})
	}
}

// GWN-07: the relay keeps trying a backend that refuses it, with pauses that grow up to a limit. After a success the pauses are
// short again.
func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) { s.getStatus = http.StatusServiceUnavailable })
		var tries []time.Time
		s.intercept(func(_ http.ResponseWriter, r *http.Request, _ got) bool {
			if r.Method == http.MethodGet {
				s.change(func(*scripted) { tries = append(tries, time.Now()) })
			}
			return false
		})
		count := func() (n int) {
			s.change(func(*scripted) { n = len(tries) })
			return n
		}
		relaying(t, "r", gatewayOver(t, memory(t), at("b", s)), newLog(), func(r *relay.Relay) {
			r.MinPause, r.MaxPause = 200*time.Millisecond, 800*time.Millisecond
		})
		expect.Eventually(t, "it was tried so often", func() bool { return count() > 20 })
		for i := range 20 {
			least := min(200*time.Millisecond<<i, 400*time.Millisecond) // half of the longest at most
			if gap := tries[i+1].Sub(tries[i]); gap < least || gap > 2*least {
				t.Errorf("between try %d and the next are %s, want %s to %s", i+1, gap, least, 2*least)
			}
		}
		s.refuse(0)
		expect.Eventually(t, "the stream is open", func() bool { return s.open() == 1 })
		n := count()
		time.Sleep(time.Second) // longer than the longest pause: it was there
		s.hangUp()
		began := time.Now()
		expect.Eventually(t, "the stream is open again", func() bool { return s.open() == 1 })
		if took := tries[n].Sub(began); count() != n+1 || took > 400*time.Millisecond {
			t.Errorf("after a good connection it took %s and %d tries", took, count()-n)
		}
	})
}

// GWN-04: the relay subscribes once to each resource that clients want, and again on each new connection. It unsubscribes when no
// client wants the resource any more.
func TestWantedSubscriptionsArePassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		db, l := memory(t), newLog()
		one, two := gatewayOver(t, db, at("b", s)), gatewayOver(t, db, at("b", s))
		relaying(t, "r", one, l)
		l.until(t, s)
		a, b := wants("x://<1>", "s1"), wants("x://<1>", "s2")
		subscribe(t, two, a, b, a) // at another instance
		expect.Eventually(t, "it is subscribed", func() bool { return len(s.received("resources/subscribe")) == 1 })
		stream := s.received("GET")[0]
		if m := s.received("resources/subscribe")[0]; m.Session != stream.Session || string(m.Params) != `{"uri":"x://<1>"}` {
			t.Errorf("it was subscribed in session %q by %s", m.Session, m.Params)
		}
		unsubscribe(t, one, a)
		time.Sleep(time.Minute)
		expect.AtMost(t, "the unsubscribe requests while a client wants the resource", len(s.received("resources/unsubscribe")), 0)
		s.hangUp()
		expect.Eventually(t, "the next connection subscribes", func() bool { return len(s.received("resources/subscribe")) == 2 })
		expect.Differ(t, "the new session", s.received("resources/subscribe")[1].Session, stream.Session)
		unsubscribe(t, one, b)
		expect.Eventually(t, "it is unsubscribed", func() bool { return len(s.received("resources/unsubscribe")) == 1 })
		// A subscription that is not ended ends by itself.
		left := wants("x://2", "s3")
		left.Until = time.Now().Add(10 * time.Second)
		subscribe(t, two, left)
		expect.Eventually(t, "it is subscribed", func() bool { return len(s.received("resources/subscribe")) == 3 })
		expect.Eventually(t, "it is unsubscribed", func() bool { return len(s.received("resources/unsubscribe")) == 2 })
		expect.Equal(t, "subscriptions at the backend", len(s.received("resources/subscribe")), 3)
	})
}

// GWN-02, GWN-03, GWN-04: the relay sends a backend of 2026-07-28 a subscriptions/listen for the lists of which it declares
// notifications and the resources that clients want.
func TestListenAsksForWhatThereIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) {
			s.stateless, s.capabilities = true, `{"tools":{"listChanged":true},"prompts":{"listChanged":false},"resources":{"subscribe":true}}`
		})
		g := gatewayOver(t, memory(t), at("b", s, func(b *api.Backend) { b.ProtocolVersion = "2026-07-28" }))
		l := newLog()
		relaying(t, "r", g, l)
		l.until(t, s)
		filter := func(i int) string {
			all := s.received("subscriptions/listen")
			if len(all) <= i {
				return ""
			}
			var p struct{ Notifications json.RawMessage }
			_ = json.Unmarshal(all[i].Params, &p)
			if h := all[i].Header; h.Get("Mcp-Method") != "subscriptions/listen" || h.Get("Mcp-Protocol-Version") != "2026-07-28" || h.Get("Mcp-Session-Id") != "" {
				t.Errorf("the headers are %v", h)
			}
			return string(p.Notifications)
		}
		expect.Equal(t, "the notifications that it listens for", filter(0), `{"promptsListChanged":false,"resourcesListChanged":false,"toolsListChanged":true}`)
		subscribe(t, g, wants("x://1", "s1"))
		expect.Eventually(t, "it listens again", func() bool { return filter(1) != "" })
		expect.Equal(t, "the notifications that it listens for", filter(1), `{"promptsListChanged":false,"resourceSubscriptions":["x://1"],"resourcesListChanged":false,"toolsListChanged":false}`)
		expect.Eventually(t, "both are open", func() bool { return s.open() == 2 })
		// The relay announces an update when the subscription takes effect, which is when the relay has read the acknowledgment. A
		// client that unsubscribes earlier is not told, because it no longer wants the resource. So the test waits for it.
		l.has(t, `r default b notifications/resources/updated {"uri":"x://1"}`)
		unsubscribe(t, g, wants("x://1", "s1"))
		s.only(t, 2)
		// The end of a subscription is not announced.
		l.silent(t, s)
	})
}

// GWN-04: while the subscriptions at a backend of 2026-07-28 change, each notification is announced once: none is lost, and none
// is announced from two streams.
func TestNothingComesTwiceWhileSubscriptionsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) { s.stateless = true })
		g, l := gatewayOver(t, memory(t), at("b", s)), newLog()
		subscribe(t, g, wants("x://first", "s1"))
		relaying(t, "r", g, l)
		s.only(t, 1)
		expect.Eventually(t, "the lists are compared", func() bool { return len(s.received("resources/templates/list")) > 0 })
		notified := map[string]int{`r default b notifications/resources/updated {"uri":"x://first"}`: 1}
		send := func(asked, text, announced string) {
			s.sendTo(asked, text)
			notified["r default b "+announced]++
		}
		params := func(uri string, n int) string { return fmt.Sprintf(`{"uri":%q,"n":%d}`, uri, n) }
		update := func(uri string, n int) {
			send(uri, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":`+params(uri, n)+`}`, "notifications/resources/updated "+params(uri, n))
		}
		var all sync.Mutex
		n := 0
		everything := func() {
			all.Lock()
			defer all.Unlock()
			n++
			send(`"toolsListChanged":true`, toolsChanged, "notifications/tools/list_changed")
			update("x://first", n)
		}
		s.change(func(s *scripted) { s.began = everything }) // in the very moment when one more is open
		const more = 3 * 8
		for i := range more {
			uri := fmt.Sprintf("x://%d.", i)
			notified[fmt.Sprintf(`r default b notifications/resources/updated {"uri":%q}`, uri)]++ // its subscription takes effect
			subscribe(t, g, wants(uri, "s1"))
			expect.Eventually(t, "it is asked for", func() (found bool) {
				s.change(func(s *scripted) {
					for _, params := range s.asked {
						found = found || strings.Contains(params, uri)
					}
				})
				return found
			})
			everything()
		}
		expect.Eventually(t, "there are few streams", func() bool { return s.open() <= 1+8 })
		for i := range more {
			all.Lock()
			update(fmt.Sprintf("x://%d.", i), 0)
			all.Unlock()
		}
		got := map[string]int{}
		time.Sleep(time.Minute)
		for len(l) > 0 {
			got[l.next(t)]++
		}
		expect.Map(t, "the announced changes", got, notified)
	})
}

// GWN-07: a list change that a backend reports within a call takes effect before the response, and reaches clients: immediately if the relay
// runs in the process of the call, and otherwise within a minute.
func TestListChangeWithinACall(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s, g, l := follow(t, func(s *scripted) {
			s.stateless = stateless
			s.call = func(x *turn) {
				s.list(oneTool("t", "added"))
				x.notify("notifications/tools/list_changed", `{}`)
				x.result(`{}`)
			}
		}, func(r *relay.Relay) { r.Relist = time.Minute })
		other := gatewayOver(t, g.options.DB, at("b", s))
		for by, within := range map[*Gateway]time.Duration{g: 0, other: time.Minute} {
			s.list(oneTool("t"))
			sees(t, g, of(ann), "t")
			sees(t, other, of(ann), "t")
			began := time.Now()
			x := start(t, by, sessionBased("s1"), "t", "1", `{"name":"t"}`)
			expect.Contains(t, "the response", x.next(t).text, `"result"`)
			sees(t, g, of(ann), "t", "added")
			sees(t, other, of(ann), "t", "added")
			l.has(t, "r default b notifications/tools/list_changed")
			expect.Equal(t, "the announcement is in time", time.Since(began) <= within, true)
			expect.OK(t, x.end(t))
			time.Sleep(5 * time.Minute)
			expect.Len(t, "further announcements", l, 0)
		}
	})
}

// GWN-07: list changes that a backend reports too fast within calls are combined for each kind of list, and the last one still takes effect.
func TestManyListChangesWithinACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g, l := follow(t, func(s *scripted) {
			s.call = func(x *turn) {
				for range 60 {
					x.notify("notifications/tools/list_changed", `{}`)
				}
				s.list(oneTool("t", "last"))
				x.notify("notifications/tools/list_changed", `{}`)
				x.notify("notifications/prompts/list_changed", `{}`)
				x.result(`{}`)
			}
		})
		s.list(oneTool("t"))
		sees(t, g, of(ann), "t")
		x := start(t, g, sessionBased("s1"), "t", "1", `{"name":"t"}`)
		expect.Contains(t, "the response", x.next(t).text, `"result"`)
		expect.OK(t, x.end(t))
		synctest.Wait()
		prompts := 0
		for range len(l) {
			if strings.Contains(<-l, "prompts") {
				prompts++
			}
		}
		expect.Equal(t, "announced changes of prompts", prompts, 1)
		time.Sleep(2 * time.Second)
		sees(t, g, of(ann), "t", "last")
		l.has(t, "r default b notifications/tools/list_changed")
		time.Sleep(time.Hour)
		expect.Len(t, "further announcements", l, 0)
	})
}

// GWN-07: a list change that another instance reports while the relay compares the lists is announced.
func TestListChangeDuringAComparison(t *testing.T) {
	for name, known := range map[string]bool{"the first comparison": false, "a later one": true} {
		bubble(t, name, func(t *testing.T) {
			s, db, l := newScripted(t), memory(t), newLog()
			s.call = func(x *turn) {
				s.list(oneTool("t", "added"))
				x.notify("notifications/tools/list_changed", `{}`)
				x.result(`{}`)
			}
			if known {
				relaying(t, "earlier", gatewayOver(t, db, at("b", s)), l, inProduction)()
				s.list(oneTool("t", "other"))
			}
			l.forget()
			other := gatewayOver(t, db, at("b", s))
			acted := false // the other instance, between the relay's fetch of the tools and its write of their hash
			g := gatewayOver(t, storetest.Hooked{DB: db, OnWrite: func(_ context.Context, ops []store.Op) error {
				if ops[0].Item.Sort == "list#tools" && !acted {
					acted = true
					mustCall(t, other, sessionBased("s1"), "t")
				}
				return nil
			}}, at("b", s))
			relaying(t, "r", g, l, inProduction)
			time.Sleep(10 * time.Second)
			l.forget()
			expect.Equal(t, "announced changes of tools", l.count("tools/list_changed", time.Hour), 1)
			sees(t, g, of(ann), "t", "added")
		})
	}
}
