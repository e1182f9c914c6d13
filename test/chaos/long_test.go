//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// Settings of the long run, for example:
//
//	make chaos CHAOS=1h
//	MCPEVENTS_CHAOS=5m MCPEVENTS_CHAOS_RATE=20 go test -v -run TestChaosOnAWS -timeout 30m ./test/chaos
const (
	chaosTimeEnv = "MCPEVENTS_CHAOS"      // how long events are published; 20s by default, 5m in a full run
	chaosRateEnv = "MCPEVENTS_CHAOS_RATE" // events per second; 40 stand-alone and 8 on AWS by default
	chaosSeedEnv = "MCPEVENTS_CHAOS_SEED" // repeats the choices of a run that logged its seed
)

// TestChaos publishes events for [chaosTimeEnv] while the server, clients and endpoints fail at random and the catalog
// changes. Every accepted event must reach every consumer that wants it, or become a dead letter of that consumer, or be
// announced to it as a gap. All others are lost.
func TestChaos(t *testing.T) {
	t.Parallel()
	var env []string
	for name, value := range chaotic {
		env = append(env, name+"="+value)
	}
	s := harness.StartServer(t, harness.ServerOptions{
		Fast: true, Catalog: chaosCatalog(0), Callers: chaosCallers(), Args: []string{"--log-level", "warn"}, Env: env,
	})
	(&chaos{
		t: t, target: &s.Target, rate: 40,
		setCatalog: s.SetCatalog,
		kill: func(r *rand.Rand) error {
			if r.IntN(4) == 0 {
				if err := s.TryStop(); err != nil {
					return err
				}
			} else {
				s.Kill()
			}
			return s.TryStart(t.Context())
		},
		pause: 5 * time.Second,
	}).run()
}

// TestChaosOnAWS does the same with functions on local AWS, whose processes it kills. Two instances of the MCP endpoint serve many requests
// each, so that clients continue at another instance.
func TestChaosOnAWS(t *testing.T) {
	t.Parallel()
	a := harness.StartAWS(t, harness.AWSOptions{
		// Functions may run for half of it. On a slow machine the emulators answer so slowly that a shorter time is too short.
		Visibility: 20 * time.Second, Catalog: chaosCatalog(0), Callers: chaosCallers(), Env: chaotic,
		Managed: runner.Managed{Instances: 2, AtOnce: 64}, Fast: true,
	})
	(&chaos{
		t: t, target: &a.Target, rate: 8,
		setCatalog: func(text string) error { return a.SetCatalog(t.Context(), t, text) },
		kill: func(r *rand.Rand) error {
			switch r.IntN(8) {
			case 0:
				a.Retire("StreamFunction")
			case 1, 2:
				a.KillOf("StreamFunction")
			case 3:
				a.KillAny()
			default:
				a.Kill() // of those on an event's way
			}
			return nil
		},
		pause:  2 * time.Second,
		depths: func() (int, []string) { return a.QueueDepths(t.Context(), t) },
	}).run()
}

// chaotic settings let events be given up, and kills be survived, within minutes.
var chaotic = map[string]string{
	"MCPEVENTS_WEBHOOK_TIMEOUT":       "4s",
	"MCPEVENTS_RETRY_SCHEDULE":        retries(),
	"MCPEVENTS_EVENTS_RETRY_SCHEDULE": retries(),
	"MCPEVENTS_HEARTBEAT":             "5s",
	"MCPEVENTS_STREAM_MAX_AGE":        "1m",
	"MCPEVENTS_LOG_LEVEL":             "warn",
}

// retries returns the schedule. In a short run all interruptions are short, but a busy machine may need more time to answer.
func retries() string {
	schedule := "0s,1s,1s,2s,2s,4s,4s,8s,8s,16s,16s,32s"
	if os.Getenv(chaosTimeEnv) == "" {
		schedule += ",64s,64s"
	}
	return schedule
}

// warden is a principal that may operate the workspace of the others.
const warden = "warden"

func chaosCallers() []harness.Caller {
	return append(harness.Callers(), harness.Caller{Principal: warden, Scopes: append([]string{"events:operate"}, harness.All...)})
}

