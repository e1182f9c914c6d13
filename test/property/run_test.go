package property

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/test/expect"

	"github.com/mcp-events/mcpevents/shared/events/switches"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

// scale is how large a schedule is.
type scale struct {
	length     time.Duration // of the part with publishers
	gap        time.Duration // the longest pause of a publisher
	naps       time.Duration // the longest pause of a reader
	every      time.Duration // the longest pause between two disturbances
	patience   time.Duration // how long deliveries may take after that
	linger     time.Duration // how long notices of gaps may take after that
	idle       time.Duration // how long a reader finds nothing before it ends
	publishers int
	followers  int
	webhooks   int
	// worst is the last mood that endpoints get.
	worst mood
	// reuse has publishers use ids again after the deduplication window.
	reuse bool
	// faults has requests fail and processes die.
	faults bool
}

// run is one schedule.
type run struct {
	scale
	t      *testing.T
	seed   uint64
	system *system
	ledger *ledger
	random *rand.Rand

	finished chan struct{}
	resting  atomic.Bool // readers wait, so that hours without events cost nothing

	mu       sync.Mutex
	problems []string
	trace    []string
	lateType bool
	kills    int
	began    time.Time
}

// figures count the events and requests of schedules.
type figures struct {
	schedules, events, returned, polls, streams, webhooks, dead, gaps, kills, faults int
}

func (f *figures) add(g figures) {
	f.schedules += g.schedules
	f.events += g.events
	f.returned += g.returned
	f.polls += g.polls
	f.streams += g.streams
	f.webhooks += g.webhooks
	f.dead += g.dead
	f.gaps += g.gaps
	f.kills += g.kills
	f.faults += g.faults
}

func (f figures) String() string {
	return fmt.Sprintf("%d schedules: %d events, returned %d times by %d polls and %d streams; %d webhooks accepted, %d dead letters, %d gap notices; %d kills, %d failed requests",
		f.schedules, f.events, f.returned, f.polls, f.streams, f.webhooks, f.dead, f.gaps, f.kills, f.faults)
}

func (r *run) failf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// note adds a step to the trace that a failure prints.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, fmt.Sprintf("%8.3f ", time.Since(r.began).Seconds())+fmt.Sprintf(format, args...))
}

func (r *run) isFinished() bool {
	select {
	case <-r.finished:
		return true
	default:
		return false
	}
}

// topic is a subject of events.
type topic struct {
	name, uri string
	vars      map[string]string
}

var longName = strings.Repeat("long-", 100)

// catalogText returns the catalog. The type that turns gives up its order, and the late type is added during a run.
func catalogText(turned, late bool) string {
	text := `events:
  - {name: plain, uri: "event://plain", payloadSchema: {type: object}, filters: {even: /even}}
  - {name: item, uriTemplate: "event://shelf/{shelf}/{item}", payloadSchema: {type: object}, filters: {even: /even}}
  - {name: loose, uriTemplate: "event://loose/{lane}", order: none, payloadSchema: {type: object}, filters: {even: /even}}
`
	order := "uri"
	if turned {
		order = "none"
	}
	text += `  - {name: turn, uriTemplate: "event://turn/{side}", order: ` + order + ", payloadSchema: {type: object}, filters: {even: /even}}\n"
	if late {
		text += `  - {name: late, uriTemplate: "event://late/{place}", payloadSchema: {type: object}, filters: {even: /even}}` + "\n"
	}
	return text
}

func parse(t testing.TB, text string) *catalog.Catalog {
	t.Helper()
	cat := expect.Value(catalog.Parse([]byte(text)))(t)
	return cat
}

// topic draws one.
func (r *run) topic(random *rand.Rand) topic {
	pick := func(format string, n int) string { return fmt.Sprintf(format, random.IntN(n)) }
	switch random.IntN(12) {
	case 0, 1:
		return topic{"plain", "event://plain", nil}
	case 2, 3:
		lane := pick("l%d", 2)
		return topic{"loose", "event://loose/" + lane, map[string]string{"lane": lane}}
	case 4, 5:
		side := pick("s%d", 2)
		return topic{"turn", "event://turn/" + side, map[string]string{"side": side}}
	case 6:
		r.mu.Lock()
		late := r.lateType
		r.mu.Unlock()
		if late {
			place := pick("p%d", 3)
			return topic{"late", "event://late/" + place, map[string]string{"place": place}}
		}
	case 7:
		if random.IntN(6) == 0 {
			return topic{"item", "event://shelf/s0/" + longName, map[string]string{"shelf": "s0", "item": longName}}
		}
	}
	shelf, item := pick("s%d", 2), pick("i%d", 8)
	return topic{"item", "event://shelf/" + shelf + "/" + item, map[string]string{"shelf": shelf, "item": item}}
}

