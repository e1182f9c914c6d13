// Package refresh keeps a value in memory that is loaded from somewhere else, such as a document in the store or the keys of an issuer,
// and loads it again when it is old.
//
// A [Value] has no background work, because Lambda freezes a process between two invocations. Instead, a caller that asks for an old
// value starts a load:
//
//	age of the value   the caller gets
//	below Fresh        the value
//	below Shared       the value while another caller's load runs; otherwise it starts a load and waits for it
//	below Stale        the result of a load, or the old value if the load fails
//	Stale and older    the result of a load, or its error
//
// One load runs at a time. It continues if the caller that started it stops waiting.
package refresh

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// Forever is an age that no value reaches. With this age as [Options.Fresh], a value is loaded only once.
const Forever = time.Duration(math.MaxInt64)

// Freshness says whether a caller accepts a cached value.
type Freshness bool

const (
	// Cached accepts a cached value, which may be some seconds old.
	Cached Freshness = false
	// Latest asks for the current value instead of a cached one. It is for decisions that cannot be undone.
	Latest Freshness = true
)

// Options are the settings of a [Value]. With the zero value, each call gets the result of a load that began after the call. Calls that
// wait for the same load share its result.
type Options struct {
	// Name is the name of the value in the error for a caller that stops waiting, for example "the private keyset".
	Name string
	// Fresh is the age up to which callers get the value without a load. The age counts from the start of the load that returned the
	// value.
	Fresh time.Duration
	// Shared is the age up to which callers get the old value while a load runs, instead of waiting for that load.
	Shared time.Duration
	// Stale is the age up to which callers get the old value if a load fails.
	Stale time.Duration
	// Backoff is the time after a failed load in which no other load starts. Callers that can still use the old value get it meanwhile.
	// For other callers, see EmptyBackoff.
	Backoff time.Duration
	// EmptyBackoff replaces Backoff for callers that cannot use the old value, because there is no value or it is too old. They get the
	// error of the failed load meanwhile.
	EmptyBackoff time.Duration
	// Proportional makes the pause after a failed load at least as long as that load took. Otherwise a source that does not respond would
	// hold up every caller.
	Proportional bool
	// Quick exempts loads that failed within this time from Proportional, for example because the source refused them immediately.
	Quick time.Duration
	// Timeout limits how long a load may take. The default is 10 s.
	Timeout time.Duration
	// Now is the clock. The default is time.Now.
	Now func() time.Time
}

// since returns how much time has passed since t.
func (o *Options) since(t time.Time) time.Duration { return periodic.Since(o.Now(), t) }

// Value is a value that is loaded from its source when a caller needs it. It is safe for concurrent use. Make it with [New].
type Value[T any] struct {
	options Options
	load    func(ctx context.Context, old T) (T, error)

	mu      sync.Mutex
	value   T
	loaded  time.Time // start of the load that returned value; zero without a value
	expired bool      // Expire was called after the load of value began
	running *run[T]   // nil while no load runs
	failed  failure   // the last load, if it failed
}

// run is one load. Its result may be read after done is closed.
type run[T any] struct {
	began   time.Time
	expired bool // Expire was called during the load
	done    chan struct{}
	value   T
	err     error
}

type failure struct {
	err          error
	began, ended time.Time
}

// New returns a value that is not loaded yet. The function load loads it. The parameter old of load is the previous value, or the zero
// value at the first load.
func New[T any](o Options, load func(ctx context.Context, old T) (T, error)) *Value[T] {
	o.Now = periodic.Clock(o.Now)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	return &Value[T]{options: o, load: load}
}

// Get returns the value, and loads it first if necessary. If ctx ends while Get waits for a load, the error has the kind
// fault.Unavailable.
func (v *Value[T]) Get(ctx context.Context) (T, error) {
	return v.get(ctx, v.options.Stale, func(age time.Duration) bool {
		return age < v.options.Fresh || v.running != nil && age < v.options.Shared
	})
}

// Within returns a value whose load began less than maxAge before this call. It ignores Fresh, Shared and Stale, so if the load
// fails, it returns the load's error and not an older value. With a maxAge of 0, it accepts only a load that begins after the call.
func (v *Value[T]) Within(ctx context.Context, maxAge time.Duration) (T, error) {
	called := v.options.Now()
	return v.get(ctx, 0, func(time.Duration) bool { return periodic.Since(called, v.loaded) < maxAge })
}

// Peek returns the current value and the time when its load began. It never starts a load. The time is zero if there is no value.
func (v *Value[T]) Peek() (T, time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value, v.loaded
}

// IsPausing reports whether the pause after a failed load has not ended yet. During this pause, a caller without a usable old value gets
// the error of the failed load.
func (v *Value[T]) IsPausing() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.isPausing(false)
}

