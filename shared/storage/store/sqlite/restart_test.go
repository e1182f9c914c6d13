package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

func lastStamp(t *testing.T, db *DB) int64 {
	t.Helper()
	page := expect.Value(db.Query(context.Background(), store.Query{Table: store.Log, Partition: "p", Reverse: true, Limit: 1}))(t)
	expect.MustEqual(t, "the number of items", len(page.Items), 1)
	return expect.Value(strconv.ParseInt(page.Items[0].Sort, 10, 64))(t)
}

func mustWrite(t *testing.T, db *DB, ops ...store.Op) {
	t.Helper()
	expect.OK(t, db.Write(context.Background(), ops...))
}

func logged(span int) store.Op {
	op := store.Put(store.Item{Key: store.Key{Table: store.Log, Partition: "p", Sort: store.AtCommit}})
	op.Span = span
	return op
}

// wallClock is a clock that tests set.
type wallClock struct{ us atomic.Int64 }

func (c *wallClock) now() time.Time { return time.UnixMicro(c.us.Load()) }

func TestStampsNeverGoBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.db")
	var clock wallClock
	const start = 1_800_000_000_000_000
	clock.us.Store(start)
	opts := Options{Engine: engine.Options{Now: clock.now}}
	last := int64(0)
	for _, step := range []struct {
		name    string
		clock   int64
		restart bool
		span    int
		want    int64
	}{
		{"the clock's time", 0, false, 1, start},
		{"the clock stands still", 0, false, 3, start + 3},
		{"the clock goes back an hour", -3_600_000_000, false, 1, start + 4},
		{"a restart while it is behind", -3_600_000_000, true, 2, start + 6},
		{"the newest items are deleted before a restart", -3_600_000_000, true, 1, start + 7},
		{"the clock catches up", 60_000_000, true, 5, start + 60_000_000},
	} {
		t.Run(step.name, func(t *testing.T) {
			clock.us.Store(start + step.clock)
			db := expect.Value(Open(path, opts))(t)
			defer db.Close()
			mustWrite(t, db, logged(step.span))
			got := lastStamp(t, db)
			if got != step.want || got <= last {
				t.Errorf("got stamp %d after %d, want %d", got, last, step.want)
			}
			expect.Equal(t, "the end", db.End(), got)
			last = got
			if step.restart {
				mustWrite(t, db, store.Delete(store.Key{Table: store.Log, Partition: "p", Sort: fmt.Sprintf("%016d", got)}))
			}
		})
	}
}

func TestAFailedCommitDoesNotLoseTheLimitOfStamps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.db")
	db := open(t, path, Options{})
	mustWrite(t, db, logged(1))
	// A transaction makes a much later stamp, but another job fails the transaction.
	gate := make(chan struct{})
	for _, job := range []engine.Job{
		waitFor(gate), &write{db: db, ops: []store.Op{logged(maxSpan)}}, sql("this is no SQL"),
	} {
		expect.OK(t, db.engine.Post(job))
	}
	close(gate)
	mustWrite(t, db, logged(1))
	expect.AtLeast(t, "the limit in the file", limitInFile(t, db), lastStamp(t, db))
}

type waitFor chan struct{}

func (w waitFor) Apply(*engine.Tx) error { <-w; return nil }
func (waitFor) Done(error)               {}

func limitInFile(t *testing.T, db *DB) (n int64) {
	t.Helper()
	err := db.engine.Read(context.Background(), func(c *engine.Conn) (err error) {
		n, err = c.Int("SELECT last FROM stamps")
		return err
	})
	expect.OK(t, err)
	return n
}

func TestExpiredItemsAreRemoved(t *testing.T) {
	var clock wallClock
	clock.us.Store(1_800_000_000_000_000)
	db := open(t, filepath.Join(t.TempDir(), "events.db"), Options{SweepEvery: -1, Engine: engine.Options{Now: clock.now}})
	var ops []store.Op
	for i := range 3*sweepStep + 7 {
		item := store.Item{Key: store.Key{Table: store.Deliveries, Partition: fmt.Sprint(i % 10), Sort: fmt.Sprint(i)}}
		switch i % 3 {
		case 0:
			item.Expires = clock.now().Add(time.Minute)
		case 1:
			item.Expires = clock.now().Add(time.Hour)
		}
		ops = append(ops, store.Put(item))
	}
	expect.OK(t, db.WriteAll(context.Background(), ops...))
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{59 * time.Second, 0}, {time.Second, (len(ops) + 2) / 3}, {0, 0}, {time.Hour, (len(ops) + 1) / 3}} {
		clock.us.Add(step.after.Microseconds())
		removed, err := db.sweep(context.Background())
		if err != nil || removed != step.want {
			t.Errorf("after another %v: removed %d, %v; want %d", step.after, removed, err, step.want)
		}
	}
}

func TestAFileOfALaterReleaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.db")
	db := expect.Value(Open(path, Options{}))(t)
	expect.OK(t, db.engine.Do(context.Background(), sql(fmt.Sprintf("PRAGMA user_version=%d", schemaVersion+1))))
	expect.OK(t, db.Close())
	expect.Fault(t, "the call", expect.ErrOf(Open(path, Options{})), fault.Unsupported)
}

type sql string

func (s sql) Apply(tx *engine.Tx) error { return tx.Exec(string(s)) }
func (sql) Done(error)                  {}

// crashFile, in the environment, makes this test binary the process that is killed.
const crashFile = "STORE_CRASH_FILE"

// TestAKilledProcessLosesNoAnsweredWrite kills a process several times during its writes, and checks that the file has every
// write that was answered.
func TestAKilledProcessLosesNoAnsweredWrite(t *testing.T) {
	if path := os.Getenv(crashFile); path != "" {
		writeUntilKilled(path)
		return
	}
	path := filepath.Join(t.TempDir(), "events.db")
	acknowledged := map[string]bool{}
	newest := int64(0)
	for round := range 3 {
		child := exec.Command(os.Args[0], "-test.run=^TestAKilledProcessLosesNoAnsweredWrite$")
		child.Env = append(os.Environ(), crashFile+"="+path)
		child.Stderr = os.Stderr
		out := expect.Value(child.StdoutPipe())(t)
		expect.OK(t, child.Start())
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			acknowledged[lines.Text()] = true
			if n == 200*(round+1) {
				expect.Fault(t, "opening the file while another process has it", expect.ErrOf(Open(path, Options{})), fault.Conflict)
				_ = child.Process.Kill()
			}
		}
		_ = child.Wait()

		db := expect.Value(Open(path, Options{}))(t)
		for line := range acknowledged {
			items, err := db.Get(context.Background(),
				store.Key{Table: store.Subscriptions, Partition: "p", Sort: line}, store.Key{Table: store.Deliveries, Partition: line, Sort: "s"})
			if err != nil || items[0] == nil || items[1] == nil {
				t.Fatalf("round %d: %s was answered and is not there: %v, %v", round, line, items, err)
			}
		}
		check(t, db)
		expect.AtLeast(t, "the reserved stamp in the file", limitInFile(t, db), lastStamp(t, db))
		mustWrite(t, db, logged(1))
		if stamp := lastStamp(t, db); stamp <= newest {
			t.Errorf("stamp %d after %d", stamp, newest)
		} else {
			newest = stamp
		}
		expect.OK(t, db.Close())
	}
}

func check(t *testing.T, db *DB) {
	t.Helper()
	err := db.engine.Read(context.Background(), func(c *engine.Conn) error {
		s := c.Stmt("PRAGMA integrity_check")
		defer s.Reset()
		if row, err := s.Step(); err != nil || !row || s.ColumnText(0) != "ok" {
			return fmt.Errorf("integrity_check: %q, %w", s.ColumnText(0), err)
		}
		return nil
	})
	expect.OK(t, err)
}

func writeUntilKilled(path string) {
	db, err := Open(path, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 100_000 { // the parent ends it long before
				name := fmt.Sprintf("%s-%d-%d", run, w, i)
				err := db.Write(context.Background(), logged(1),
					store.Put(store.Item{Key: store.Key{Table: store.Subscriptions, Partition: "p", Sort: name}, Value: make([]byte, 500)}, store.Absent()),
					store.Put(store.Item{Key: store.Key{Table: store.Deliveries, Partition: name, Sort: "s"}, Value: make([]byte, 500), Expires: time.Now().Add(time.Hour)}))
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				if _, err := io.WriteString(os.Stdout, name+"\n"); err != nil {
					os.Exit(0) // the parent has ended
				}
			}
		})
	}
	all.Wait()
}
