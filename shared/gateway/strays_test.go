package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// newStraying returns a session-based backend that sends its questions and log messages on the GET stream of the session, and drops them
// without such a stream, as version 1 of the official TypeScript SDK does.
func newStraying(t *testing.T, call func(*turn)) *scripted {
	t.Helper()
	s := serving(t, false, call)
	s.strays = map[string]bool{
		"elicitation/create": true, "sampling/createMessage": true, "roots/list": true, "notifications/message": true, "notifications/cancelled": true,
	}
	return s
}

// newStrayingPair starts a backend for two calls, which both send their names to started: the newer one waits for finish, and the function
// handles the older one.
func newStrayingPair(t *testing.T, started chan<- string, finish <-chan bool, older func(*turn)) *scripted {
	t.Helper()
	return newStraying(t, func(x *turn) {
		started <- x.argument()
		if x.argument() == "newer" {
			<-finish
			x.result(`{}`)
			return
		}
		older(x)
	})
}

// asksName asks the user for a name and returns it.
func asksName(x *turn) {
	name := x.ask("elicitation/create", form)
	x.result(text("%s", name.of("content")))
}

// GWN-10, GWN-12: a question on the GET stream of the session reaches a client with a session on the response stream of the call, and its
// answer reaches the backend, from whichever instance.
func TestStrayQuestionsReachAClientWithASession(t *testing.T) {
	s := newStraying(t, func(x *turn) {
		x.notify("notifications/message", `{"level":"info","data":"thinking"}`)
		asksName(x)
	})
	g := instances(t, 2, s)
	for range 2 {
		x := start(t, g[0], sessionBased("s1"), "tool", "1", `{"name":"tool"}`)
		expect.Contains(t, "the log message", x.next(t).text, "thinking")
		id, _ := x.question(t)
		expect.OK(t, g[1].Answer(t.Context(), sessionBased("s1"), id, json.RawMessage(`{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"accept","content":{"name":"Ada"}}}`)))
		expect.Contains(t, "the result", x.next(t).text, `Ada`)
		expect.OK(t, x.end(t))
		expect.Eventually(t, "the stream is closed", func() bool { return s.open() == 0 })
		checkGone(t, g[0].options.DB, id)
	}
	expect.Len(t, "the sessions at the backend", s.received("initialize"), 2) // one is the gateway's own
}

// two starts two calls in one session. It returns when both run at the backend, which sends their names to started.
func two(t *testing.T, g *Gateway, started <-chan string) (older, newer *calling) {
	t.Helper()
	older = start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool","arguments":{"n":"older"}}`)
	expect.Receive(t, "the older call", started)
	newer = start(t, g, sessionBased("s1"), "tool", "2", `{"name":"tool","arguments":{"n":"newer"}}`)
	expect.Receive(t, "the newer call", started)
	return older, newer
}

// argument returns the argument n of a call.
func (t *turn) argument() string {
	n, _ := jsonrpc.String(jsonrpc.Member(jsonrpc.Member(t.Params, "arguments"), "n"))
	return n
}

// GWN-10: given two calls of a session, a question on its GET stream reaches the client in the newer one, and the client can answer it after
// the newer one has ended, because the older one may have asked.
func TestStrayQuestionOutlivesTheCallThatCarriedIt(t *testing.T) {
	started, ask, finish := make(chan string), make(chan bool), make(chan bool)
	s := newStrayingPair(t, started, finish, func(x *turn) {
		<-ask
		asksName(x)
	})
	g := instances(t, 1, s)[0]
	older, newer := two(t, g, started)
	expect.Equal(t, "open streams", s.open(), 1)
	close(ask)
	id, _ := newer.question(t)
	close(finish)
	expect.OK(t, newer.end(t))
	expect.OK(t, g.Answer(t.Context(), sessionBased("s1"), id, accepting(id)))
	older.responds(t)
	checkGone(t, g.options.DB, id)
}

