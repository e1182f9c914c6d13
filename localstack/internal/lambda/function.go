// Package lambda runs function binaries as Lambda would: as processes that use the Runtime API, kept warm between
// invocations, and several concurrently up to a limit.
//
//	Invoke ──▶ Function ──▶ instance with a free slot, or a new one
//	                          │  process ◀── GET  invocation/next
//	   Response ◀─────────────┘          ──▶ POST invocation/{id}/response
//
// A process handles one invocation at a time, and is frozen (SIGSTOP) while it waits for the next one. If its
// environment contains [MaxConcurrency], it is a managed instance: it handles that many invocations concurrently and
// is never frozen.
//
// The package does not depend on events, queues or HTTP. Packages mapping, furl and schedule add these and call
// [Function.Invoke].
package lambda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
)

// ErrThrottled is returned by [Function.Invoke] if the maximum number of invocations is running.
var ErrThrottled = errors.New("lambda: as many invocations run as may")

// ErrClosed is returned by [Function.Invoke] after the function was closed.
var ErrClosed = errors.New("lambda: the function is closed")

// MaxPayload is the maximum size in bytes of a request, and of a response that is not streamed.
const MaxPayload = 6 << 20

// Function is a function and its processes. It is safe for concurrent use.
type Function struct {
	cfg    Config
	atOnce int             // concurrent invocations per process
	ctx    context.Context // ends with Close
	end    context.CancelFunc

	mu     sync.Mutex
	closed bool
	room   []*instance // have a free slot; the most recently used is at the end
	live   map[*instance]struct{}
	stats  Stats
	wg     sync.WaitGroup
}

// New creates a function. The first invocation starts the first process.
func New(cfg Config) *Function {
	cfg.Memory = cmp.Or(cfg.Memory, 128)
	cfg.Timeout = cmp.Or(cfg.Timeout, 3*time.Second)
	cfg.InitTimeout = cmp.Or(cfg.InitTimeout, 30*time.Second)
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, 5*time.Minute)
	cfg.Grace = cmp.Or(cfg.Grace, 2*time.Second)
	cfg.Limit = cmp.Or(cfg.Limit, NewLimit(10))
	cfg.Output = cmp.Or(cfg.Output, io.Discard)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	f := &Function{cfg: cfg, atOnce: 1, live: map[*instance]struct{}{}}
	if n, err := strconv.Atoi(cfg.Env[MaxConcurrency]); err == nil {
		f.atOnce = max(n, 1)
	}
	f.ctx, f.end = context.WithCancel(context.Background())
	f.wg.Go(f.reap)
	return f
}

// Name returns the function's name.
func (f *Function) Name() string { return f.cfg.Name }

// ARN returns the function's Amazon resource name.
func (f *Function) ARN() string { return f.cfg.ARN }

// Timeout returns the limit of an invocation.
func (f *Function) Timeout() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cfg.Timeout
}

// Env returns the environment of new processes.
func (f *Function) Env() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.cfg.Env)
}

// Invocation is a call of a function.
type Invocation struct {
	// Payload is the event, valid JSON of at most [MaxPayload] bytes.
	Payload []byte
	// Wait makes [Function.Invoke] wait for a free slot instead of returning [ErrThrottled]. This has the same effect
	// as the retries of Lambda's own pollers.
	Wait bool
	// Trace is the trace header of the request or message that caused the invocation.
	Trace string
}

// Invoke runs the function once. It returns when the response begins. The caller closes the response's body, which it
// may do early.
//
// If ctx ends, Invoke returns, but the invocation continues, because Lambda does not tell a function that its caller
// disconnected. If the function fails (it reports an error, crashes or times out), Invoke does not return an error
// but a [Response] with FunctionError.
func (f *Function) Invoke(ctx context.Context, inv Invocation) (*Response, error) {
	if len(inv.Payload) > MaxPayload {
		return nil, fmt.Errorf("lambda: invoke %s: the payload has more than %d bytes", f.cfg.Name, MaxPayload)
	}
	if f.Loops(inv.Trace) {
		return nil, ErrRecursive
	}
	chain := parseTrace(inv.Trace)
	length := chain.enter(f.cfg.ARN) + 1
	f.count(func(s *Stats) { s.LongestChain = max(s.LongestChain, length) })
	limit, err := f.acquire(ctx, inv.Wait)
	if err != nil {
		return nil, err
	}
	call := &invocation{
		id:        uuid.NewString(),
		payload:   inv.Payload,
		trace:     chain.String(),
		limit:     limit,
		result:    make(chan *Response),
		abandoned: make(chan struct{}),
	}
	if err := f.assign(call); err != nil {
		limit.release()
		return nil, err
	}
	select {
	case r := <-call.result:
		return r, nil
	case <-ctx.Done():
		close(call.abandoned)
		return nil, ctx.Err()
	}
}

// turnaround is how long an invocation waits for a slot before it is refused. A process frees its slot slightly after
// its caller has received the response. A caller that immediately invokes the function again must not be throttled
// because of this.
const turnaround = 100 * time.Millisecond

