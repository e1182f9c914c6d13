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
	"github.com/mcp-events/mcpevents/test/harness"
)

// Settings of the soak, for runs by hand:
//
//	MCPEVENTS_SOAK=10m MCPEVENTS_SOAK_STORE=dynamodb go test -race -run TestSoak -timeout 20m ./test/fleet
//	MCPEVENTS_SOAK=5m MCPEVENTS_SOAK_ON=aws go test -run TestSoak -timeout 20m ./test/fleet
const (
	soakTimeEnv  = "MCPEVENTS_SOAK"       // how long calls are made; 12s by default
	soakStoreEnv = "MCPEVENTS_SOAK_STORE" // "dynamodb" for DynamoDB Local; SQLite in memory by default
	// soakOnEnv is "aws" for the functions on local AWS, a process for each request, or "managed" for
	// two processes that take many; by default it is two instances in the process of the test.
	soakOnEnv      = "MCPEVENTS_SOAK_ON"
	soakClientsEnv = "MCPEVENTS_SOAK_CLIENTS" // how many; 50 by default, 12 at least
)

// slack is how much later than it should a call's end may reach a client on a busy machine.
const slack = 20 * time.Second

// stage is what the clients of a soak call.
type stage interface {
	// open is the one address at which they are served, until shut.
	open(t testing.TB) *harness.Target
	shut()
	// last is the end of the log, of that many bytes at most.
	last(most int) string
	// costs tells what was asked of the store.
	costs() string
	// held are the entries of the table of sessions that are there now, whose partition begins so.
	held(ctx context.Context, prefix string) ([]store.Key, error)
	// rests reports whether nothing goes on any more, and what does.
	rests() (what string, ok bool)
}

// TestSoak has 50 clients, session-based and stateless, call backends of both kinds, that behave and that do not,
// at two instances behind one address. They answer, refuse, cancel, go away, and try to answer for each other.
//
// GWN-08 GWN-09 GWN-10 GWN-11 GWN-12 GWN-13 GWN-14 GWN-15 GWN-17: whatever reaches a client is its
// own; progress keeps its order, odd ids and big numbers come back as they were; every call ends in its time; behind
// it no question, session or goroutine is left. GWN-03, GWN-04, GWN-05: streams get what they asked for and
// nothing of a call.
func TestSoak(t *testing.T) {
	length := 12 * time.Second
	if text := os.Getenv(soakTimeEnv); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		must(t, err)
	}
	s := &soak{t: t, sound: map[string]*harness.Backend{}, bound: 8 * time.Second}
	if length > time.Minute {
		s.bound = 20 * time.Second // there are always some seconds in which nothing goes on
	}
	switch on := os.Getenv(soakOnEnv); on {
	case "":
		s.on = newFleet(t, fleetOptions{
			instances: 2, backends: s.start(), principals: soakers(), callTimeout: s.bound,
			dynamo: os.Getenv(soakStoreEnv) == "dynamodb",
		})
	case "aws", "managed":
		s.on = startFunctions(t, s.start(), s.bound, on == "managed")
	default:
		t.Fatalf("%s is %q; it can be aws or managed", soakOnEnv, on)
	}
	harness.Eventually(t, harness.Patience, "the relay follows the sound backends", func() bool {
		return s.sound["s25_"].State(t).Streams > 0 && s.sound["s26_"].State(t).Listens > 0
	})
	s.Target = s.on.open(t)
	s.load(length)
	s.on.shut()
	s.leftovers()
}

// soakers are ten principals that share the backends, and one of another workspace.
func soakers() []principal {
	all := []principal{{"stranger", "elsewhere"}}
	for n := range 10 {
		all = append(all, principal{fmt.Sprint("p", n), ""})
	}
	return all
}

// soak is a run.
type soak struct {
	*harness.Target
	t     *testing.T
	on    stage
	sound map[string]*harness.Backend // by prefix
	bound time.Duration               // when the gateway gives a call up
	board board

	calls, questions, answered, thefts    atomic.Int64
	cancelled, deserted, updates, changes atomic.Int64
	endless                               sync.Map // prefix -> *atomic.Int64: calls of test_wait without an end
	vanished                              atomic.Int64
	faults                                atomic.Int64
	slowest                               atomic.Int64
	counts                                sync.Map // tool -> *atomic.Int64
}