// GWN-10: a client learns on another call of its session that the backend has withdrawn a question whose call has ended.
func TestWithdrawalAfterTheCallThatCarriedTheQuestion(t *testing.T) {
	started, ask, withdraw, finish := make(chan string), make(chan bool), make(chan bool), make(chan bool)
	s := newStrayingPair(t, started, finish, func(x *turn) {
		<-ask
		x.send("1", "elicitation/create", form)
		<-withdraw
		x.notify("notifications/cancelled", `{"requestId":1}`)
		<-finish
		x.result(`{}`)
	})
	g := instances(t, 1, s)[0]
	older, newer := two(t, g, started)
	close(ask)
	id, _ := newer.question(t)
	finish <- true
	expect.OK(t, newer.end(t))
	close(withdraw)
	expect.Contains(t, "the withdrawal", older.next(t).text, id)
	checkGone(t, g.options.DB, id)
	finish <- true
	older.responds(t)
}

// GWN-10: the next call of a session gets the log messages and withdrawals that the backend sends on the GET stream after a response. Waiting
// log messages leave room for questions.
func TestStrayNotificationsWaitForTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan bool)
		s := newStraying(t, func(x *turn) {
			x.send("1", "elicitation/create", form)
			<-finish
			x.result(`{}`)
		})
		g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, StreamLinger: time.Minute})
		x := start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool"}`)
		id, _ := x.question(t)
		close(finish)
		expect.OK(t, x.end(t))
		for range 20 {
			s.notify(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"done"}}`)
		}
		s.notify(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		s.notify(`{"jsonrpc":"2.0","id":"late","method":"roots/list"}`)
		time.Sleep(5 * time.Second)
		s.call = func(x *turn) { x.result(`{}`) }
		x = start(t, g, sessionBased("s1"), "tool", "2", `{"name":"tool"}`)
		for range 8 {
			expect.Contains(t, "the log message", x.next(t).text, "done")
		}
		expect.Contains(t, "the withdrawal", x.next(t).text, id)
		expect.Contains(t, "the question", x.next(t).text, "roots/list")
		x.responds(t)
		checkGone(t, g.options.DB, id)
	})
}

// Progress on the GET stream of the session reaches the client in the call that has its token.
func TestStrayProgressReachesItsCall(t *testing.T) {
	started, finish := make(chan string), make(chan bool)
	s := newStraying(t, func(x *turn) {
		started <- x.argument()
		if x.argument() == "newer" {
			x.notify("notifications/progress", `{"progressToken":"unknown","progress":1}`)
			x.notify("notifications/progress", `{"progressToken":"p1","progress":1}`)
		}
		<-finish
		x.result(`{}`)
	})
	s.strays["notifications/progress"] = true
	g := instances(t, 1, s)[0]
	older := start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool","arguments":{"n":"older"},"_meta":{"progressToken":"p1"}}`)
	expect.Receive(t, "the older call", started)
	newer := start(t, g, sessionBased("s1"), "tool", "2", `{"name":"tool","arguments":{"n":"newer"},"_meta":{"progressToken":"p2"}}`)
	expect.Receive(t, "the newer call", started)
	expect.Contains(t, "the progress", older.next(t).text, `{"progressToken":"p1","progress":1}`)
	close(finish)
	for _, c := range []*calling{older, newer} {
		c.responds(t)
	}
}

// GWN-10: given two calls of a session, a question on its GET stream and its withdrawal reach the client in the older one if the newer one
// accepts only JSON.
func TestStrayQuestionAvoidsACallThatAcceptsOnlyJSON(t *testing.T) {
	started, ask, finish := make(chan string), make(chan bool), make(chan bool)
	s := newStrayingPair(t, started, finish, func(x *turn) {
		<-ask
		x.send("1", "elicitation/create", form)
		<-ask
		x.notify("notifications/cancelled", `{"requestId":2}`)
		x.notify("notifications/cancelled", `{"requestId":1}`)
		asksName(x)
	})
	g := instances(t, 1, s)[0]
	older := start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool","arguments":{"n":"older"}}`)
	expect.Receive(t, "the older call", started)
	newer := make(chan outcome)
	go func() {
		newer <- called(t, g, sessionBased("s1"), `,"arguments":{"n":"newer"}`, func(c *api.Call) { c.ResponseOnly = true })
	}()
	expect.Receive(t, "the newer call", started)
	ask <- true
	withdrawn, _ := older.question(t)
	close(ask)
	expect.Contains(t, "the withdrawal", older.next(t).text, withdrawn)
	older.accept(t, g, "s1")
	older.responds(t)
	close(finish)
	expect.OK(t, (<-newer).err)
}

