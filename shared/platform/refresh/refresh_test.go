package refresh_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/test/expect"
)

var errDown = errors.New("the source is down")

// source counts. Each load takes a time, and then fails or returns the next number.
type source struct {
	takes time.Duration
	err   error
	loads int
	value int
}

func (s *source) load(ctx context.Context, _ int) (int, error) {
	s.loads++
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if s.err != nil {
		return 0, s.err
	}
	s.value++
	return s.value, nil
}

// number returns a value that is loaded from s.
func number(s *source) *refresh.Value[int] {
	return refresh.New(refresh.Options{
		Name: "the number", Fresh: 10 * time.Second, Shared: 20 * time.Second, Stale: time.Minute,
		Backoff: 5 * time.Second, EmptyBackoff: 2 * time.Second, Proportional: true, Timeout: 8 * time.Second,
	}, s.load)
}

// TestOneCaller follows one caller and the age of its value.
func TestOneCaller(t *testing.T) {
	type step struct {
		name  string
		later time.Duration
		down  bool
		call  func(ctx context.Context, v *refresh.Value[int]) (int, error)
		want  int // 0 is an error
		loads int // of this step
	}
	get := func(ctx context.Context, v *refresh.Value[int]) (int, error) { return v.Get(ctx) }
	expireAndGet := func(n int) func(context.Context, *refresh.Value[int]) (int, error) {
		return func(ctx context.Context, v *refresh.Value[int]) (int, error) {
			v.Expire(func(value int) bool { return value == n })
			return v.Get(ctx)
		}
	}
	within := func(age time.Duration) func(context.Context, *refresh.Value[int]) (int, error) {
		return func(ctx context.Context, v *refresh.Value[int]) (int, error) { return v.Within(ctx, age) }
	}
	for name, steps := range map[string][]step{
		"given a fresh value, Get does not load": {
			{"first", 0, false, get, 1, 1},
			{"still fresh", 10*time.Second - 1, false, get, 1, 0},
			{"not fresh", 1, false, get, 2, 1},
		},
		"given failing loads, Get returns the old value until it is stale": {
			{"first", 0, false, get, 1, 1},
			{"a load fails", 10 * time.Second, true, get, 1, 1},
			{"during the pause", 5*time.Second - 1, true, get, 1, 0},
			{"after the pause", 1, true, get, 1, 1},
			{"almost stale", 45*time.Second - 1, true, get, 1, 1},
			{"stale", 2 * time.Second, true, get, 0, 1},
			{"after the outage", 2 * time.Second, false, get, 2, 1},
		},
		"given no value and a failed load, Get returns its error during the pause": {
			{"first", 0, true, get, 0, 1},
			{"during the pause", 2*time.Second - 1, false, get, 0, 0},
			{"after the pause", 1, false, get, 1, 1},
		},
		"given an expired value, Get loads it and keeps the old one if that fails": {
			{"first", 0, false, get, 1, 1},
			{"another value expires", 0, false, expireAndGet(7), 1, 0},
			{"the load fails", 0, true, expireAndGet(1), 1, 1},
			{"after the pause", 5 * time.Second, false, get, 2, 1},
			{"the new value is fresh", time.Second, false, get, 2, 0},
		},
		"given an old value, Within does not return it": {
			{"first", 0, false, get, 1, 1},
			{"young enough", 3*time.Second - 1, false, within(3 * time.Second), 1, 0},
			{"too old, and the load fails", 1, true, within(3 * time.Second), 0, 1},
			{"during the pause", time.Second, false, within(3 * time.Second), 0, 0},
			{"Get returns it", 0, false, get, 1, 0},
			{"after the pause", time.Second, false, within(3 * time.Second), 2, 1},
			{"a value of the same moment is not of a later load", 0, false, within(0), 3, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{}
				v := number(s)
				for _, step := range steps {
					time.Sleep(step.later)
					if s.err = nil; step.down {
						s.err = errDown
					}
					before := s.loads
					got, err := step.call(t.Context(), v)
					if got != step.want || (err == nil) != (step.want > 0) || s.loads-before != step.loads {
						t.Errorf("%s: got %d, %v after %d loads; want %d after %d", step.name, got, err, s.loads-before, step.want, step.loads)
					}
				}
			})
		})
	}
}

func TestExpireDuringALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: 2 * time.Second}
		v := number(s)
		var running sync.WaitGroup
		first := start(t.Context(), v, &running)
		time.Sleep(time.Second)
		v.Expire(func(int) bool { return true })
		// The first load began before the value expired, so its result may be outdated.
		expect.Equal(t, "the value after Expire", expect.Value(v.Within(t.Context(), time.Minute))(t), 2)
		running.Wait()
		if first.value != 1 || first.err != nil {
			t.Errorf("the caller before Expire got %d, %v, want 1", first.value, first.err)
		}
	})
}

// result is the value or error that a caller received, and how long that took.
type result struct {
	value int
	err   error
	took  time.Duration
}

// start calls Get in a goroutine and returns its result when the goroutine has ended.
func start(ctx context.Context, v *refresh.Value[int], running *sync.WaitGroup) *result {
	r, began := &result{}, time.Now()
	running.Go(func() {
		r.value, r.err = v.Get(ctx)
		r.took = time.Since(began)
	})
	synctest.Wait()
	return r
}

func TestGivenManyCallersOneLoads(t *testing.T) {
	for _, tc := range []struct {
		name  string
		age   time.Duration // of the old value; 0 is without one
		other result        // of the callers that did not start the load
	}{
		{"without a value the others wait", 0, result{1, nil, 3 * time.Second}},
		{"with a value that may be shared the others get it", 15 * time.Second, result{1, nil, 0}},
		{"with an older value the others wait", 30 * time.Second, result{2, nil, 3 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{}
				v := number(s)
				if tc.age > 0 {
					_, _ = v.Get(t.Context())
					time.Sleep(tc.age)
				}
				s.takes, s.loads = 3*time.Second, 0
				var running sync.WaitGroup
				first := start(t.Context(), v, &running)
				others := []*result{start(t.Context(), v, &running), start(t.Context(), v, &running)}
				running.Wait()
				if first.value != s.value || first.err != nil || s.loads != 1 {
					t.Errorf("the first got %+v after %d loads, want %d after 1", *first, s.loads, s.value)
				}
				for _, other := range others {
					expect.Equal(t, "the other value", *other, tc.other)
				}
			})
		})
	}
}

func TestGivenTheCallerLeavesItsLoadContinuesForTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: 3 * time.Second}
		v := number(s)
		ctx, leave := context.WithCancel(t.Context())
		var running sync.WaitGroup
		first := start(ctx, v, &running)
		second := start(t.Context(), v, &running)
		leave()
		running.Wait()
		expect.Fault(t, "the caller that left", first.err, fault.Unavailable, "wait for the number")
		expect.Equal(t, "the second result", *second, (result{1, nil, 3 * time.Second}))
		expect.Equal(t, "the loads", s.loads, 1)
	})
}

// A source that hangs holds up one caller per pause, and the pause is as long as the wait was.
func TestGivenAHangingSourceTheNextCallersDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: time.Hour}
		v := number(s)
		for range 2 {
			began := time.Now()
			expect.Is(t, "the error", expect.ErrOf(v.Get(t.Context())), context.DeadlineExceeded)
			expect.Equal(t, "the time", time.Since(began), 8*time.Second)
			time.Sleep(8*time.Second - 1)
			expect.Is(t, "the error", expect.ErrOf(v.Get(t.Context())), context.DeadlineExceeded)
			expect.Equal(t, "the time", time.Since(began), 16*time.Second-1)
			time.Sleep(time.Nanosecond)
		}
	})
}

