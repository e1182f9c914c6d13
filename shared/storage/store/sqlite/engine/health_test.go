package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// filled makes a closed file with some hundred pages.
func filled(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "e.db")
	e := expect.Value(Open(path, Options{}))(t)
	do(t, e, exec("CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"))
	for i := range int64(300) {
		do(t, e, insert(i, strings.Repeat("x", 3000)))
	}
	expect.OK(t, e.Close())
	return path
}

// garbage overwrites n bytes of the file.
func garbage(t *testing.T, path string, at int64, n int) {
	t.Helper()
	f := expect.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	expect.OK(t, expect.ErrOf(f.WriteAt(b, at)))
}

func TestADamagedFileIsRefused(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"header": func(t *testing.T, path string) { garbage(t, path, 0, 100) },
		"schema": func(t *testing.T, path string) { garbage(t, path, 100, 3900) },
		"a page": func(t *testing.T, path string) { garbage(t, path, 5*4096, 64*4096) },
		"cut": func(t *testing.T, path string) {
			expect.OK(t, os.Truncate(path, 100*4096))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			damage(t, path)
			e, err := Open(path, Options{})
			if err == nil {
				e.Close()
				t.Fatal("it was opened")
			}
			expect.Fault(t, "the error", err, fault.Invalid, "is damaged; restore a backup")
		})
	}
	t.Run("nothing", func(t *testing.T) {
		e := openAt(t, filled(t))
		expect.OK(t, e.Health())
	})
}

func TestHealthFollowsTheLastWrite(t *testing.T) {
	e := openTable(t)
	pages := number(t, e, "PRAGMA page_count")
	do(t, e, exec(fmt.Sprintf("PRAGMA max_page_count=%d", pages)))
	expect.OK(t, e.Health(), "before")
	_ = e.Do(context.Background(), job{apply: func(*Tx) error { return errors.New("the job's own error") }})
	_ = e.Do(context.Background(), exec("INSERT INTO nowhere VALUES (1)"))
	expect.OK(t, e.Health(), "an error that is not the disk's")
	expect.Error(t, "a write to a full disk", e.Do(context.Background(), insert(1, strings.Repeat("x", 10_000))))
	// An idle server finds out by itself that the disk takes writes again. Only a write tells, not an empty commit.
	deadline := time.After(20 * time.Second)
	expect.OK(t, e.Do(context.Background(), exec("SELECT 1")))
	expect.Fault(t, "after the write that failed", e.Health(), fault.Unavailable)
	for e.Health() != nil {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("still %v", e.Health())
		}
	}
}

func TestDamageThatAReadFindsStays(t *testing.T) {
	path := filled(t)
	e := openAt(t, path)
	garbage(t, path, 5*4096, 64*4096)
	count := func() error {
		return e.Read(context.Background(), func(c *Conn) error { _, err := c.Int("SELECT sum(length(s)) FROM n"); return err })
	}
	expect.Error(t, "a read of damaged pages", count())
	do(t, e, insert(1000, "x"))
	expect.Error(t, "the health", e.Health(), "damaged")
}