// A client that cannot be asked gets no GET stream, and one that accepts no event stream makes the question fail immediately.
func TestStrayQuestionsToClientsThatCannotAnswer(t *testing.T) {
	s := newStraying(t, func(x *turn) {
		if x.argument() == "silent" {
			x.result(`{}`)
			return
		}
		x.result(text("%s", jsonrpc.Member(x.ask("elicitation/create", form).Error, "message")))
	})
	g := instances(t, 1, s)[0]
	incapable := someone(v2025)
	incapable.Session, incapable.Capabilities = "incapable", json.RawMessage(`{}`)
	for _, client := range []api.Client{incapable, someone(v2026)} {
		x := start(t, g, client, "tool", "1", `{"name":"tool","arguments":{"n":"silent"}}`)
		expect.OK(t, x.end(t))
	}
	expect.Len(t, "the GET streams", s.received("GET"), 0)
	o := called(t, g, someone(v2025), "", func(c *api.Call) { c.ResponseOnly = true })
	expect.Contains(t, "the result", string(o.response), "no running call can answer")
}

// GWN-10: a GET stream that breaks during a call is opened again.
func TestStrayStreamIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan bool)
		s := newStraying(t, func(x *turn) {
			<-goOn
			asksName(x)
		})
		g := instances(t, 1, s)[0]
		x := start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool"}`)
		synctest.Wait()
		s.hangUp()
		time.Sleep(2 * time.Second)
		close(goOn)
		x.accept(t, g, "s1")
		expect.OK(t, x.end(t))
	})
}

// GWN-10: a process that is not frozen after a call keeps the stream for the next call, and closes it later. A question that arrives
// meanwhile waits for the next call for ten seconds.
func TestStrayStreamLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStraying(t, func(x *turn) { x.result(`{}`) })
		g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, StreamLinger: time.Minute})
		ask := func(id string) {
			s.notify(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"roots/list"}`, id))
			synctest.Wait()
		}
		for range 3 {
			mustCall(t, g, sessionBased("s1"), "tool")
			time.Sleep(50 * time.Second)
		}
		expect.Len(t, "the GET streams", s.received("GET"), 1)
		ask("late")
		time.Sleep(9 * time.Second)
		expect.Len(t, "answers", s.received(""), 0)
		time.Sleep(2 * time.Second)
		expect.Contains(t, "the answer to a question without a call", s.next(t, "").Raw, "no running call can answer")
		expect.Equal(t, "open streams after a minute", s.open(), 0)

		mustCall(t, g, sessionBased("s1"), "tool")
		ask("withdrawn")
		s.notify(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"withdrawn"}}`)
		ask("early")
		x := start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool"}`)
		id, _ := jsonrpc.String(jsonrpc.Member([]byte(x.next(t).text), "id"))
		expect.OK(t, x.end(t))
		expect.OK(t, g.Answer(t.Context(), sessionBased("s1"), id, json.RawMessage(`{"jsonrpc":"2.0","id":"`+id+`","result":{"roots":[]}}`)))
		expect.Contains(t, "the answer after the response", s.next(t, "").Raw, `"id":"early","result"`)
		time.Sleep(time.Minute + time.Second)
		expect.Len(t, "answers", s.received(""), 2)
	})
}

// A server that shuts down closes the streams that wait for further calls, and lets running calls receive their questions.
func TestStrayStreamsAreClosedAtAShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStraying(t, func(x *turn) { x.result(`{}`) })
		g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, StreamLinger: time.Minute})
		mustCall(t, g, sessionBased("s1"), "tool")
		s.call = asksName
		x := start(t, g, sessionBased("s2"), "tool", "1", `{"name":"tool"}`)
		synctest.Wait()
		expect.Equal(t, "open streams before", s.open(), 2)
		g.CloseStreams()
		synctest.Wait()
		expect.Equal(t, "open streams of running calls", s.open(), 1)
		x.accept(t, g, "s2")
		expect.OK(t, x.end(t))
		synctest.Wait()
		expect.Equal(t, "open streams after the last call", s.open(), 0)
	})
}

