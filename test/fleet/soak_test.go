//go:build unix

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// Settings for longer runs:
//
//	MCPEVENTS_SOAK=10m MCPEVENTS_SOAK_STORE=dynamodb go test -race -run TestSoak -timeout 20m ./test/fleet
//	MCPEVENTS_SOAK=5m MCPEVENTS_SOAK_ON=aws go test -run TestSoak -timeout 20m ./test/fleet
const (
	soakTimeEnv  = "MCPEVENTS_SOAK"       // the duration; 12s by default
	soakStoreEnv = "MCPEVENTS_SOAK_STORE" // "dynamodb" for DynamoDB Local; SQLite in memory by default
	// soakOnEnv is "aws" for the functions on local AWS with one request per process at a time, or "managed" for two
	// processes that serve many requests each. By default two instances run in the test's process.
	soakOnEnv      = "MCPEVENTS_SOAK_ON"
	soakClientsEnv = "MCPEVENTS_SOAK_CLIENTS" // the number of clients; 50 by default, at least 6
)

// slack is added to time limits, because a busy machine delays the end of a call.
const slack = time.Minute

// stage is the system that the clients of a soak call.
type stage interface {
	// open returns the address of the system. It serves clients until shut.
	open(t testing.TB) *harness.Target
	shut()
	// lastLog returns at most limit bytes from the end of the log.
	lastLog(limit int) string
	// storeRequests returns the number of requests to the store, for the log.
	storeRequests() string
	// sessionKeys returns the keys in the table of sessions that exist now and whose partition has the prefix.
	sessionKeys(ctx context.Context, prefix string) ([]store.Key, error)
	// idle reports whether all work has ended. status describes the remaining work.
	idle() (status string, ok bool)
}

// TestSoak lets 50 session-based and stateless clients call well-behaved and misbehaving backends of both kinds through
// two instances behind one address. The clients answer, refuse, cancel, disconnect, and try to answer for each other.
//
// GWN-08 GWN-09 GWN-10 GWN-11 GWN-12 GWN-13 GWN-14 GWN-15 GWN-17: A client receives only messages of its own calls.
// Progress keeps its order, unusual ids and large numbers stay exact, and every call ends in time. Afterwards no question,
// session or goroutine is left. GWN-03, GWN-04, GWN-05: Streams get the requested notifications and no messages of calls.
func TestSoak(t *testing.T) {
	length := 12 * time.Second
	if text := os.Getenv(soakTimeEnv); text != "" {
		length = expect.Value(time.ParseDuration(text))(t)
	}
	s := &soak{t: t, sound: map[string]*harness.Backend{}, bound: 15 * time.Second}
	if length > time.Minute {
		s.bound = 20 * time.Second // on a shared machine everything may stand still for some seconds
	}
	switch on := os.Getenv(soakOnEnv); on {
	case "":
		s.on = newFleet(t, fleetOptions{
			instances: 2, backends: s.startBackends(), principals: soakers(), callTimeout: s.bound,
			dynamo: os.Getenv(soakStoreEnv) == "dynamodb",
		})
	case "aws", "managed":
		s.on = startFunctions(t, s.startBackends(), s.bound, on == "managed")
	default:
		t.Fatalf("%s is %q, want aws or managed", soakOnEnv, on)
	}
	harness.Eventually(t, harness.Patience, "the relay follows the sound backends", func() bool {
		return s.sound["s25_"].State(t).Streams > 0 && s.sound["s26_"].State(t).Listens > 0
	})
	s.Target = s.on.open(t)
	s.load(length)
	s.on.shut()
	s.checkLeftovers()
}

// soakers returns ten principals that share the backends, and one of another workspace.
func soakers() []principal {
	all := []principal{{"stranger", "elsewhere"}}
	for n := range 10 {
		all = append(all, principal{fmt.Sprint("p", n), ""})
	}
	return all
}

// soak is one run.
type soak struct {
	*harness.Target
	t     *testing.T
	on    stage
	sound map[string]*harness.Backend // by prefix
	bound time.Duration               // the gateway's time limit for a call
	board board

	calls, questions, answered, thefts     atomic.Int64
	cancelled, abandoned, updates, changes atomic.Int64
	endless                                sync.Map // prefix -> *atomic.Int64: calls of test_wait that never end
	vanished                               atomic.Int64
	faults                                 atomic.Int64
	slowest                                atomic.Int64
	counts                                 sync.Map // tool -> *atomic.Int64
}