// start starts backends of both kinds. What the misbehaving one does on its streams is another thing
// for each.
func (s *soak) start() (all []api.Backend) {
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

// fault reports what must not be, and what the log has at that time. The first ones tell enough.
func (s *soak) fault(format string, args ...any) {
	if s.faults.Add(1) <= 20 {
		s.t.Errorf(format+"\nthe instances said last:\n%s", append(args, s.on.last(4<<10))...)
	}
}

// pairs are half of the clients that are not ten of other kinds.
func (s *soak) pairs() int {
	text := os.Getenv(soakClientsEnv)
	if text == "" {
		return 20
	}
	n, err := strconv.Atoi(text)
	must(s.t, err)
	return max(1, (n-10)/2)
}

// load runs all clients for that long, and waits for them.
func (s *soak) load(length time.Duration) {
	ctx, stop := context.WithTimeout(s.t.Context(), length)
	defer stop()
	var wg sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	for n := range s.pairs() {
		who := fmt.Sprint("p", n%10)
		wg.Go(func() { s.sessionBased(ctx, transport, who, n) })
		wg.Go(func() { s.stateless(ctx, transport, who, n) })
	}
	for n := range 3 {
		wg.Go(func() { s.official(ctx, fmt.Sprint("p", n), harness.V20251125, n) })
		wg.Go(func() { s.official(ctx, fmt.Sprint("p", n), harness.V20260728, n) })
		wg.Go(func() { s.thief(ctx, transport, fmt.Sprint("p", n)) })
	}
	wg.Go(func() { s.stranger(ctx, transport) })
	wg.Go(func() { s.disturb(ctx) })
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(length + s.bound + 2*slack):
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		s.t.Fatal("a client hangs")
	}
	s.t.Logf("%d calls, the slowest %v; %d questions, %d answered, %d answers of others refused; %d calls cancelled, %d deserted; %d updates and %d changes on streams; %s",
		s.calls.Load(), time.Duration(s.slowest.Load()).Round(time.Millisecond), s.questions.Load(), s.answered.Load(), s.thefts.Load(),
		s.cancelled.Load(), s.deserted.Load(), s.updates.Load(), s.changes.Load(), s.on.costs())
	for what, n := range map[string]int64{
		"question": s.questions.Load(), "answer of another": s.thefts.Load(), "cancellation": s.cancelled.Load(),
		"deserted call": s.deserted.Load(), "update": s.updates.Load(), "change": s.changes.Load(),
	} {
		if n == 0 {
			s.t.Errorf("not one %s happened", what)
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

// sessionBased is a client with a session: its stream, and one call after the other.
func (s *soak) sessionBased(ctx context.Context, transport http.RoundTripper, who string, n int) {
	c := newCaller(&harness.Client{URL: s.MCP, Key: s.Keys[who], Version: harness.V20251125}, transport)
	if _, err := c.TryInitialize(s.t.Context()); err != nil {
		s.fault("a client with a session: %v", err)
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
	if n%5 == 4 { // it vanishes
		s.vanished.Add(1)
		return
	}
	if err := c.end(s.t.Context()); err != nil {
		s.fault("the end of a session: %v", err)
	}
}

// stateless is a client of 2026-07-28: a listen, and one call after the other.
func (s *soak) stateless(ctx context.Context, transport http.RoundTripper, who string, n int) {
	c := newCaller(s.Stateless(who), transport)
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

// watch keeps a stream open, and looks at all that comes on it, until the function that it
// returns is called.
func (s *soak) watch(ctx context.Context, subscribed bool, open func(context.Context) (*harness.Stream, error)) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			stream, err := open(ctx)
			if err != nil {
				if ctx.Err() == nil {
					s.fault("a stream does not open: %v", err)
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

// inspect holds what came on a stream to what belongs there.
func (s *soak) inspect(messages []*harness.Message, subscribed bool) {
	for _, m := range messages {
		switch {
		case marks.Match(m.Raw), strings.Contains(string(m.Raw), "never-asked-for"):
			s.fault("a stream has %s", m.Raw)
		case strings.HasSuffix(m.Method, "/list_changed"):
			s.changes.Add(1)
		case m.Method == "notifications/resources/updated" && subscribed && strings.Contains(string(m.Params), watched):
			s.updates.Add(1)
		case m.Method == "notifications/subscriptions/acknowledged":
		case m.Method == "" && m.Result != nil && m.Error == nil: // the end of a listen
		default:
			s.fault("a stream has %s", m.Raw)
		}
	}
}

// work makes one call after the other.
func (s *soak) work(ctx context.Context, c *caller, name string) {
	sessionBased := c.Session != ""
	c.asked = func(id string) {
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
		c.choose = chooser(b.answered)
		switch what := rand.IntN(20); {
		case what == 0:
			s.desert(ctx, c, r)
		case what == 1:
			r.tool, r.arguments = prefixOfSound()+"test_wait", map[string]any{"mark": mark} // for ever
			s.giveUp(ctx, c, r)
		default:
			s.call(c, r, b)
		}
	}
}

// arguments are those of a behaviour, with the mark of the call.
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

func prefixOfSound() string { return []string{"s25_", "s26_"}[rand.IntN(2)] }

// anyID is the id of a client's request number n: others have the same, and it is one that is easily
// damaged.
func anyID(n int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf([]string{
		"%d", "9007199254740993%d", `"\u0041\/é%d"`, `"%d"`, "-18446744073709551617%d",
	}[rand.IntN(5)], n))
}

// anyToken is a progress token: the same as of others, damageable, the client's own, or none.
func anyToken(mark string) json.RawMessage {
	if text := []string{"7", "9007199254740995", `"` + mark + `"`, `"t"`, ""}[rand.IntN(5)]; text != "" {
		return json.RawMessage(text)
	}
	return nil
}

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

// call makes a call to its end and looks at all that came.
func (s *soak) call(c *caller, r request, b behaviour) {
	counter, _ := s.counts.LoadOrStore(b.tool, new(atomic.Int64))
	counter.(*atomic.Int64).Add(1)
	s.calls.Add(1)
	bound := s.bound*(maxRounds+1) + slack // a call in rounds is as many calls
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
		s.fault("%s of %s, after %v: %v", r.tool, r.mark, took, err)
		return
	}
	if o.response == nil {
		s.fault("%s of %s: the stream ended without a response", r.tool, r.mark)
		return
	}
	s.own(r, o)
	if b.check != nil {
		if err := b.check(c, r, o); err != nil {
			s.fault("%s of %s, answers %v, after %v: %v, got %.500s", r.tool, r.mark, o.answers, took, err, o.text())
		}
	}
}

var marks = regexp.MustCompile(`mk-[A-Za-z0-9-]+?-end|nobody's`)

// own holds all that a client got to its being this client's.
func (s *soak) own(r request, o *outcome) {
	for _, m := range append(o.messages, *o.response) {
		for _, mark := range marks.FindAllString(string(m.Raw), -1) {
			if mark != r.mark {
				s.fault("%s of %s got what is of %s: %.500s", r.tool, r.mark, mark, m.Raw)
			}
		}
		if m.Method == "notifications/progress" && !sameToken(m.Params, r.token) {
			s.fault("%s of %s with the token %s got the progress %.300s", r.tool, r.mark, r.token, m.Raw)
		}
	}
	if string(o.response.ID) != string(r.id) {
		s.fault("%s of %s: the response to %s has the id %s", r.tool, r.mark, r.id, o.response.ID)
	}
}

// desert begins a call and goes away in the middle.
func (s *soak) desert(ctx context.Context, c *caller, r request) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+rand.IntN(150))*time.Millisecond)
	defer cancel()
	if o, err := c.call(ctx, r); err == nil && o.response != nil {
		s.own(r, o) // it was faster
	}
	s.deserted.Add(1)
}

// giveUp makes a call that never ends and cancels it: by a notification, or a closed connection.
func (s *soak) giveUp(ctx context.Context, c *caller, r request) {
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
			s.fault("a call without an end has %s", o.text())
		}
		s.cancelled.Add(1)
		return
	}
	r.id = json.RawMessage(fmt.Sprintf(`"cancel-%s"`, r.mark)) // what is cancelled must not have the id of another
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
	if err := c.notify(bounded, "notifications/cancelled", map[string]any{"requestId": r.id}); err != nil {
		s.fault("cancel: %v", err)
	}
	if err := <-ended; errors.Is(err, context.DeadlineExceeded) {
		s.fault("%s of %s was cancelled and has not ended after %v", r.tool, r.mark, time.Since(began))
	}
	s.cancelled.Add(1)
}