// chaosCatalog returns the catalog after a number of changes. Each change adds an event type and removes an older one.
func chaosCatalog(changes int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `events:
  - name: order.created
    uriTemplate: event://chaos/orders/{region}/created
    description: Version %[1]d.
    filters: {shade: /shade}
  - name: ticket.changed
    uriTemplate: event://chaos/tickets/{region}/changed
    description: Version %[1]d.
    order: none
    filters: {shade: /shade}
`, changes)
	for n := max(1, changes-keptTypes+1); n <= changes; n++ {
		fmt.Fprintf(&b, "  - {name: added.type%d, uri: %q}\n", n, addedURI(n))
	}
	return b.String()
}

// keptTypes is how many of the added event types a catalog has.
const keptTypes = 60

func addedURI(n int) string { return fmt.Sprintf("event://chaos/added/n%d", n) }

// chaos is one run of [TestChaos] or [TestChaosOnAWS].
type chaos struct {
	t          *testing.T
	target     *harness.Target
	rate       int // events per second
	setCatalog func(text string) error
	kill       func(*rand.Rand) error
	pause      time.Duration // between two kills, on average
	// depths returns how many messages are queued and describes them by queue; nil if the test cannot see them.
	depths func() (queued int, byQueue []string)

	length    time.Duration
	seed      uint64
	book      *book
	door      *door
	consumers []*ledger
	listeners []*listener

	mu                                  sync.Mutex
	kills, clientKills, breaks, changes int
	faults                              []fault
}

// fault is one thing that the run did to a server, a client or an endpoint.
type fault struct {
	at   time.Time
	text string
}

func (c *chaos) run() {
	c.length = time.Duration(harness.Size(20, 300)) * time.Second
	c.settings()
	c.book, c.door = newBook(), newDoor(c.t)
	c.consume()
	c.t.Logf("%d consumers are ready; publishing %d events per second for %v (%s=%d)", len(c.consumers), c.rate, c.length, chaosSeedEnv, c.seed)

	ctx, stop := context.WithTimeout(c.t.Context(), c.length)
	defer stop()
	var wg sync.WaitGroup
	for n, do := range []func(context.Context, *rand.Rand){
		c.publish, c.publish, c.publish, c.publish, c.killServers, c.killClients, c.breakEndpoints, c.outage, c.changeCatalog, c.progress,
	} {
		r := rand.New(rand.NewPCG(c.seed, uint64(n)))
		wg.Go(func() { do(ctx, r) })
	}
	wg.Wait()
	c.settle()
	c.report()
}

func (c *chaos) settings() {
	c.t.Helper()
	var err error
	if text := os.Getenv(chaosTimeEnv); text != "" {
		if c.length, err = time.ParseDuration(text); err != nil {
			c.t.Fatalf("%s: %v", chaosTimeEnv, err)
		}
	}
	if text := os.Getenv(chaosRateEnv); text != "" {
		if c.rate, err = strconv.Atoi(text); err != nil {
			c.t.Fatalf("%s: %v", chaosRateEnv, err)
		}
	}
	c.seed = rand.Uint64()
	if text := os.Getenv(chaosSeedEnv); text != "" {
		if c.seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			c.t.Fatalf("%s: %v", chaosSeedEnv, err)
		}
	}
}

const (
	orders, tickets = "order.created", "ticket.changed"
	outageName      = "webhook-with-outages"
	hookName        = "client-webhook-with-outages"
)

