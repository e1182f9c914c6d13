package property

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// between returns a random time.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// answerTime is how long a client waits for an answer. In real time it is long, because the machine may be slow.
const answerTime = 2 * time.Minute

// publisher publishes until its time is over, and tries each batch again until it is accepted.
type publisher struct {
	*run
	random *rand.Rand
	number int
	sent   [][]*occurrence
}

func (p *publisher) work(ctx context.Context) {
	for ctx.Err() == nil {
		batch := p.draw()
		p.publish(batch)
		switch p.random.IntN(20) {
		case 0, 1: // a publisher that did not see the answer
			p.again(batch)
		case 2: // long bursts fill pages and the windows of cursors
			for range 5 {
				p.publish(p.draw())
			}
		}
		_ = pause(ctx, between(p.random, 0, p.gap))
	}
}

// draw makes a batch.
func (p *publisher) draw() (batch []*occurrence) {
	size := 1
	switch p.random.IntN(20) {
	case 0, 1, 2, 3:
		size = 2 + p.random.IntN(9)
	case 4:
		size = 20 + p.random.IntN(60)
	}
	spread := p.random.IntN(2) == 0
	first := p.topic(p.random)
	for range size {
		o := &occurrence{name: first.name, uri: first.uri, vars: first.vars, even: p.random.IntN(2) == 0}
		if spread {
			next := p.topic(p.random)
			o.name, o.uri, o.vars = next.name, next.uri, next.vars
		}
		p.ledger.begin(o)
		batch = append(batch, o)
	}
	p.sent = append(p.sent, batch)
	return batch
}

// input returns the event as it is published.
func (o *occurrence) input() publish.Input {
	data, _ := json.Marshal(payload{N: o.n, Even: o.even}) // numbers and a boolean
	return publish.Input{URI: o.uri, ID: o.id, Data: data}
}

// publish returns when the batch is accepted. It gives up when the queue may have forgotten the ids of an earlier try.
func (p *publisher) publish(batch []*occurrence) {
	var in []publish.Input
	for _, o := range batch {
		in = append(in, o.input())
	}
	var last error
	for began := time.Now(); time.Since(began) < 2*time.Minute; {
		if server := p.system.pick(p.random.IntN); server != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_, err := server.publisher.Accept(ctx, caller, in)
			cancel()
			if err == nil && !server.isDead() {
				p.ledger.accept(batch)
				return
			}
			if last = err; err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.NotFound) {
				break
			}
		}
		time.Sleep(between(p.random, 10*time.Millisecond, 200*time.Millisecond))
	}
	p.failf("publishing %d events failed: %v", len(batch), last)
}

// again publishes an accepted batch again, which changes nothing for subscribers.
func (p *publisher) again(batch []*occurrence) {
	var in []publish.Input
	for _, o := range batch {
		in = append(in, o.input())
	}
	if server := p.system.pick(p.random.IntN); server != nil && time.Since(batch[0].begun) < 2*time.Minute {
		_, _ = server.publisher.Accept(context.Background(), caller, in)
	}
}

// reuse publishes ids that were used long ago for other events.
func (p *publisher) reuse() {
	for i, batch := range p.sent {
		if i%3 != p.number%3 || len(batch) > 20 {
			continue
		}
		var fresh []*occurrence
		for _, o := range batch {
			n := &occurrence{id: o.id, uri: o.uri, name: o.name, vars: o.vars, even: p.random.IntN(2) == 0}
			p.ledger.begin(n)
			fresh = append(fresh, n)
		}
		p.publish(fresh)
	}
	p.sent = nil
}

// follower reads events with one chain of cursors, using polls, streams, or both.
type follower struct {
	*run
	random *rand.Rand
	chain  chain
	polls  bool
	pushes bool
	most   int // the largest page
	idle   time.Duration

	cursor string
	pages  int
	opened int
	rush   int // polls since one said that there is no more
	empty  int // steps without events since the last event
}

// nap returns how long to pause, or to read a stream: longer, the longer nothing has come.
func (f *follower) nap() time.Duration {
	return between(f.random, 0, min(f.naps<<min(f.empty, 5), max(f.naps, f.idle)))
}

// work reads until the run has finished and nothing has come for a while. begun is called when the chain has begun.
func (f *follower) work(begun func()) {
	began := sync.OnceFunc(begun)
	defer began()
	var quietSince, end time.Time
	for {
		if f.resting.Load() {
			time.Sleep(time.Second)
			continue
		}
		before := len(f.chain.got)
		more := f.step()
		if f.cursor != "" {
			began()
		}
		finished := f.isFinished()
		if finished && end.IsZero() {
			end = time.Now().Add(10*f.idle + 5*time.Minute)
		}
		switch {
		case finished && time.Now().After(end):
			f.chain.faults = append(f.chain.faults, fmt.Sprintf("had not come to the end of the log: event %d was the last of %d", f.chain.got[len(f.chain.got)-1], len(f.chain.got)))
			return
		case !finished || len(f.chain.got) > before || more:
			quietSince = time.Time{}
		case quietSince.IsZero():
			quietSince = time.Now()
		case time.Since(quietSince) > f.idle:
			return
		}
		if f.rush++; !more {
			f.rush = 0
		}
		if begun, _ := f.ledger.count(); f.rush > 250+begun {
			f.chain.faults = append(f.chain.faults, fmt.Sprintf("%d polls in a row said that there is more; the last returned events %v", f.rush, f.chain.got[max(0, len(f.chain.got)-20):]))
			time.Sleep(time.Second)
			f.rush = 0
		}
		f.empty++
		if len(f.chain.got) > before {
			f.empty = 0
		}
		if !more {
			time.Sleep(f.nap())
		}
		if len(f.chain.faults) > 20 {
			return
		}
	}
}