// thief answers the questions of others, in a session of its own.
func (s *soak) thief(ctx context.Context, transport http.RoundTripper, who string) {
	c := newCaller(&harness.Client{URL: s.MCP, Key: s.Keys[who], Version: harness.V20251125}, transport)
	if _, err := c.TryInitialize(s.t.Context()); err != nil {
		s.fault("a thief's session: %v", err)
		return
	}
	for ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		id, ok := s.board.any()
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
		s.fault("the end of a thief's session: %v", err)
	}
}

// stranger may see none of the backends.
func (s *soak) stranger(ctx context.Context, transport http.RoundTripper) {
	c := newCaller(s.Stateless("stranger"), transport)
	stream, err := c.TryListen(s.t.Context(), 1, map[string]any{"toolsListChanged": true, "resourceSubscriptions": []string{watched}}, nil)
	if err != nil {
		s.fault("a stranger's listen: %v", err)
		return
	}
	defer stream.Close()
	for ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		o, err := c.call(s.t.Context(), request{tool: "s25_test_echo", mark: "mk-stranger-0-end", id: json.RawMessage("1"), arguments: map[string]any{}})
		if err != nil || o.response == nil || o.response.Error == nil {
			s.fault("a stranger called a backend: %v %+v", err, o)
		}
	}
	for _, m := range stream.Messages() {
		if m.Method != "notifications/subscriptions/acknowledged" && m.Method != "" { // "" is the end of the listen
			s.fault("a stranger is notified: %s", m.Raw)
		}
	}
}