// startBackends starts backends of both kinds. The misbehaving backend has several URLs, each with another fault in its
// notification stream.
func (s *soak) startBackends() (all []api.Backend) {
	rogue := harness.StartBackend(s.t, backend.Misbehaving)
	for prefix, kind := range map[string]backend.Kind{"s25_": backend.Stateful, "s26_": backend.Stateless} {
		s.sound[prefix] = harness.StartBackend(s.t, kind)
	}
	for _, b := range []struct{ name, prefix, url, version string }{
		{"sound25", "s25_", s.sound["s25_"].URL, api.AutoVersion},
		{"sound26", "s26_", s.sound["s26_"].URL, api.AutoVersion},
		{"rogue25", "r25_", rogue.URL + "?stream=foreign", "2025-11-25"},
		{"rogue26", "r26_", rogue.URL + "?stream=garbage", "2026-07-28"},
		{"drops", "d_", rogue.URL + "?stream=drop", "2026-07-28"},
	} {
		all = append(all, api.Backend{Name: b.name, URL: b.url, Prefix: b.prefix, Workspace: "default", ProtocolVersion: b.version})
	}
	return all
}

// fault fails the test with a message and the end of the log. It reports only the first twenty faults.
func (s *soak) fault(format string, args ...any) {
	if s.faults.Add(1) <= 20 {
		s.t.Errorf(format+"\nthe end of the instances' log:\n%s", append(args, s.on.lastLog(4<<10))...)
	}
}

// pairs returns the number of pairs of a session-based and a stateless client. Four more clients are of other kinds.
func (s *soak) pairs() int {
	text := os.Getenv(soakClientsEnv)
	if text == "" {
		return 23
	}
	n := expect.Value(strconv.Atoi(text))(s.t)
	return max(1, (n-4)/2)
}

// load runs all clients for the given time and waits for them.
func (s *soak) load(length time.Duration) {
	ctx, stop := context.WithTimeout(s.t.Context(), length)
	defer stop()
	var wg sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	for n := range s.pairs() {
		principal := fmt.Sprint("p", n%10)
		wg.Go(func() { s.runSessionBased(ctx, transport, principal, n) })
		wg.Go(func() { s.runStateless(ctx, transport, principal, n) })
	}
	for n := range 3 {
		wg.Go(func() { s.runThief(ctx, transport, fmt.Sprint("p", n)) })
	}
	wg.Go(func() { s.runStranger(ctx, transport) })
	wg.Go(func() { s.changeBackends(ctx) })
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(length + s.bound + 2*slack):
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		s.t.Fatal("a client hangs")
	}
	s.t.Logf("%d calls, the slowest %v; %d questions, %d answered, %d answers from other clients refused; %d calls cancelled, %d abandoned; %d updates and %d changes on streams; %s",
		s.calls.Load(), time.Duration(s.slowest.Load()).Round(time.Millisecond), s.questions.Load(), s.answered.Load(), s.thefts.Load(),
		s.cancelled.Load(), s.abandoned.Load(), s.updates.Load(), s.changes.Load(), s.on.storeRequests())
	for kind, n := range map[string]int64{
		"questions": s.questions.Load(), "answers from other clients": s.thefts.Load(), "cancellations": s.cancelled.Load(),
		"abandoned calls": s.abandoned.Load(), "updates": s.updates.Load(), "changes": s.changes.Load(),
	} {
		if n == 0 {
			s.t.Errorf("got no %s, want some", kind)
		}
	}
	if length >= time.Minute {
		for _, b := range slices.Concat(soundTools, rogueTools) {
			if _, ok := s.counts.Load(b.tool); !ok {
				s.t.Errorf("%s was never called", b.tool)
			}
		}
	}
}

// runSessionBased runs a client with a session. It keeps a stream open and makes one call after the other.
func (s *soak) runSessionBased(ctx context.Context, transport http.RoundTripper, principal string, n int) {
	c := newCaller(&harness.Client{URL: s.MCP, Key: s.Keys[principal], Version: harness.V20251125}, transport)
	if _, err := c.TryInitialize(s.t.Context()); err != nil {
		s.fault("initialize: %v", err)
		return
	}
	subscribed := n%2 == 0
	if subscribed {
		if a, err := c.Try(s.t.Context(), "resources/subscribe", map[string]any{"uri": watched}); err != nil || a.Error != nil {
			s.fault("subscribe: %v %+v", err, a)
		}
	}
	end := s.watch(ctx, subscribed, func(ctx context.Context) (*harness.Stream, error) { return c.TryOpen(ctx, "") })
	s.work(ctx, c, fmt.Sprintf("L%d", n))
	end()
	if n%5 == 4 { // vanish without ending the session
		s.vanished.Add(1)
		return
	}
	if err := c.end(s.t.Context()); err != nil {
		s.fault("end a session: %v", err)
	}
}

