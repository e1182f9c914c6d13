package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// job is a [Job] of functions.
type job struct {
	apply func(tx *Tx) error
	done  func(err error)
}

func (j job) Apply(tx *Tx) error { return j.apply(tx) }

func (j job) Done(err error) {
	if j.done != nil {
		j.done(err)
	}
}

func exec(sql string) job { return job{apply: func(tx *Tx) error { return tx.Exec(sql) }} }

func openAt(t *testing.T, path string) *Engine {
	t.Helper()
	e := expect.Value(Open(path, Options{Readers: 2}))(t)
	t.Cleanup(func() { expect.OK(t, e.Close()) })
	return e
}

// openTable opens a new file with an empty table of numbers and texts.
func openTable(t *testing.T) *Engine {
	t.Helper()
	e := openAt(t, filepath.Join(t.TempDir(), "e.db"))
	do(t, e, exec("CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"))
	return e
}

func do(t *testing.T, e *Engine, j Job) {
	t.Helper()
	expect.OK(t, e.Do(context.Background(), j))
}

func insert(i int64, s string) job {
	return job{apply: func(tx *Tx) error {
		return tx.Stmt("INSERT INTO n VALUES (?, ?)").Int(1, i).Text(2, s).Exec()
	}}
}

func number(t *testing.T, e *Engine, sql string) (n int64) {
	t.Helper()
	err := e.Read(context.Background(), func(c *Conn) (err error) {
		n, err = c.Int(sql)
		return err
	})
	expect.OK(t, err)
	return n
}

// hold keeps the writer busy until the returned function is called, so that the
// jobs that are submitted meanwhile become one group.
func hold(t *testing.T, e *Engine) (release func()) {
	t.Helper()
	holding, released := make(chan struct{}), make(chan struct{})
	err := e.Post(job{apply: func(*Tx) error { close(holding); <-released; return nil }})
	expect.OK(t, err)
	<-holding
	return func() { close(released) }
}

func TestWaitingJobsShareACommit(t *testing.T) {
	e := openTable(t)
	release := hold(t, e)
	attempts := map[int64]int{}
	var all sync.WaitGroup
	for i := range int64(20) {
		inner := insert(i, "x")
		j := job{apply: func(tx *Tx) error { attempts[tx.Attempt]++; return inner.apply(tx) }, done: func(error) { all.Done() }}
		all.Add(1)
		expect.OK(t, e.Post(j))
	}
	release()
	all.Wait()
	expect.Equal(t, "transactions of 20 waiting jobs", len(attempts), 1)
	expect.Equal(t, "rows", number(t, e, "SELECT count(*) FROM n"), 20)
}

func TestAJobThatFailsHarmsNoOther(t *testing.T) {
	e := openTable(t)
	do(t, e, insert(7, "first"))
	errRefused := errors.New("refused")
	for name, bad := range map[string]job{
		"an error of its own": {apply: func(*Tx) error { return errRefused }},
		"an error of SQLite":  insert(7, "again"),
	} {
		t.Run(name, func(t *testing.T) {
			before := number(t, e, "SELECT count(*) FROM n")
			release := hold(t, e)
			results := make([]error, 5)
			var all sync.WaitGroup
			for i := range results {
				inner := insert(before*100+int64(i), "good")
				if i == 2 {
					inner = bad
				}
				all.Add(1)
				inner.done = func(err error) { results[i] = err; all.Done() }
				expect.OK(t, e.Post(inner))
			}
			release()
			all.Wait()
			for i, err := range results {
				expect.Equal(t, fmt.Sprintf("job %d failed", i), err != nil, i == 2)
			}
			expect.Equal(t, "rows that came in", number(t, e, "SELECT count(*) FROM n")-before, 4)
		})
	}
}

func TestDoWithAContextThatEnds(t *testing.T) {
	e := openTable(t)
	release := hold(t, e)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- e.Do(ctx, insert(1, "x")) }()
	for len(e.queue) == 0 { // until the job waits behind the one that holds
		runtime.Gosched()
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) || Kind(err) != fault.Unavailable {
		t.Errorf("got %v", err)
	}
	release()
	do(t, e, insert(2, "x"))
	expect.Equal(t, "rows of a job that failed", number(t, e, "SELECT count(*) FROM n WHERE i=1"), 0)
}