// disturb has the sound backends change.
func (s *soak) disturb(ctx context.Context) {
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

// leftovers holds what is left behind the load to what may be.
func (s *soak) leftovers() {
	t := s.t
	for prefix, b := range s.sound {
		endless, _ := s.endless.LoadOrStore(prefix, new(atomic.Int64))
		want := int(endless.(*atomic.Int64).Load())
		// A cancellation may come to the backend before the request, which the protocol lets be lost.
		var running int
		ok := harness.Within(t, s.bound+slack, func() bool {
			running = b.State(t).Running
			return running <= want/20
		})
		if !ok {
			t.Errorf("%s: %d of %d calls without an end still run", prefix, running, want)
		}
		// Whoever deserts a call of this tool that has an end cancels that, too.
		if got := b.State(t).Cancelled["test_wait"]; got == 0 || got > want+int(s.deserted.Load()) {
			t.Errorf("%s: %d calls of test_wait were cancelled there; here %d without an end, and %d of any tool were deserted", prefix, got, want, s.deserted.Load())
		}
	}
	for prefix, most := range map[string]int{
		"q#": 0,                          // questions and answers
		"s#": int(4 * s.vanished.Load()), // sessions, with their streams and subscriptions
		"w#": int(s.vanished.Load()),     // what they are subscribed to at backends
		// Sessions at the two backends that have them: those of clients that vanished, and those
		// of principals, who have two kinds of clients of 2026-07-28.
		"g#": int(2*s.vanished.Load()) + 2*(10+3),
		"l#": 0, // streams
	} {
		var left []string
		ok := harness.Within(t, s.bound+slack, func() bool {
			keys, err := s.on.held(t.Context(), prefix)
			must(t, err)
			left = nil
			for _, key := range keys {
				left = append(left, key.Partition+" "+key.Sort)
			}
			return len(keys) <= most
		})
		if !ok {
			t.Errorf("the store holds %d entries %s: %.1000q", len(left), prefix, left)
		}
	}
	var what string
	if !harness.Within(t, s.bound+slack, func() (ok bool) { what, ok = s.on.rests(); return ok }) {
		t.Errorf("behind the load there are %s", what)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	t.Log("behind the load there are ", what)
}