func TestAPanicLeavesNoTransactionOpen(t *testing.T) {
	for name, path := range map[string]string{"file": filepath.Join(t.TempDir(), "e.db"), "memory": Memory} {
		t.Run(name, func(t *testing.T) {
			e := expect.Value(Open(path, Options{Readers: 1}))(t)
			defer e.Close()
			do(t, e, exec("CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"))
			do(t, e, insert(1, "x"))
			do(t, e, insert(2, "x"))
			for name, read := range map[string]func(context.Context, func(*Conn) error) error{"read": e.Read, "snapshot": e.Snapshot} {
				func() {
					defer func() { _ = recover() }()
					_ = read(context.Background(), func(c *Conn) error {
						s := c.Stmt("SELECT i FROM n")
						if _, err := s.Step(); err != nil {
							return err
						}
						panic("in the middle of the rows")
					})
				}()
				// The one connection sees what is written after the panic, also in a snapshot of its own.
				rows := number(t, e, "SELECT count(*) FROM n")
				do(t, e, insert(10+rows, "x"))
				err := e.Snapshot(context.Background(), func(c *Conn) error {
					got, err := c.Int("SELECT count(*) FROM n")
					expect.Equal(t, "rows after a panic in a "+name, got, rows+1)
					return err
				})
				expect.OK(t, err, "after a panic in a", name)
			}
		})
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	return expect.Value(os.Stat(path))(t).Size()
}

func TestTheFileShrinks(t *testing.T) {
	const table = "CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"
	fill := func(t *testing.T, e *Engine) {
		do(t, e, job{apply: func(tx *Tx) error {
			for i := range int64(200) {
				if err := insert(i, strings.Repeat("x", 40_000)).apply(tx); err != nil {
					return err
				}
			}
			return nil
		}})
		do(t, e, exec("DELETE FROM n"))
		expect.OK(t, e.Shrink(context.Background()))
	}
	t.Run("new", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "e.db")
		e := openAt(t, path)
		do(t, e, exec(table))
		fill(t, e)
		expect.OK(t, e.Close())
		expect.AtMost(t, "the bytes that are left of 8 million", size(t, path), (keepFree+200)*pageSize)
	})
	t.Run("of_an_earlier_release", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "e.db")
		c := expect.Value(openConn(path, "journal_mode=WAL"))(t)
		expect.OK(t, c.Exec(table))
		c.close()
		e := openAt(t, path)
		fill(t, e)
		was := number(t, e, "PRAGMA page_count")
		fill(t, e) // into the free pages
		expect.AtMost(t, fmt.Sprintf("the pages after %d, of which some were free", was), number(t, e, "PRAGMA page_count"), was*11/10)
	})
}

// Written bytes must be counted for any path, because checkpoints depend on them.
func TestStatsOfAnyPath(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	expect.OK(t, os.Symlink(t.TempDir(), link))
	for _, path := range []string{filepath.Join(dir, "a b?c=d#e%20&f.db"), filepath.Join(link, "e.db")} {
		e := openAt(t, path)
		do(t, e, exec("CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"))
		before := e.Stats()
		do(t, e, insert(1, "x"))
		if got := e.Stats(); got.Syncs == before.Syncs || got.Written == before.Written {
			t.Errorf("%s: %+v, after a write %+v", path, before, got)
		}
		expect.OK(t, expect.ErrOf(os.Stat(path)))
	}
}

// A commit takes one sync and writes the pages that it changed. An idle engine does not write.
func TestStats(t *testing.T) {
	e := openAt(t, filepath.Join(t.TempDir(), "e.db"))
	do(t, e, exec("CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"))
	before := e.Stats()
	for i := range int64(10) {
		do(t, e, insert(i, "x"))
	}
	after := e.Stats()
	expect.Equal(t, "commits", after.Commits-before.Commits, 10)
	// The checkpoint syncs twice, and once more where the log starts over.
	if got, most := after.Syncs-before.Syncs, 10+3*(after.Checkpoints-before.Checkpoints+1); got < 10 || got > most {
		t.Errorf("%d syncs, want 10 to %d", got, most)
	}
	if got := after.Written - before.Written; got < 10*pageSize || got > 100*pageSize {
		t.Errorf("%d bytes written by 10 commits of a page", got)
	}
	for last := e.Stats(); ; last = e.Stats() {
		time.Sleep(2 * checkpointEvery) // a checkpoint or none
		if e.Stats() == last {
			break
		}
		if e.Stats().Checkpoints > after.Checkpoints+3 {
			t.Fatalf("%+v, then %+v without a write", last, e.Stats())
		}
	}
}

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
			expect.AtMost(t, "the commits", e.Stats().Commits-before, n/2)
			expect.AtMost(t, "the time that a job waited", longest, 2*(spacing+enough*length))
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
			expect.AtMost(t, "the time of the jobs", time.Since(start), rounds*length*3/2+20*spacing)
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
		before := e.Stats().Commits
		done := lazily(t, e, lazyDelay)
		time.Sleep(10 * time.Millisecond)
		do(t, e, sleeping)
		<-done
		expect.Equal(t, "the time with company", time.Since(start), 10*time.Millisecond+length)
		expect.Equal(t, "the commits with company", e.Stats().Commits-before, 1)
		// Ever more lazy ones wait no longer than the first.
		start = time.Now()
		done = lazily(t, e, lazyDelay)
		for range 9 {
			time.Sleep(lazyDelay / 10)
			lazily(t, e, lazyDelay)
		}
		<-done
		expect.AtMost(t, "the time that ten lazy jobs took", time.Since(start), lazyDelay+time.Millisecond)
	})
}

