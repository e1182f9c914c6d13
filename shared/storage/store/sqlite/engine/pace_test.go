package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// slowCommits calls test in a bubble, with an engine and a job whose commit takes as long as a sync.
func slowCommits(t *testing.T, test func(t *testing.T, e *Engine, sleeping Job, length time.Duration)) {
	const length = 300 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		e := openAt(t, Memory)
		test(t, e, job{apply: func(*Tx) error { time.Sleep(length); return nil }}, length)
	})
}

func TestACommitWaitsForOtherJobsOnlyUnderLoad(t *testing.T) {
	t.Run("one_after_the_other", func(t *testing.T) {
		slowCommits(t, func(t *testing.T, e *Engine, sleeping Job, length time.Duration) {
			const n = 200
			start := time.Now()
			for range n {
				do(t, e, sleeping)
			}
			expect.Equal(t, fmt.Sprintf("the time of %d commits", n), time.Since(start), n*length)
		})
	})
	t.Run("many_per_second", func(t *testing.T) {
		slowCommits(t, func(t *testing.T, e *Engine, _ Job, length time.Duration) {
			const n, every = 2000, 300 * time.Microsecond
			var last int64 // a commit takes the same time with any number of jobs
			sleeping := job{apply: func(tx *Tx) error {
				if tx.Attempt != last {
					last = tx.Attempt
					time.Sleep(length)
				}
				return nil
			}}
			before := e.Stats().Commits
			var all sync.WaitGroup
			var mu sync.Mutex
			var longest time.Duration
			for i := range n {
				all.Go(func() {
					// Pairs overlap sometimes, like the requests of several clients.
					start := time.Now()
					do(t, e, sleeping)
					mu.Lock()
					defer mu.Unlock()
					longest = max(longest, time.Since(start))
				})
				time.Sleep(every / time.Duration(1+i%2*2))
			}
			all.Wait()
			if got := e.Stats().Commits - before; got > n/2 {
				t.Errorf("got %d commits for %d jobs, want at most %d", got, n, n/2)
			}
			if most := 2 * (spacing + enough*length); longest > most {
				t.Errorf("a job waited %v, want at most %v", longest, most)
			}
		})
	})
	t.Run("many_concurrently", func(t *testing.T) {
		slowCommits(t, func(t *testing.T, e *Engine, _ Job, _ time.Duration) {
			// There are so many jobs that no commit waits for more of them.
			const clients, rounds, length = 4 * enough, 20, time.Millisecond
			first := job{apply: func(tx *Tx) error { time.Sleep(length / (4 * enough)); return nil }}
			start := time.Now()
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for range rounds {
						do(t, e, first)
					}
				})
			}
			all.Wait()
			if took := time.Since(start); took > rounds*length*3/2+20*spacing {
				t.Errorf("got %v for %d jobs, want at most %v", took, clients*rounds, rounds*length*3/2+20*spacing)
			}
		})
	})
}

// lazily submits a lazy job and returns a channel that receives its outcome.
func lazily(t *testing.T, e *Engine, delay time.Duration) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	expect.OK(t, e.Within(delay, job{apply: func(*Tx) error { return nil }, done: func(err error) { done <- err }}))
	return done
}

func TestALazyJobRidesAlong(t *testing.T) {
	slowCommits(t, func(t *testing.T, e *Engine, sleeping Job, length time.Duration) {
		start := time.Now()
		<-lazily(t, e, lazyDelay)
		expect.Equal(t, "the time of a single job", time.Since(start), lazyDelay)
		// A job with a shorter delay commits the other too.
		start = time.Now()
		first, second := lazily(t, e, lazyDelay), lazily(t, e, lazyDelay/10)
		<-first
		<-second
		expect.Equal(t, "the time with one that waits a tenth", time.Since(start), lazyDelay/10)
		// Others that come do not put it off, and take it along.
		start = time.Now()
		done := lazily(t, e, lazyDelay)
		time.Sleep(10 * time.Millisecond)
		do(t, e, sleeping)
		<-done
		expect.Equal(t, "the time with company", time.Since(start), 10*time.Millisecond+length)
		// Ever more lazy ones wait no longer than the first.
		start = time.Now()
		done = lazily(t, e, lazyDelay)
		for range 9 {
			time.Sleep(lazyDelay / 10)
			lazily(t, e, lazyDelay)
		}
		<-done
		if took := time.Since(start); took > lazyDelay+time.Millisecond {
			t.Errorf("ten lazy jobs took %v", took)
		}
	})
}

func TestAFileThatIsRemovedWhileItIsOpen(t *testing.T) {
	for name, tt := range map[string]struct {
		remove, restore func(path string) error
	}{
		"OPS-16 a database that is removed":       {os.Remove, nil},
		"OPS-16 a log that is removed":            {func(path string) error { return os.Remove(path + "-wal") }, nil},
		"OPS-16 a database that is replaced":      {func(path string) error { return replace(path) }, nil},
		"OPS-16 a folder that is moved, and back": {func(path string) error { return move(path, ".old") }, func(path string) error { return move(path+".old", "") }},
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			e := expect.Value(Open(path, Options{}))(t)
			do(t, e, insert(100_000, "kept"))
			expect.OK(t, tt.remove(path))
			expect.Fault(t, "a write", e.Do(t.Context(), insert(100_001, "lost")), fault.Unavailable)
			expect.Fault(t, "the health", e.Health(), fault.Unavailable)
			if tt.restore == nil {
				expect.Fault(t, "the close", e.Close(), fault.Unavailable)
				return
			}
			expect.OK(t, tt.restore(path))
			if err := e.Health(); err != nil {
				t.Errorf("health got %v although the files are back", err)
			}
			do(t, e, insert(100_001, "kept, too"))
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// replace puts another file in the place of the one at path.
func replace(path string) error {
	if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// move moves the folder of the file at path, which has the ending from already, to one with the ending to.
func move(path, to string) error {
	if to != "" {
		return os.Rename(filepath.Dir(path), filepath.Dir(path)+to)
	}
	dir := filepath.Dir(path)
	return os.Rename(dir+".old", dir)
}