func (f *Function) acquire(ctx context.Context, wait bool) (*Limit, error) {
	f.mu.Lock()
	limit := f.cfg.Limit
	f.mu.Unlock()
	select {
	case <-f.ctx.Done():
		return nil, ErrClosed
	case limit.slots <- struct{}{}:
		return limit, nil
	default:
	}
	var patience <-chan time.Time
	if !wait {
		timer := time.NewTimer(turnaround)
		defer timer.Stop()
		patience = timer.C
	}
	select {
	case <-f.ctx.Done():
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-patience:
		f.count(func(s *Stats) { s.Throttles++ })
		return nil, ErrThrottled
	case limit.slots <- struct{}{}:
		return limit, nil
	}
}

// assign passes the call to an instance with a free slot, or starts a new one.
func (f *Function) assign(call *invocation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	f.stats.Invocations++
	for i := f.choose(); i != nil; i = f.choose() {
		if i.give(call) {
			f.addCall(i)
			return nil
		}
		f.setFull(i) // its process has died
	}
	i, err := f.start(call)
	if err != nil {
		return fmt.Errorf("lambda: start %s: %w", f.cfg.Name, err)
	}
	f.stats.ColdStarts++
	f.live[i] = struct{}{}
	f.room = append(f.room, i)
	f.addCall(i)
	return nil
}

// choose returns the most recently used instance, or a random one of several managed instances. It returns nil if a
// new one must be started.
func (f *Function) choose() *instance {
	switch {
	case len(f.room) == 0 || f.atOnce > 1 && f.running() < f.cfg.Instances:
		return nil
	case f.atOnce > 1:
		return f.room[rand.IntN(len(f.room))]
	}
	return f.room[len(f.room)-1]
}

// running counts the processes that may receive further calls.
func (f *Function) running() (n int) {
	for i := range f.live {
		select {
		case <-i.stopping:
		default:
			n++
		}
	}
	return n
}

// addCall records that an instance has received a call.
func (f *Function) addCall(i *instance) {
	if i.taken++; i.taken == f.atOnce {
		f.setFull(i)
	}
}

// finishCall records that an instance asks for its next call, so that the slot of its last call is free.
func (f *Function) finishCall(i *instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i.since = time.Now()
	i.taken--
	switch {
	case i.replaced:
		if i.taken == 0 {
			i.stop()
		}
		return
	case i.taken < f.atOnce-1:
		return // it had a free slot before
	}
	select {
	case <-i.stopping: // receives no further call
	default:
		if f.atOnce == 1 {
			i.freeze()
		}
		f.room = append(f.room, i)
	}
}

// exited removes an instance whose process has exited.
func (f *Function) exited(i *instance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, i)
	f.setFull(i)
}

// setFull removes an instance from the list of instances with a free slot.
func (f *Function) setFull(i *instance) {
	if n := slices.Index(f.room, i); n >= 0 {
		f.room = slices.Delete(f.room, n, n+1)
	}
}

// reap ends processes that have been idle for too long.
func (f *Function) reap() {
	tick := time.NewTicker(max(f.cfg.IdleTimeout/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-f.ctx.Done():
			return
		case now := <-tick.C:
			f.mu.Lock()
			var old []*instance
			for _, i := range f.room {
				if i.taken == 0 && now.Sub(i.since) >= f.cfg.IdleTimeout {
					old = append(old, i)
				}
			}
			for _, i := range old {
				f.setFull(i)
			}
			f.mu.Unlock()
			for _, i := range old {
				i.stop()
			}
		}
	}
}

// Kill immediately ends a random process, as if its machine had died. If busy is true, it chooses one with a running
// invocation. It reports whether there was one.
func (f *Function) Kill(busy bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	var targets []*instance
	for i := range f.live {
		if !busy || i.busy() {
			targets = append(targets, i)
		}
	}
	if len(targets) == 0 {
		return false
	}
	targets[rand.IntN(len(targets))].kill()
	f.stats.Kills++
	return true
}

// Retire ends all processes, as the deployment of a new version eventually does: each gets SIGTERM, even during an
// invocation, and no further call. New calls start new processes.
func (f *Function) Retire() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.room = nil
	for i := range f.live {
		i.stop()
	}
}

// Deploy replaces the function's binary. Running invocations finish with the old code, in processes that get no
// further call.
func (f *Function) Deploy(binary string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg.Binary = binary
	f.replace()
}

// Configure changes the settings that belong to a version: Env, Memory, Timeout and Instances. Running invocations finish
// with the old settings, in processes that get no further call.
func (f *Function) Configure(cfg Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg.Env, f.cfg.Memory, f.cfg.Timeout, f.cfg.Instances = cfg.Env, cmp.Or(cfg.Memory, 128), cmp.Or(cfg.Timeout, 3*time.Second), cfg.Instances
	f.replace()
}

// Govern changes the settings that all versions share. Running invocations keep their slots.
func (f *Function) Govern(limit *Limit, allowLoops bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cfg.Limit, f.cfg.AllowLoops = limit, allowLoops
}

// replace makes the next calls start new processes. The caller holds the mutex.
func (f *Function) replace() {
	f.room = nil
	for i := range f.live {
		if i.replaced = true; i.taken == 0 {
			i.stop()
		}
	}
}

// Close ends all processes with SIGTERM, and with SIGKILL after the grace period. This ends running invocations. It
// returns when all processes have exited.
func (f *Function) Close() {
	f.mu.Lock()
	f.closed = true
	live := slices.Collect(maps.Keys(f.live))
	f.mu.Unlock()
	f.end()
	for _, i := range live {
		i.stop()
	}
	f.wg.Wait()
}