// Expire makes the next call of [Value.Get] load the value again, if matches returns true for the current value. That call does not use the
// result of a load that is already running, because this load may have read the outdated value. If the new load fails, Get still returns
// the old value until it is older than [Options.Stale].
func (v *Value[T]) Expire(matches func(T) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !matches(v.value) {
		return
	}
	v.expired = true
	if v.running != nil {
		v.running.expired = true
	}
}

// get returns the current value if the function usable accepts the value's age. Otherwise it loads the value. If the load fails, get
// returns the old value if that is younger than the parameter stale. The function usable is called with v.mu held.
func (v *Value[T]) get(ctx context.Context, stale time.Duration, usable func(age time.Duration) bool) (T, error) {
	called := v.options.Now()
	for waited := false; ; waited = true {
		value, r, err := v.joinOrStart(ctx, stale, usable, waited, called)
		if r == nil {
			return value, err
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return value, fault.Wrap(fault.Unavailable, ctx.Err(), "wait for %s", v.options.Name)
		}
		switch {
		case r.began.Before(called):
			// Ignore the result of this load, because it began before the call. Its value may be too old, or it may have failed only
			// because the process was frozen. So check the current value again.
		case r.err == nil:
			return r.value, nil
		default:
			v.mu.Lock()
			defer v.mu.Unlock()
			return v.fallback(r.err, stale)
		}
	}
}

// joinOrStart returns the load r that the caller must wait for. If r is nil, joinOrStart returns the value or error for the caller. The
// parameter called is the time of the call to Get or Within. The parameter waited is true if the caller has already waited for a load
// that began before that time.
//
// If several callers have waited for such an old load, the first of them starts a new load. If the new load fails too, the other callers
// get its error or the old value, so that not every caller starts a load.
func (v *Value[T]) joinOrStart(ctx context.Context, stale time.Duration, usable func(age time.Duration) bool, waited bool, called time.Time) (value T, r *run[T], err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.options.Now()
	age := periodic.Since(now, v.loaded)
	has := !v.loaded.IsZero()
	switch {
	case has && !v.expired && usable(age):
		return v.value, nil, nil
	case v.running != nil:
	case waited && v.failed.err != nil && !v.failed.began.Before(called), v.isPausing(has && age < stale):
		value, err = v.fallback(v.failed.err, stale)
		return value, nil, err
	default:
		v.running = &run[T]{began: now, done: make(chan struct{})}
		go v.run(context.WithoutCancel(ctx), v.running)
	}
	return value, v.running, nil
}

// fallback returns the old value after a failed load. If the value is older than the parameter stale, it returns the load's error,
// which is the parameter err. The caller holds v.mu.
func (v *Value[T]) fallback(err error, stale time.Duration) (value T, _ error) {
	if v.loaded.IsZero() || v.options.since(v.loaded) >= stale {
		return value, err
	}
	return v.value, nil
}

// isPausing reports whether it is too soon after a failed load to start another one. The parameter serves is true if callers can still
// get the old value. The pause is then [Options.Backoff], and otherwise [Options.EmptyBackoff]. The caller holds v.mu.
func (v *Value[T]) isPausing(serves bool) bool {
	if v.failed.err == nil {
		return false
	}
	pause := v.options.EmptyBackoff
	if serves {
		pause = v.options.Backoff
	}
	// If the load took far longer than its timeout, Lambda froze the process during the load, for example for ten minutes. That time
	// says nothing about the source. So count as if the load had failed exactly at its timeout: its duration is the timeout, and the
	// pause before the next load begins at that moment.
	end, took := v.failed.ended, v.failed.ended.Sub(v.failed.began)
	if limit := v.options.Timeout; took > 2*limit {
		end, took = v.failed.began.Add(limit), limit
	}
	if v.options.Proportional && took > v.options.Quick {
		pause = max(pause, took)
	}
	return v.options.since(end) < pause
}

func (v *Value[T]) run(ctx context.Context, r *run[T]) {
	ctx, cancel := context.WithTimeout(ctx, v.options.Timeout)
	defer cancel()
	old, _ := v.Peek()
	r.value, r.err = v.try(ctx, old)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.running = nil
	if r.err == nil {
		v.value, v.loaded, v.expired, v.failed = r.value, r.began, r.expired, failure{}
	} else {
		v.failed = failure{err: r.err, began: r.began, ended: v.options.Now()}
	}
	close(r.done)
}

// try calls v.load. It returns a panic as an error, because a panic would end the process.
func (v *Value[T]) try(ctx context.Context, old T) (value T, err error) {
	defer fault.Recovered(&err)
	return v.load(ctx, old)
}