// wish draws a selection of events.
func (r *run) wish(random *rand.Rand) wish {
	w := wish{name: "item", vars: map[string]string{}}
	switch random.IntN(10) {
	case 0:
		w = wish{name: "plain"}
	case 1, 2:
		w.name = "loose"
		if random.IntN(2) == 0 {
			w.vars["lane"] = "l0"
		}
	case 3:
		w.name = "turn"
		if random.IntN(2) == 0 {
			w.vars["side"] = "s1"
		}
	case 4, 5:
		w.vars["shelf"] = "s0"
	case 6:
		w.vars["shelf"], w.vars["item"] = "s1", "i1"
	case 7:
		w.vars["item"] = "i2"
	}
	if random.IntN(3) == 0 {
		even := random.IntN(2) == 0
		w.even = &even
	}
	return w
}

// play runs a schedule and returns the violations that it found, the steps of the driver, and its size.
func play(t *testing.T, s setup, k scale, seed uint64) (problems, trace []string, did figures) {
	r := &run{
		scale: k, t: t, seed: seed, ledger: &ledger{}, random: rand.New(rand.NewPCG(seed, 0)), finished: make(chan struct{}), began: time.Now(),
	}
	endpoints := newEndpoints(seed)
	r.system = newSystem(t, s, parse(t, catalogText(false, false)), endpoints)
	defer r.system.close()

	actor := uint64(0)
	source := func() *rand.Rand { actor++; return rand.New(rand.NewPCG(seed, actor)) }
	var followers []*follower
	var reading, begun sync.WaitGroup
	for i := range k.followers {
		random := source()
		f := &follower{run: r, random: random, most: []int{1, 3, 10, 100}[random.IntN(4)], idle: k.idle}
		f.chain.wish = r.wish(random)
		switch random.IntN(4) {
		case 0, 1:
			f.polls = true
		case 2:
			f.pushes = true
		case 3:
			f.polls, f.pushes = true, true
		}
		kind := "polls"
		if f.pushes {
			kind = map[bool]string{true: "polls and streams", false: "streams"}[f.polls]
		}
		f.chain.title = fmt.Sprintf("reader %d, %s of up to %d", i, kind, f.most)
		followers = append(followers, f)
		begun.Add(1)
		reading.Go(func() { f.work(begun.Done) })
	}
	var subscribers []*subscriber
	for i := range k.webhooks {
		random := source()
		sub := &subscriber{run: r, random: random, url: fmt.Sprintf("https://hooks%d.example.com/%d", i%2, i), wish: r.wish(random)}
		endpoints.set(sub.url, well)
		for !sub.subscribe(false) {
			time.Sleep(10 * time.Millisecond)
		}
		subscribers = append(subscribers, sub)
	}
	begun.Wait()

	publishing, stop := context.WithTimeout(context.Background(), k.length)
	defer stop()
	var writing sync.WaitGroup
	var publishers []*publisher
	for i := range k.publishers {
		p := &publisher{run: r, random: source(), number: i}
		publishers = append(publishers, p)
		writing.Go(func() { p.work(publishing) })
	}
	d := &driver{run: r, subscribers: subscribers, catalogLeft: 2}
	for publishing.Err() == nil {
		d.disturb()
		if ends, _ := publishing.Deadline(); k.faults && time.Until(ends) < k.length/2 {
			d.disturbOnce()
		}
		_ = pause(publishing, between(r.random, k.every/10, k.every))
		r.kills += r.system.replaceDead()
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	d.until(done)
	if k.reuse {
		r.resting.Store(true)
		time.Sleep(6 * time.Minute)
		r.resting.Store(false)
		for _, p := range publishers {
			writing.Go(p.reuse)
		}
		done = make(chan struct{})
		go func() { writing.Wait(); close(done) }()
		d.until(done)
	}
	d.calm()
	r.resting.Store(true)
	d.settle()
	r.resting.Store(false)
	close(r.finished)
	reading.Wait()

	begunEvents, accepted := r.ledger.count()
	if begunEvents != accepted && len(r.problems) == 0 {
		r.failf("%d of %d events were not accepted", begunEvents-accepted, begunEvents)
	}
	did = figures{schedules: 1, events: accepted, kills: r.kills, faults: d.armed}
	exact := r.system.shared == nil
	for _, f := range followers {
		did.returned += len(f.chain.got)
		did.polls, did.streams = did.polls+f.pages, did.streams+f.opened
		r.problems = append(r.problems, f.chain.check(r.ledger, exact)...)
	}
	server := r.system.processes[0]
	for _, s := range subscribers {
		problems, dead := s.check(server)
		r.problems = append(r.problems, problems...)
		did.dead += dead
		for _, got := range endpoints.receipts(s.url) {
			if got.n < 0 {
				did.gaps++
			} else {
				did.webhooks++
			}
		}
	}
	letters, _, err := server.operations.ListLetters(context.Background(), caller.Workspace, deadletter.LetterQuery{Queue: "events"}, "", 100)
	if err != nil || len(letters) > 0 {
		r.failf("%d events were given up by the pipeline, %v", len(letters), err)
	}
	return r.problems, r.trace, did
}

// driver disturbs a run.
type driver struct {
	*run
	subscribers []*subscriber
	catalogLeft int
	armed       int
	paused      []switches.Name
	held        map[*subscriber]bool
}

// until keeps the system alive until done is closed.
func (d *driver) until(done chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(50 * time.Millisecond):
			d.kills += d.system.replaceDead()
		}
	}
}