// consume starts the consumers.
func (c *chaos) consume() {
	add := func(name string, w wish) *ledger {
		l := newLedger(name, w)
		c.consumers = append(c.consumers, l)
		return l
	}
	t, s := c.t, c.target
	all, ordered := "event://chaos", "event://chaos/orders"
	one := func(n int) string { return fmt.Sprintf("event://chaos/orders/r%d/created", n) }

	register(t, s, c.door, add("webhook-of-everything", wish{below: all}), all)
	register(t, s, c.door, add("webhook-of-a-pattern", wish{below: "event://chaos/tickets"}), "event://chaos/tickets/*/changed")
	for n := range regions {
		l := add(fmt.Sprintf("webhook-that-fails-at-times-%d", n), wish{below: one(n)})
		register(t, s, c.door, l, one(n))
	}
	l := add(outageName, wish{below: one(0)})
	l.outages = true
	register(t, s, c.door, l, one(0))
	l = add(hookName, wish{below: one(1), shade: "dark"})
	l.outages = true
	follow(t, l, byWebhook(s, c.door, orders, map[string]any{"region": "r1", "shade": "dark"}))

	mortal := func(l *ledger, mode, name string, flags ...string) {
		l.outages = mode == client.ModeWebhook
		l.ordered = !l.outages
		c.listeners = append(c.listeners, startListener(t, s, l, mode, name, flags...))
	}
	mortal(add("listener, webhook", wish{below: ordered, shade: "light"}), client.ModeWebhook, orders, "--arg", "shade=light")
	mortal(add("listener, webhook with a short life", wish{below: "event://chaos/tickets/r2"}), client.ModeWebhook, tickets, "--arg", "region=r2", "--ttl", "1m")
	mortal(add("listener, poll", wish{below: ordered}), client.ModePoll, orders)
	mortal(add("listener, poll of one region", wish{below: one(3)}), client.ModePoll, orders, "--arg", "region=r3")
	mortal(add("listener, push", wish{below: ordered, shade: "dark"}), client.ModePush, orders, "--arg", "shade=dark")

	inOrder := func(name string, w wish, run func(context.Context, *follower) error) {
		l := add(name, w)
		l.ordered = true
		follow(t, l, run)
	}
	inOrder("SES-01 SES-02 SES-03 a session", wish{below: all}, byURI(s, "bob", spec.V20251125, all))
	inOrder("SUB-08 a listen", wish{below: all}, byURI(s, "bob", spec.V20260728, all))
	inOrder("SUB-08 a listen of one URI", wish{below: one(2)}, byURI(s, "bob", spec.V20260728, one(2)))
	inOrder("EVX-06 a stream", wish{below: "event://chaos/tickets"}, byName(s, tickets, map[string]any{}, client.ModePush))
	inOrder("EVX-05 a poll", wish{below: "event://chaos/tickets"}, byName(s, tickets, map[string]any{}, client.ModePoll))
	inOrder("EVX-07 both modes in turn", wish{below: ordered}, byName(s, orders, map[string]any{}, client.ModePoll, client.ModePush))
}

// publish publishes a quarter of the events, one or several at a time, until ctx ends.
func (c *chaos) publish(ctx context.Context, r *rand.Rand) {
	const publishers = 4
	for {
		n := 1
		if r.IntN(4) == 0 {
			n = 2 + r.IntN(9)
		}
		if !harness.Sleep(ctx, time.Duration(r.ExpFloat64()*float64(n*publishers)/float64(c.rate)*float64(time.Second))) {
			return
		}
		c.send(c.book.take(n, ""))
	}
}

// send publishes events until they are accepted.
func (c *chaos) send(events []event) {
	var batch []harness.Event
	for _, e := range events {
		batch = append(batch, harness.Event{ID: e.id(), URI: c.book.uri(e), Data: e.data()})
	}
	retry(c.t, func(ctx context.Context) error {
		_, err := c.target.TryPublish(ctx, "publisher", batch...)
		if err == nil {
			c.book.accept(events)
		}
		return err
	})
}

// count adds one to n and notes the fault for the history of events that are lost.
func (c *chaos) count(n *int, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n++
	c.faults = append(c.faults, fault{time.Now(), text})
}