// step makes one poll, or reads a stream for a moment. It reports whether more events are waiting. After the run it only
// polls, because a silent stream may just be slow.
func (f *follower) step() (more bool) {
	server := f.system.pick(f.random.IntN)
	if server == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	if f.isFinished() || f.polls && (!f.pushes || f.random.IntN(4) > 0) {
		return f.poll(ctx, server)
	}
	f.follow(ctx, server)
	return false
}

func (f *follower) poll(ctx context.Context, server *process) (more bool) {
	params := map[string]any{
		"name": f.chain.wish.name, "arguments": json.RawMessage(f.chain.wish.arguments()), "maxEvents": 1 + f.random.IntN(f.most),
	}
	if f.cursor != "" {
		params["cursor"] = f.cursor
	}
	var page struct {
		Events []struct {
			Data payload
		}
		Cursor             string
		Truncated, HasMore bool
	}
	if err := call(ctx, server.endpoint, spec.MethodEventsPoll, params, &page); err != nil {
		f.passing(server, err)
		return false
	}
	if server.replaced.Load() {
		return false // it returned writes that its successor does not have
	}
	f.pages++
	if f.cursor == "" {
		f.chain.since = time.Now()
	}
	f.cursor = page.Cursor
	for _, e := range page.Events {
		f.chain.got = append(f.chain.got, e.Data.N)
	}
	if page.Truncated {
		f.truncated()
	}
	return page.HasMore
}

func (f *follower) truncated() {
	f.chain.faults = append(f.chain.faults, "was truncated although nothing had expired")
}

// passing notes an error unless it is of a fault of the schedule.
func (f *follower) passing(server *process, err error) {
	if !server.isDead() && !f.faults {
		f.chain.faults = append(f.chain.faults, err.Error())
	}
	time.Sleep(between(f.random, 10*time.Millisecond, 300*time.Millisecond))
}

// follow reads a stream for a moment, and cuts it after a message.
func (f *follower) follow(ctx context.Context, server *process) {
	life := 2 * f.nap()
	if f.random.IntN(3) == 0 { // until after a heartbeat, which moves the cursor where events do not
		life += 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	s := open(context.Background(), server.endpoint, request(ctx, spec.MethodEventsStream, f.streamParams()))
	defer s.close()
	f.opened++
	for left := 1 + f.random.IntN(400); left > 0; left-- {
		m, err := s.next(ctx)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, errStreamEnded) {
				f.chain.faults = append(f.chain.faults, err.Error())
			}
			return
		}
		if server.replaced.Load() {
			return // as in poll
		}
		f.take(m)
	}
}

func (f *follower) streamParams() map[string]any {
	params := map[string]any{"name": f.chain.wish.name, "arguments": json.RawMessage(f.chain.wish.arguments())}
	if f.cursor != "" {
		params["cursor"] = f.cursor
	}
	return params
}

// take handles one message of a stream.
func (f *follower) take(m rpc) {
	switch m.Method {
	case spec.NoteEventsActive:
		if f.cursor == "" {
			f.chain.since = time.Now()
		}
		if m.Params.Truncated {
			f.truncated()
		}
	case spec.NoteEventsEvent:
		f.chain.got = append(f.chain.got, m.Params.Data.N)
	case spec.NoteEventsTerminated:
		f.chain.faults = append(f.chain.faults, fmt.Sprintf("the stream was terminated: %s", m.Params.Error))
	}
	if m.Params.Cursor != "" {
		f.cursor = m.Params.Cursor
	}
}

// readOn polls from a cursor to the end of the log, and returns the events. truncated reports that the log does not
// reach back to the cursor.
func (r *run) readOn(server *process, w wish, cursor string) (got map[int]bool, truncated bool, err error) {
	got = map[int]bool{}
	for more := true; more; {
		var page struct {
			Events             []struct{ Data payload }
			Cursor             string
			Truncated, HasMore bool
		}
		params := map[string]any{"name": w.name, "arguments": json.RawMessage(w.arguments()), "maxEvents": 500, "cursor": cursor}
		if err := call(context.Background(), server.endpoint, spec.MethodEventsPoll, params, &page); err != nil {
			return nil, false, err
		}
		for _, e := range page.Events {
			got[e.Data.N] = true
		}
		cursor, truncated, more = page.Cursor, truncated || page.Truncated, page.HasMore
	}
	return got, truncated, nil
}