// disturbOnce makes sure that even a short run has a failed request and a killed process.
func (d *driver) disturbOnce() {
	if p := d.system.pick(d.random.IntN); p != nil && d.armed == 0 {
		d.failRequest(p, 1, false)
	}
	if d.kills == 0 {
		d.killProcess()
	}
}

// failRequest makes a later request of a process fail, and optionally kills the process then.
func (d *driver) failRequest(p *process, after int, kills bool) {
	late := d.random.IntN(2) == 0
	d.note("request %d of a process fails, late %v, kills %v", after, late, kills)
	d.armed++
	p.arm(after, late, kills)
}

func (d *driver) killProcess() {
	n := d.random.IntN(len(d.system.processes))
	d.note("kill process %d", n)
	d.system.replace(n)
	d.kills++
}

// disturb makes one random step.
func (d *driver) disturb() {
	p := d.system.pick(d.random.IntN)
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var sub *subscriber
	if len(d.subscribers) > 0 {
		sub = d.subscribers[d.random.IntN(len(d.subscribers))]
	}
	step := d.random.IntN(16)
	switch {
	case step < 4 && d.faults:
		d.failRequest(p, 1+d.random.IntN(300), d.random.IntN(3) == 0)
	case step == 4 && d.faults:
		d.killProcess()
	case step < 9 && sub != nil:
		m := mood(d.random.IntN(int(d.worst) + 1))
		d.note("%s has mood %d", sub.url, m)
		d.system.endpoints.set(sub.url, m)
	case step == 9 && sub != nil:
		d.switchOne(ctx, p, sub)
	case step == 10 && sub != nil:
		d.hold(ctx, p, sub)
	case step == 11 && sub != nil:
		d.note("suspend %s", sub.url)
		d.suspend(ctx, p, sub)
	case step < 14 && sub != nil:
		resume := d.random.IntN(3) == 0
		d.note("refresh %s, with a cursor %v: %v", sub.url, resume, sub.subscribe(resume))
	case step == 14 && d.catalogLeft > 0:
		d.catalogLeft--
		d.changeCatalog(ctx)
	}
}

// switchOne pauses or resumes a switch.
func (d *driver) switchOne(ctx context.Context, p *process, sub *subscriber) {
	if len(d.paused) > 0 {
		name := d.paused[0]
		_, err := p.switches.Resume(ctx, caller.Workspace, name)
		d.note("resume %s: %v", name, err)
		if err == nil {
			d.paused = d.paused[1:]
		}
		return
	}
	name := []switches.Name{switches.All, switches.EventSwitch(sub.wish.name), switches.OriginSwitch(sub.url[:len("https://hooks0.example.com")])}[d.random.IntN(3)]
	d.note("pause %s", name)
	d.paused = append(d.paused, name)
	_ = p.switches.Pause(ctx, caller.Workspace, switches.Switch{Name: name, By: "test"})
}