func TestCloseCommitsWhatWaitsAndRefusesTheRest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e.db")
	e := openAt(t, path)
	do(t, e, exec("CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"))
	release := hold(t, e)
	for i := range int64(10) {
		expect.OK(t, e.Post(insert(i, "x")))
	}
	release()
	expect.OK(t, e.Close())
	expect.Fault(t, "Do after Close", e.Do(context.Background(), insert(11, "x")), fault.Unavailable)
	expect.Fault(t, "Read after Close", e.Read(context.Background(), func(*Conn) error { return nil }), fault.Unavailable)
	expect.Equal(t, "rows after reopening", number(t, openAt(t, path), "SELECT count(*) FROM n"), 10)
}

func TestASecondServerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e.db")
	e := openAt(t, path)
	_, err := Open(path, Options{})
	expect.Fault(t, "the second server", err, fault.Conflict, "another server")
	expect.OK(t, e.Close())
	openAt(t, path) // the file is free again
}

func TestOpenTellsWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	noDB := filepath.Join(dir, "no.db")
	expect.OK(t, os.WriteFile(noDB, []byte(strings.Repeat("this is no database", 400)), 0o600))
	for path, want := range map[string]string{
		filepath.Join(dir, "nowhere", "e.db"): "unable to open",
		noDB:                                  "not a database",
	} {
		expect.Error(t, path, expect.ErrOf(Open(path, Options{})), want)
	}
}

func TestTheFileIsForItsOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e.db")
	e := openAt(t, path)
	do(t, e, exec("CREATE TABLE n (i INTEGER)"))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		expect.Equal(t, fmt.Sprintf("the mode of e.db%s", suffix), expect.Value(os.Stat(path+suffix))(t).Mode().Perm(), 0o600)
	}
}