// history describes what the server recorded of an event's deliveries to a consumer, and the faults of the half minute
// before and the minute after the event was accepted.
func (c *chaos) history(e event, l *ledger, accepted time.Time) string {
	var b strings.Builder
	if l.subscription != "" {
		var list struct{ Items []json.RawMessage }
		query := url.Values{"event": {e.id()}, "subscription": {l.subscription}}
		if err := c.admin(c.t.Context(), "deliveries?"+query.Encode(), &list); err != nil {
			fmt.Fprintf(&b, "\n  no delivery records: %v", err)
		}
		for _, item := range list.Items {
			fmt.Fprintf(&b, "\n  delivery %s", item)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		if after := f.at.Sub(accepted); after > -30*time.Second && after < time.Minute {
			fmt.Fprintf(&b, "\n  %+.1f s: %s", after.Seconds(), f.text)
		}
	}
	return b.String()
}

func (c *chaos) killServers(ctx context.Context, r *rand.Rand) {
	for harness.Sleep(ctx, harness.About(r, c.pause)) {
		if err := c.kill(r); err != nil {
			c.t.Errorf("a server does not end or start again: %v", err)
			return
		}
		c.count(&c.kills, "a server or function was ended")
	}
}

// killClients kills listeners. Sometimes a listener stays away for longer than its retry schedule.
func (c *chaos) killClients(ctx context.Context, r *rand.Rand) {
	for harness.Sleep(ctx, harness.About(r, 8*time.Second)) {
		away := time.Duration(r.Int64N(int64(5 * time.Second)))
		if r.IntN(15) == 0 {
			away = min(3*time.Minute, c.length/4)
		}
		l := c.listeners[r.IntN(len(c.listeners))]
		l.kill(away)
		c.count(&c.clientKills, fmt.Sprintf("%s was killed for %v", l.name, away.Round(time.Second)))
	}
}

// breakEndpoints has the endpoints that fail at times fail for seconds, each in a random way.
func (c *chaos) breakEndpoints(ctx context.Context, r *rand.Rand) {
	for harness.Sleep(ctx, harness.About(r, 5*time.Second)) {
		name := fmt.Sprintf("webhook-that-fails-at-times-%d", r.IntN(regions))
		c.door.fail(name, randomWay(r))
		c.count(&c.breaks, name+" fails")
		if !harness.Sleep(ctx, harness.About(r, 8*time.Second)) {
			break
		}
		c.door.fail(name, nil)
	}
	for n := range regions {
		c.door.fail(fmt.Sprintf("webhook-that-fails-at-times-%d", n), nil)
	}
}

func randomWay(r *rand.Rand) http.HandlerFunc {
	names := slices.Sorted(maps.Keys(ways))
	return ways[names[r.IntN(len(names))]]
}

// outage has two endpoints fail for longer than a retry schedule, one after the other.
func (c *chaos) outage(ctx context.Context, r *rand.Rand) {
	for n := 0; harness.Sleep(ctx, min(time.Minute, c.length/8)); n++ {
		name := []string{outageName, hookName}[n%2]
		c.door.fail(name, randomWay(r))
		c.count(&c.breaks, name+" fails")
		more := harness.Sleep(ctx, min(3*time.Minute, c.length/4))
		c.door.fail(name, nil)
		if !more {
			return
		}
	}
}

// changeCatalog adds an event type, publishes events of it immediately, and removes types that were added long before.
func (c *chaos) changeCatalog(ctx context.Context, r *rand.Rand) {
	for n := 1; harness.Sleep(ctx, harness.About(r, min(20*time.Second, c.length/3))); n++ {
		if err := c.setCatalog(chaosCatalog(n)); err != nil {
			if ctx.Err() == nil {
				c.t.Errorf("change the catalog: %v", err)
			}
			return
		}
		c.count(&c.changes, "the catalog changed")
		for range 3 {
			c.send(c.book.take(1, addedURI(n)))
		}
	}
}

// progress logs each minute how far the run is.
func (c *chaos) progress(ctx context.Context, _ *rand.Rand) {
	for began := time.Now(); harness.Sleep(ctx, time.Minute); {
		c.t.Logf("%s after %v: %s", c.target.Name, time.Since(began).Round(time.Second), c.summary())
	}
}

func (c *chaos) summary() string {
	missing := 0
	for _, l := range c.consumers {
		missing += len(l.missing(c.book))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d events accepted, %d deliveries are missing; %d kills of servers or functions, %d of clients, %d failures of endpoints, %d changes of the catalog",
		c.book.count(), missing, c.kills, c.clientKills, c.breaks, c.changes)
}

// stillness is after how long without an arrival the run takes missing events for lost. It is longer than the pause before
// the last attempt, and than a message of a killed process takes to become visible again. Events that are still queued are
// late: when a machine is too slow for a function, the pauses between its attempts grow to minutes.
const (
	stillness       = 4 * time.Minute
	longestSettling = 15 * time.Minute
)

// settle waits until everything has arrived or is given up, or until nothing changes any more.
func (c *chaos) settle() {
	c.t.Logf("%s has published: %s", c.target.Name, c.summary())
	began, changed, logged, last := time.Now(), time.Now(), time.Now(), -1
	for time.Since(changed) < stillness && time.Since(began) < longestSettling && harness.Sleep(c.t.Context(), 3*time.Second) {
		left, arrived := 0, 0
		for _, l := range c.consumers {
			missing := l.missing(c.book)
			if len(missing) > 0 && l.outages && l.subscription != "" {
				letters := c.letters(url.Values{"subscription": {l.subscription}})
				maps.DeleteFunc(missing, func(e event, _ time.Time) bool { return letters[e.id()] })
			}
			different, _ := l.counts()
			left, arrived = left+len(missing), arrived+different
		}
		if left == 0 {
			break
		}
		if time.Since(logged) > 30*time.Second {
			logged = time.Now()
			c.t.Logf("%s is settling: %s", c.target.Name, c.summary())
		}
		queued := 0
		if c.depths != nil {
			queued, _ = c.depths()
		}
		if state := arrived - left; state != last || queued > 0 {
			last, changed = state, time.Now()
		}
	}
	c.t.Logf("everything has settled after %v", time.Since(began).Round(time.Second))
}

// letters returns the ids of the events that are dead letters of a subscription.
func (c *chaos) letters(query url.Values) map[string]bool {
	ids := map[string]bool{}
	for cursor := ""; ; {
		query.Set("limit", "100")
		if query.Del("cursor"); cursor != "" {
			query.Set("cursor", cursor)
		}
		var page struct {
			Items []struct{ Event string }
			Next  string
		}
		retry(c.t, func(ctx context.Context) error {
			return c.admin(ctx, "dead-letters?"+query.Encode(), &page)
		})
		for _, item := range page.Items {
			ids[item.Event] = true
		}
		if cursor = page.Next; cursor == "" {
			return ids
		}
	}
}

func (c *chaos) admin(ctx context.Context, path string, result any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.target.Admin+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.target.Keys[warden])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(result)
}