// hold pauses or resumes a subscription.
func (d *driver) hold(ctx context.Context, p *process, sub *subscriber) {
	if d.held == nil {
		d.held = map[*subscriber]bool{}
	}
	name := switches.SubscriptionSwitch(sub.id)
	ops := p.switches.PauseOps(caller.Workspace, switches.Switch{Name: name, By: "test"})
	if d.held[sub] {
		ops = p.switches.ResumeOps(caller.Workspace, name)
	}
	_, err := p.subs.SetPaused(ctx, caller.Workspace, caller.ID, sub.id, !d.held[sub], ops...)
	d.note("pause %s, %v: %v", sub.url, !d.held[sub], err)
	d.held[sub] = !d.held[sub] || err != nil
}

func (d *driver) changeCatalog(ctx context.Context) {
	turned, late := d.catalogLeft == 0, true
	d.note("catalog: turned %v, late %v", turned, late)
	if err := d.system.apply(ctx, parse(d.t, catalogText(turned, late))); err != nil {
		d.note("catalog change failed: %v", err)
	}
	d.mu.Lock()
	d.lateType = true
	d.mu.Unlock()
}

// calm ends all disturbances, so that open deliveries can succeed.
func (d *driver) calm() {
	d.note("calm")
	d.kills += d.system.replaceDead()
	for _, p := range d.system.processes {
		p.arm(0, false, false)
	}
	d.faults = false
	d.system.endpoints.all(well)
	p := d.system.processes[0]
	ctx := context.Background()
	for _, name := range d.paused {
		if _, err := p.switches.Resume(ctx, caller.Workspace, name); err != nil {
			d.failf("resume %s: %v", name, err)
		}
	}
	for _, sub := range d.subscribers {
		if d.held[sub] {
			if _, err := p.subs.SetPaused(ctx, caller.Workspace, caller.ID, sub.id, false, p.switches.ResumeOps(caller.Workspace, switches.SubscriptionSwitch(sub.id))...); err != nil {
				d.failf("resume %s: %v", sub.url, err)
			}
		}
		if !sub.subscribe(false) {
			d.failf("%s could not be refreshed: %v", sub.url, sub.faults)
		}
	}
}

// settle waits until the log has every event and every delivery was accepted or given up. Subscribers refresh meanwhile, as
// clients do: a subscription is suspended until then if nearly all of its deliveries failed in the end.
func (d *driver) settle() {
	end := time.Now().Add(d.patience)
	refresh := time.Now().Add(d.patience / 10)
	for time.Now().Before(end) {
		if time.Now().After(refresh) {
			refresh = time.Now().Add(d.patience / 10)
			for _, sub := range d.subscribers {
				sub.subscribe(false)
			}
		}
		settled := d.system.logged()
		for _, sub := range d.subscribers {
			settled = settled && sub.settled(d.system.processes[0])
		}
		if settled {
			d.note("settled")
			for _, sub := range d.subscribers {
				if len(sub.open()) > 0 { // the notice of a gap is tried less and less often
					time.Sleep(d.linger)
					return
				}
			}
			return
		}
		_ = pause(context.Background(), min(d.patience/200, 2*time.Second))
	}
	d.note("not settled after %v: %s", d.patience, d.system.undecided())
	for _, sub := range d.subscribers {
		if record, err := d.system.processes[0].subs.Lookup(context.Background(), caller.Workspace, caller.ID, sub.id); err != nil || record == nil {
			d.note("%s: no record, %v", sub.url, err)
		} else {
			d.note("%s: %s", sub.url, record.State)
		}
	}
}

// suspend suspends a subscription as if nearly all of its deliveries had failed.
func (d *driver) suspend(ctx context.Context, p *process, sub *subscriber) {
	record, err := p.subs.Lookup(ctx, caller.Workspace, caller.ID, sub.id)
	if err == nil && record != nil {
		_ = p.subs.Suspend(ctx, caller.Workspace, caller.ID, sub.id, record.Resumed)
	}
}