// runStateless runs a client of 2026-07-28. It keeps a listen open and makes one call after the other.
func (s *soak) runStateless(ctx context.Context, transport http.RoundTripper, principal string, n int) {
	c := newCaller(s.Stateless(principal), transport)
	filter := map[string]any{"toolsListChanged": true}
	subscribed := n%2 == 0
	if subscribed {
		filter["resourceSubscriptions"] = []string{watched}
	}
	end := s.watch(ctx, subscribed, func(ctx context.Context) (*harness.Stream, error) {
		return c.TryListen(ctx, fmt.Sprint("listen-", n), filter, nil)
	})
	s.work(ctx, c, fmt.Sprintf("M%d", n))
	end()
}

const watched = "test://watched-resource"

// watch keeps a stream open and checks its messages until the caller calls end.
func (s *soak) watch(ctx context.Context, subscribed bool, open func(context.Context) (*harness.Stream, error)) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			stream, err := open(ctx)
			if err != nil {
				if ctx.Err() == nil {
					s.fault("open a stream: %v", err)
				}
				return
			}
			select {
			case <-stream.Ended():
			case <-ctx.Done():
			}
			stream.Close()
			s.inspect(stream.Messages(), subscribed)
		}
	}()
	return func() { cancel(); <-done }
}

// inspect reports messages that do not belong on a client's stream.
func (s *soak) inspect(messages []*harness.Message, subscribed bool) {
	for _, m := range messages {
		switch {
		case marks.Match(m.Raw), strings.Contains(string(m.Raw), "never-asked-for"):
			s.fault("got an unexpected message on a stream: %s", m.Raw)
		case strings.HasSuffix(m.Method, "/list_changed"):
			s.changes.Add(1)
		case m.Method == "notifications/resources/updated" && subscribed && strings.Contains(string(m.Params), watched):
			s.updates.Add(1)
		case m.Method == "notifications/subscriptions/acknowledged":
		case m.Method == "" && m.Result != nil && m.Error == nil: // the end of a listen
		default:
			s.fault("got an unexpected message on a stream: %s", m.Raw)
		}
	}
}

// work makes one call after the other.
func (s *soak) work(ctx context.Context, c *caller, name string) {
	sessionBased := c.Session != ""
	c.onQuestion = func(id string) {
		s.questions.Add(1)
		if err := s.board.put(id); err != nil {
			s.fault("%v", err)
		}
		if rand.IntN(4) == 0 {
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond) // time for a thief
		}
	}
	for n := 0; ctx.Err() == nil; n++ {
		mark := fmt.Sprintf("mk-%s-%d-end", name, n)
		prefix, tools := "s25_", soundTools
		switch rand.IntN(9) {
		case 0, 1:
			prefix = "s26_"
		case 2, 3:
			prefix, tools = "r25_", rogueTools
		case 4, 5:
			prefix, tools = "r26_", rogueTools
		case 6:
			prefix, tools = "d_", rogueTools
		}
		b := draw(tools, sessionBased)
		r := request{tool: prefix + b.tool, mark: mark, id: anyID(n), token: anyToken(mark), arguments: arguments(b, mark)}
		c.choose = chooser(b.answerAll)
		switch rand.IntN(20) {
		case 0:
			s.abandonCall(ctx, c, r)
		case 1:
			r.tool, r.arguments = randomSoundPrefix()+"test_wait", map[string]any{"mark": mark} // without a time it waits forever
			s.cancelCall(ctx, c, r)
		default:
			s.call(c, r, b)
		}
	}
}

// arguments returns a behaviour's arguments with the call's mark.
func arguments(b behaviour, mark string) map[string]any {
	out := map[string]any{"mark": mark}
	for key, v := range b.arguments {
		if v == "MARK" {
			v = mark
		}
		out[key] = v
	}
	return out
}

func randomSoundPrefix() string { return []string{"s25_", "s26_"}[rand.IntN(2)] }

// anyID returns an id for a client's request number n. Other clients use the same ids, and most kinds are easily damaged,
// for example integers that a double cannot hold.
func anyID(n int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf([]string{
		"%d", "9007199254740993%d", `"\u0041\/é%d"`, `"%d"`, "-18446744073709551617%d",
	}[rand.IntN(5)], n))
}