// report prints what became of the events, and fails the test if any is lost.
func (c *chaos) report() {
	var accepted, wanted, delivered, repeated, dead, announced, lost int
	accepted = c.book.count()
	queues := map[string]bool{} // events whose messages no part of the server could handle
	for _, queue := range []string{"inbox", "events", "deliveries", "slow"} {
		maps.Copy(queues, c.letters(url.Values{"queue": {queue}}))
	}
	for _, l := range c.consumers {
		c.t.Run("WHK-18 EVX-26 "+l.name, func(t *testing.T) {
			missing, all := l.missing(c.book), c.book.wanted(l.wish)
			var letters map[string]bool
			if len(missing) > 0 && l.subscription != "" {
				letters = c.letters(url.Values{"subscription": {l.subscription}})
			}
			deadHere, announcedHere := 0, 0
			var lostHere []event
			for e, at := range missing {
				switch {
				case letters[e.id()], queues[e.id()]:
					deadHere++
				case l.announced(at):
					announcedHere++
				default:
					lostHere = append(lostHere, e)
				}
			}
			slices.Sort(lostHere)
			different, received := l.counts()
			t.Logf("%d events, %d delivered, %d repeated, %d dead-lettered, %d announced as gap (%d gaps), %d lost; %d starts or connections",
				len(all), len(all)-len(missing), received-different, deadHere, announcedHere, len(l.gaps), len(lostHere), l.starts)
			for _, e := range lostHere[:min(len(lostHere), 20)] {
				t.Errorf("%s is lost: %s, accepted at %s%s", e.id(), c.book.uri(e), all[e].Format(time.StampMilli), c.history(e, l, all[e]))
			}
			if len(lostHere) > 20 {
				t.Errorf("%d more are lost", len(lostHere)-20)
			}
			l.check(t, all)
			if l.ordered {
				expect.Len(t, "the events out of order", l.disorder(c.book), 0)
			}
			if !l.outages && deadHere+announcedHere > 0 {
				t.Errorf("it was never away for long, and yet %d events are dead letters and %d are announced as gap", deadHere, announcedHere)
			}
			wanted, delivered, repeated = wanted+len(all), delivered+len(all)-len(missing), repeated+received-different
			dead, announced, lost = dead+deadHere, announced+announcedHere, lost+len(lostHere)
		})
	}
	if lost > 0 && c.depths != nil {
		// Messages that are still there are late instead of lost.
		_, depths := c.depths()
		c.t.Logf("the queues: %s", strings.Join(depths, "; "))
	}
	c.t.Logf("%s, %v: %s", c.target.Name, c.length, c.summary())
	c.t.Logf("%s: accepted %d, deliveries expected %d, delivered %d, repeated %d, dead-lettered %d, announced as gap %d, lost %d",
		c.target.Name, accepted, wanted, delivered, repeated, dead, announced, lost)
}

// check reports faults, and events that the consumer did not want.
func (l *ledger) check(t *testing.T, wanted map[event]time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	strange := 0
	for e := range l.got {
		if _, ok := wanted[e]; !ok {
			strange++
		}
	}
	expect.AtMost(t, "the events that were never accepted or that it did not ask for", strange, 0)
	for _, text := range l.faults {
		t.Error(text)
	}
	expect.AtLeast(t, "the events that it asked for", len(wanted), 1)
}