// GWN-10: if the backend has forgotten the session, for example after a restart, the repeated call gets its questions, too.
func TestStrayQuestionAfterALostSession(t *testing.T) {
	s := newStraying(t, func(x *turn) { x.result(`{}`) })
	g := instances(t, 1, s)[0]
	mustCall(t, g, sessionBased("s1"), "tool")
	s.forget()
	s.call = asksName
	x := start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool"}`)
	x.accept(t, g, "s1")
	x.responds(t)
}

// A backend that answers a GET only with the first message of the stream delays one call, and not each.
func TestStrayStreamWithoutAnAnswer(t *testing.T) {
	for name, linger := range map[string]time.Duration{"with linger": time.Minute, "without": 0} {
		bubble(t, name, func(t *testing.T) {
			s := newStraying(t, func(x *turn) { x.result(`{}`) })
			s.onGET(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			g := newGateway(t, Options{Backends: []api.Backend{at("b", s)}, StreamLinger: linger})
			mustCall(t, g, sessionBased("s1"), "tool")
			for _, session := range []string{"s1", "s2", "s1"} {
				began := time.Now()
				mustCall(t, g, sessionBased(session), "tool")
				expect.Equal(t, "the call is fast", time.Since(began) < 200*time.Millisecond, true)
			}
		})
	}
}

// GWN-10: a backend without GET streams, or whose GET route is missing, is asked once for each session and not before each call, and again
// after five minutes.
func TestStrayStreamThatIsRefused(t *testing.T) {
	for _, status := range []int{400, 404, 405} {
		bubble(t, fmt.Sprint(status), func(t *testing.T) {
			s := newStraying(t, func(x *turn) { x.result(`{}`) })
			gets := 0
			s.onGET(func(w http.ResponseWriter, _ *http.Request) { gets++; w.WriteHeader(status) })
			g := instances(t, 1, s)[0]
			for range 3 {
				mustCall(t, g, sessionBased("s1"), "tool")
			}
			expect.Equal(t, "GET requests", gets, 1)
			time.Sleep(5*time.Minute + time.Second)
			mustCall(t, g, sessionBased("s1"), "tool")
			expect.Equal(t, "GET requests after five minutes", gets, 2)
		})
	}
}

// The retry field of a stream is obeyed, however long it is (2025-11-25, Transports).
func TestStrayStreamObeysTheRetryField(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStraying(t, func(x *turn) { time.Sleep(50 * time.Second); x.result(`{}`) })
		var gets []time.Duration
		began := time.Now()
		s.onGET(func(w http.ResponseWriter, _ *http.Request) {
			gets = append(gets, time.Since(began))
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "id: 1\nretry: 20000\ndata:\n\n")
		})
		g := instances(t, 1, s)[0]
		mustCall(t, g, sessionBased("s1"), "tool")
		expect.Equal(t, "requests", fmt.Sprint(gets), "[0s 20s 40s]")
	})
}

// GWN-10: a backend that has not yet noticed the end of an earlier call's stream delays the next call, which gets its questions. While another
// instance has the stream, the gateway asks for it every second, because questions get lost after that instance has closed it.
func TestStrayStreamAfterAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStraying(t, asksName)
		conflicts := 1
		s.intercept(func(w http.ResponseWriter, r *http.Request, _ got) bool {
			conflict := r.Method == http.MethodGet && conflicts > 0
			if conflict {
				conflicts--
				w.WriteHeader(http.StatusConflict)
			}
			return conflict
		})
		g := instances(t, 1, s)[0]
		x := start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool"}`)
		x.accept(t, g, "s1")
		expect.OK(t, x.end(t))

		conflicts = 20
		goOn := make(chan bool)
		s.call = func(x *turn) { <-goOn; asksName(x) }
		x = start(t, g, sessionBased("s1"), "tool", "1", `{"name":"tool"}`)
		time.Sleep(25 * time.Second)
		close(goOn)
		x.accept(t, g, "s1")
		expect.OK(t, x.end(t))
	})
}