// anyToken returns a progress token that is common to all clients, easily damaged or unique, or no token.
func anyToken(mark string) json.RawMessage {
	if text := []string{"7", "9007199254740995", `"` + mark + `"`, `"t"`, ""}[rand.IntN(5)]; text != "" {
		return json.RawMessage(text)
	}
	return nil
}

// chooser returns a function that chooses a random way to answer a question, with always never silence.
func chooser(always bool) func() string {
	return func() string {
		switch n := rand.IntN(20); {
		case n == 0 && !always:
			return silence
		case n < 3:
			return decline
		case n == 3:
			return cancel
		case n == 4:
			return failing
		}
		return accept
	}
}

// call makes a call to its end and checks everything that it received.
func (s *soak) call(c *caller, r request, b behaviour) {
	counter, _ := s.counts.LoadOrStore(b.tool, new(atomic.Int64))
	counter.(*atomic.Int64).Add(1)
	s.calls.Add(1)
	bound := s.bound*(maxRounds+1) + slack // each input round is a call
	if c.Session != "" {
		bound = s.bound + slack
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), bound)
	defer cancel()
	began := time.Now()
	o, err := c.call(ctx, r)
	took := time.Since(began)
	if o.rounds == 0 {
		for was := s.slowest.Load(); int64(took) > was && !s.slowest.CompareAndSwap(was, int64(took)); was = s.slowest.Load() {
		}
	}
	s.answered.Add(int64(len(o.answers)))
	if err != nil {
		s.fault("%s with mark %s, after %v: %v", r.tool, r.mark, took, err)
		return
	}
	if o.response == nil {
		s.fault("%s with mark %s: the stream ended without a response", r.tool, r.mark)
		return
	}
	s.checkOwn(r, o)
	if b.check != nil {
		if err := b.check(c, r, o); err != nil {
			s.fault("%s with mark %s, answers %v, after %v: %v, got %.500s", r.tool, r.mark, o.answers, took, err, o.text())
		}
	}
}

var marks = regexp.MustCompile(`mk-[A-Za-z0-9-]+?-end|nobody's`)

// checkOwn checks that all messages that a client received belong to its call.
func (s *soak) checkOwn(r request, o *outcome) {
	for _, m := range append(o.messages, *o.response) {
		for _, mark := range marks.FindAllString(string(m.Raw), -1) {
			if mark != r.mark {
				s.fault("%s with mark %s got a message with mark %s: %.500s", r.tool, r.mark, mark, m.Raw)
			}
		}
		if m.Method == "notifications/progress" && !sameToken(m.Params, r.token) {
			s.fault("%s with mark %s and token %s got the progress %.300s", r.tool, r.mark, r.token, m.Raw)
		}
	}
	if string(o.response.ID) != string(r.id) {
		s.fault("%s with mark %s: the response to %s has the id %s", r.tool, r.mark, r.id, o.response.ID)
	}
}

// abandonCall starts a call and disconnects before its end.
func (s *soak) abandonCall(ctx context.Context, c *caller, r request) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+rand.IntN(150))*time.Millisecond)
	defer cancel()
	if o, err := c.call(ctx, r); err == nil && o.response != nil {
		s.checkOwn(r, o) // the call ended before the client left
	}
	s.abandoned.Add(1)
}

// cancelCall makes a call that never ends and cancels it, with a notification or by closing the connection.
func (s *soak) cancelCall(ctx context.Context, c *caller, r request) {
	r.token = nil
	endless, _ := s.endless.LoadOrStore(r.tool[:4], new(atomic.Int64))
	pause := time.Duration(20+rand.IntN(150)) * time.Millisecond
	if c.Session == "" {
		endless.(*atomic.Int64).Add(1)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pause+slack)
		defer cancel()
		timer := time.AfterFunc(pause, cancel)
		defer timer.Stop()
		if o, err := c.call(ctx, r); err == nil {
			s.fault("a call that never ends returned %s", o.text())
		}
		s.cancelled.Add(1)
		return
	}
	r.id = json.RawMessage(fmt.Sprintf(`"cancel-%s"`, r.mark)) // a unique id, so that the cancellation hits only this call
	endless.(*atomic.Int64).Add(1)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.bound+slack)
	defer cancel()
	ended := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := c.call(bounded, r)
		ended <- err
	}()
	time.Sleep(pause)
	if status, err := c.TryNotify(bounded, "notifications/cancelled", map[string]any{"requestId": r.id}); err != nil || status != http.StatusAccepted {
		s.fault("cancel: status %d, %v", status, err)
	}
	if err := <-ended; errors.Is(err, context.DeadlineExceeded) {
		s.fault("%s with mark %s was cancelled and has not ended after %v", r.tool, r.mark, time.Since(began))
	}
	s.cancelled.Add(1)
}