func TestAFullDiskIsUnavailableAndPasses(t *testing.T) {
	e := openTable(t)
	pages := number(t, e, "PRAGMA page_count")
	do(t, e, exec(fmt.Sprintf("PRAGMA max_page_count=%d", pages+2)))
	var all sync.WaitGroup
	failed := make(chan error, 100)
	for i := range int64(100) {
		all.Go(func() {
			if err := e.Do(context.Background(), insert(i, strings.Repeat("x", 1000))); err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	close(failed)
	n := 0
	for err := range failed {
		n++
		expect.MustEqual(t, "the kind of the error", Kind(err), fault.Unavailable)
	}
	if rows := number(t, e, "SELECT count(*) FROM n"); rows+int64(n) != 100 || n == 0 {
		t.Errorf("%d writes failed, %d rows are there", n, rows)
	}
	do(t, e, exec("PRAGMA max_page_count=1000000"))
	do(t, e, insert(1000, strings.Repeat("x", 10_000)))
}

func TestTheLogStartsOverUnderSteadyLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "e.db")
	e := openAt(t, path)
	do(t, e, exec("CREATE TABLE n (i INTEGER PRIMARY KEY, s TEXT NOT NULL)"))
	e.maxFrames = 100
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 2 {
		all.Go(func() { // so that there is always a reader
			for ctx.Err() == nil {
				_ = e.Read(ctx, func(c *Conn) error { _, err := c.Int("SELECT count(*) FROM n"); return err })
			}
		})
	}
	all.Go(func() { // so that there is always something left to move
		for ctx.Err() == nil {
			_ = e.Do(ctx, exec("UPDATE n SET i=i WHERE i=0"))
		}
	})
	text := strings.Repeat("x", 4000)
	fill := job{apply: func(tx *Tx) error { // with more than 100 frames
		stmt := tx.Stmt("INSERT OR REPLACE INTO n VALUES (?, ?)")
		var err error
		for i := int64(0); i < 150 && err == nil; i++ {
			err = stmt.Int(1, i).Text(2, text).Exec()
		}
		return err
	}}
	// A checkpoint of the engine's own, each half second, can be in the way of one that this test makes.
	const rounds = 20
	var frames int
	for range rounds {
		do(t, e, fill)
		expect.OK(t, e.checkpoint())
		// The first write may be in one commit with the job that starts the log over. The second one is the log's first frame.
		do(t, e, exec("UPDATE n SET i=i WHERE i=0"))
		do(t, e, exec("UPDATE n SET i=i WHERE i=0"))
		err := e.Read(ctx, func(c *Conn) (err error) { frames, _, err = c.checkpoint("PASSIVE"); return err })
		expect.OK(t, err)
		if frames > 0 && frames < e.maxFrames { // 0 while the engine makes a checkpoint
			return
		}
	}
	t.Errorf("the log has %d frames after %d rounds, want fewer than %d", frames, rounds, e.maxFrames)
}

func TestSnapshotSeesOneCommit(t *testing.T) {
	e := openTable(t)
	do(t, e, insert(1, "x"))
	err := e.Snapshot(context.Background(), func(c *Conn) error {
		before, err := c.Int("SELECT count(*) FROM n")
		if err != nil {
			return err
		}
		do(t, e, insert(2, "x"))
		after, err := c.Int("SELECT count(*) FROM n")
		expect.Equal(t, "the rows", before, after)
		return err
	})
	expect.OK(t, err)
}

func TestValuesOfAllSizes(t *testing.T) {
	e := openTable(t)
	do(t, e, exec("CREATE TABLE v (i INTEGER PRIMARY KEY, t TEXT NOT NULL, b BLOB NOT NULL)"))
	for i, size := range []int{0, 1, 2 << 10, 2<<10 + 1, 4 << 10, 4<<10 + 1, 64 << 10, 128 << 10, 1 << 20} {
		text := strings.Repeat("ä", size/2) + strings.Repeat("\x00", size%2)
		blob := []byte(text)
		do(t, e, job{apply: func(tx *Tx) error {
			return tx.Stmt("INSERT INTO v VALUES (?, ?, ?)").Int(1, int64(i)).Text(2, text).Blob(3, blob).Exec()
		}})
		err := e.Read(context.Background(), func(c *Conn) error {
			s := c.Stmt("SELECT t, b FROM v WHERE i=?")
			defer s.Reset()
			if row, err := s.Int(1, int64(i)).Step(); err != nil || !row {
				return fmt.Errorf("row %d: %v, %w", i, row, err)
			}
			if s.ColumnText(0) != text || string(s.ColumnBlob(1)) != text {
				t.Errorf("a value of %d bytes came back changed", size)
			}
			return nil
		})
		expect.OK(t, err)
	}
}

// A caller of Lazily may hold a lock that the Done of another job needs. So Lazily must not wait for the writer, not even while Close
// waits for a job that does not fit into the queue.
func TestALazyJobDoesNotWaitForClose(t *testing.T) {
	e := expect.Value(Open(filepath.Join(t.TempDir(), "db"), Options{}))(t)
	release := hold(t, e)
	var posts, closed sync.WaitGroup
	posts.Go(func() {
		for range maxQueue + 1 {
			if err := e.Post(exec("SELECT 1")); err != nil {
				return
			}
		}
	})
	for len(e.queue) < maxQueue {
		time.Sleep(time.Millisecond)
	}
	closed.Go(func() { expect.OK(t, e.Close()) })
	for e.gate.TryRLock() { // until Close waits
		e.gate.RUnlock()
		time.Sleep(time.Millisecond)
	}
	done := make(chan error, 1)
	submitted := make(chan error, 1)
	go func() {
		submitted <- e.Lazily(job{apply: func(*Tx) error { return nil }, done: func(err error) { done <- err }})
	}()
	expect.OK(t, expect.Receive(t, "the end of Lazily, which does not wait for the writer", submitted))
	release()
	posts.Wait()
	closed.Wait()
	expect.OK(t, <-done)
	expect.Error(t, "a lazy job after Close", e.Lazily(exec("SELECT 1")))
}