func TestGivenALoadThatPanicsTheCallerGetsAnError(t *testing.T) {
	v := refresh.New(refresh.Options{}, func(context.Context, int) (int, error) { panic("no number") })
	expect.Error(t, "the call", expect.ErrOf(v.Get(t.Context())), "no number")
}

// Lambda freezes a process between invocations, also during a load.
func TestGivenAProcessFrozenDuringALoadTheNextCallerLoadsAgain(t *testing.T) {
	for _, later := range []error{nil, errors.New("the source does not answer")} {
		synctest.Test(t, func(t *testing.T) {
			var frozen time.Duration
			s := &source{}
			thawed := make(chan struct{})
			v := refresh.New(refresh.Options{
				Fresh: time.Second, Stale: time.Minute, EmptyBackoff: time.Minute, Now: func() time.Time { return time.Now().Add(frozen) },
			}, func(ctx context.Context, old int) (int, error) {
				if s.loads == 1 {
					s.loads++
					<-thawed
					return 0, errDown
				}
				return s.load(ctx, old)
			})
			_, _ = v.Get(t.Context())
			time.Sleep(time.Second)
			var running sync.WaitGroup
			start(t.Context(), v, &running)
			s.err, frozen = later, time.Hour
			next := start(t.Context(), v, &running)
			close(thawed)
			running.Wait()
			if (next.value != 2) != (later != nil) || !errors.Is(next.err, later) {
				t.Errorf("after an hour: got %+v; want 2 from another load, or its error %v", *next, later)
			}
		})
	}
}

// The monotonic clock may stand still while a process is frozen.
func TestGivenAProcessFrozenBetweenTwoCallsTheSecondLoadsAgain(t *testing.T) {
	for name, call := range map[string]func(*refresh.Value[int]) (int, error){
		"Get":    func(v *refresh.Value[int]) (int, error) { return v.Get(t.Context()) },
		"Within": func(v *refresh.Value[int]) (int, error) { return v.Within(t.Context(), time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			now, s := time.Now(), &source{}
			v := refresh.New(refresh.Options{Fresh: time.Minute, Stale: time.Hour, EmptyBackoff: time.Minute, Now: func() time.Time { return now }}, s.load)
			for want := 1; want <= 2; want++ {
				expect.Equal(t, "the value", expect.Value(call(v))(t), want)
				now = periodictest.AfterFreeze(now, time.Minute)
			}
			s.err = errDown
			expect.Error(t, "a load that fails", expect.ErrOf(v.Within(t.Context(), time.Minute)))
			s.err, now = nil, periodictest.AfterFreeze(now, time.Minute)
			expect.Equal(t, "the value after the failure", expect.Value(call(v))(t), 3)
		})
	}
}

func TestGivenQuickFailuresOnlySlowOnesPause(t *testing.T) {
	for _, tc := range []struct {
		takes  time.Duration
		pauses bool
		loads  int // after two calls
	}{
		{2 * time.Second, false, 2},
		{2*time.Second + 1, true, 1},
	} {
		t.Run(tc.takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{takes: tc.takes, err: errDown}
				v := refresh.New(refresh.Options{Proportional: true, Quick: 2 * time.Second}, s.load)
				_, _ = v.Within(t.Context(), time.Minute)
				expect.Equal(t, "Pauses", v.IsPausing(), tc.pauses)
				expect.Is(t, "the error", expect.ErrOf(v.Within(t.Context(), time.Minute)), errDown)
				expect.Equal(t, "the loads", s.loads, tc.loads)
			})
		})
	}
}

func TestGivenAFailedLoadThoseWhoWaitedShareTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{takes: time.Second, err: errDown}
		v := refresh.New(refresh.Options{}, s.load)
		var running sync.WaitGroup
		start(t.Context(), v, &running)
		time.Sleep(time.Millisecond)
		for range 5 {
			start(t.Context(), v, &running)
		}
		running.Wait()
		expect.Equal(t, "loads by 6 callers of a source that is down", s.loads, 2)
	})
}