// runThief runs a client that tries to answer other clients' questions from a session of its own.
func (s *soak) runThief(ctx context.Context, transport http.RoundTripper, principal string) {
	c := newCaller(&harness.Client{URL: s.MCP, Key: s.Keys[principal], Version: harness.V20251125}, transport)
	if _, err := c.TryInitialize(s.t.Context()); err != nil {
		s.fault("initialize a thief: %v", err)
		return
	}
	for ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		id, ok := s.board.random()
		if !ok {
			continue
		}
		status, err := c.answer(s.t.Context(), id, "elicitation/create", accept, "mk-thief-0-end")
		if err != nil || status != http.StatusBadRequest {
			s.fault("the answer to another session's question: status %d, %v", status, err)
		}
		s.thefts.Add(1)
	}
	if err := c.end(s.t.Context()); err != nil {
		s.fault("end a thief's session: %v", err)
	}
}

// runStranger runs a client of another workspace, which must not see the backends.
func (s *soak) runStranger(ctx context.Context, transport http.RoundTripper) {
	c := newCaller(s.Stateless("stranger"), transport)
	stream, err := c.TryListen(s.t.Context(), 1, map[string]any{"toolsListChanged": true, "resourceSubscriptions": []string{watched}}, nil)
	if err != nil {
		s.fault("listen as a stranger: %v", err)
		return
	}
	defer stream.Close()
	for ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		o, err := c.call(s.t.Context(), request{tool: "s25_test_echo", mark: "mk-stranger-0-end", id: json.RawMessage("1"), arguments: map[string]any{}})
		if err != nil || o.response == nil || o.response.Error == nil {
			s.fault("a stranger's call: got %v %+v, want an error response", err, o)
		}
	}
	for _, m := range stream.Messages() {
		if m.Method != "notifications/subscriptions/acknowledged" && m.Method != "" { // "" is the end of the listen
			s.fault("a stranger received %s", m.Raw)
		}
	}
}

// changeBackends updates a resource of the well-behaved backends and sometimes changes their tools.
func (s *soak) changeBackends(ctx context.Context) {
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
		for _, b := range s.sound {
			b.UpdateResource(s.t, watched)
			if n%4 == 3 {
				b.ChangeList(s.t, "tools")
			}
		}
	}
}

// checkLeftovers checks that the load left no calls, entries in the store or goroutines behind. Clients that vanished may leave
// some.
func (s *soak) checkLeftovers() {
	t := s.t
	for prefix, b := range s.sound {
		endless, _ := s.endless.LoadOrStore(prefix, new(atomic.Int64))
		want := int(endless.(*atomic.Int64).Load())
		// A cancellation that reaches the backend before its request is lost, as the protocol allows.
		var running int
		ok := harness.Within(t, s.bound+slack, func() bool {
			running = b.State(t).Running
			return running <= want/20
		})
		if !ok {
			t.Errorf("%s: %d of %d cancelled calls still run", prefix, running, want)
		}
		// Abandoned calls of test_wait are cancelled too.
		if got := b.State(t).Cancelled["test_wait"]; got == 0 || got > want+int(s.abandoned.Load()) {
			t.Errorf("%s: %d calls of test_wait were cancelled at the backend; the clients cancelled %d, and abandoned %d calls of any tool", prefix, got, want, s.abandoned.Load())
		}
	}
	for prefix, limit := range map[string]int{
		"q#": 0,                          // questions and answers
		"s#": int(4 * s.vanished.Load()), // sessions, with their streams and subscriptions
		"w#": int(s.vanished.Load()),     // their subscriptions at backends
		// Sessions at the two backends that have sessions: one for each vanished client, and one per principal for each of the
		// two kinds of stateless clients.
		"g#": int(2*s.vanished.Load()) + 2*(10+3),
		"l#": 0, // streams
	} {
		var left []string
		ok := harness.Within(t, s.bound+slack, func() bool {
			keys := expect.Value(s.on.sessionKeys(t.Context(), prefix))(t)
			left = nil
			for _, key := range keys {
				left = append(left, key.Partition+" "+key.Sort)
			}
			return len(keys) <= limit
		})
		if !ok {
			t.Errorf("the store has %d entries %s, want at most %d: %.1000q", len(left), prefix, limit, left)
		}
	}
	var status string
	if !harness.Within(t, s.bound+slack, func() (ok bool) { status, ok = s.on.idle(); return ok }) {
		t.Errorf("after the load there are %s", status)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	t.Log("after the load there are ", status)
}