// batchJob is a job of a batch. It must be applied before jobs of type blocked.
type batchJob struct{ job }

type blocked struct{ job }

func (batchJob) Before(other Job) bool {
	_, ok := other.(blocked)
	return ok
}

func TestABatchJobWaitsForOthers(t *testing.T) {
	slowCommits(t, func(t *testing.T, e *Engine, sleeping Job, length time.Duration) {
		var mu sync.Mutex
		var applied []string
		named := func(name string) (job, <-chan error) {
			done := make(chan error, 1)
			return job{
				apply: func(*Tx) error {
					mu.Lock()
					defer mu.Unlock()
					applied = append(applied, name)
					return nil
				},
				done: func(err error) { done <- err },
			}, done
		}
		jobs := func() string {
			mu.Lock()
			defer mu.Unlock()
			return strings.Join(applied, ", ")
		}
		batched := func(name string, weight int) <-chan error {
			j, done := named(name)
			expect.OK(t, e.Batch(batchJob{j}, weight))
			return done
		}
		check := func(what string, since time.Time, took time.Duration, want string) {
			t.Helper()
			expect.Equal(t, "the time of "+what, time.Since(since), took)
			expect.Equal(t, "the jobs of "+what, jobs(), want)
			mu.Lock()
			applied = nil
			mu.Unlock()
		}
		// Commits of other jobs do not take the batch along.
		start := time.Now()
		done := batched("batch", 1)
		time.Sleep(10 * time.Millisecond)
		other, _ := named("other")
		do(t, e, other)
		expect.Equal(t, "the jobs before the batch is due", jobs(), "other")
		<-done
		check("a batch that is due", start, lazyDelay, "other, batch")
		// A lazy job with a later time does not delay the batch, and one with an earlier time does not take it along.
		start = time.Now()
		done = batched("batch", 1)
		<-lazily(t, e, lazyDelay/10)
		<-done
		check("a batch next to a lazy job", start, lazyDelay, "batch")
		start = time.Now()
		done = batched("batch", 1)
		time.Sleep(lazyDelay / 2)
		lazily(t, e, lazyDelay)
		<-done
		check("a batch before a lazy job", start, lazyDelay, "batch")
		// A full batch shares the next commit.
		start = time.Now()
		done = batched("batch", fullBatch)
		do(t, e, sleeping)
		<-done
		check("a full batch", start, length, "batch")
		// A batch comes before the jobs that must be applied after it.
		start = time.Now()
		batched("batch", 1)
		last, _ := named("blocked")
		do(t, e, blocked{last})
		check("a job that the batch precedes", start, 0, "batch, blocked")
		// The end of the engine commits it too.
		done = batched("batch", 1)
		expect.OK(t, e.Close())
		expect.OK(t, <-done)
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
			expect.OK(t, e.Health(), "the health after the files are back")
			do(t, e, insert(100_001, "kept, too"))
			expect.OK(t, e.Close())
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
