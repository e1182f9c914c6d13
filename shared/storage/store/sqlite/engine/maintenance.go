package engine

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

const (
	// checkpointEvery is how often the engine copies the write-ahead log into the file. A page that many commits have written since the
	// last copy is copied only once.
	checkpointEvery = 500 * time.Millisecond
	// maxFrames is how many pages the write-ahead log may have before the engine makes SQLite overwrite the log from the
	// beginning. SQLite does so by itself only at a moment without readers, and until then the log grows.
	maxFrames = 16384
	// fewFrames limits how many pages of the log may be uncopied when the engine begins [startOver]. The readers pause while startOver
	// copies these pages.
	fewFrames = 512
)

// runCheckpoints regularly copies the write-ahead log into the file. It uses a connection of the readers' pool, so that commits do not
// wait for it.
func (e *Engine) runCheckpoints() {
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
		}
		_ = e.files.check() // logs a removed file even without a write
		e.probe()
		if !e.dirty.Swap(false) {
			continue
		}
		if err := e.checkpoint(); err != nil && !errors.Is(err, errClosed) {
			e.log.Warn("checkpoint failed", "error", err)
			e.dirty.Store(true)
		}
	}
}

func (e *Engine) checkpoint() error {
	// The write-ahead log grows while its pages are copied, so a few repetitions copy most of the new pages.
	for range 4 {
		conn := <-e.pool
		frames, moved, err := conn.checkpoint("PASSIVE")
		e.pool <- conn
		e.checkpointed.Add(1)
		e.health.note(&e.health.checkpoint, err)
		if err != nil || frames < e.maxFrames {
			return err
		}
		if frames-moved < fewFrames {
			break
		}
	}
	return e.Post(startOver{e})
}

// startOver is a [Job] that makes SQLite overwrite the write-ahead log from the beginning. That needs a moment without readers and
// writes.
type startOver struct{ e *Engine }

func (startOver) Apply(*Tx) error { return nil }

func (s startOver) Done(error) {
	conns := make([]*Conn, cap(s.e.pool))
	for i := range conns {
		conns[i] = <-s.e.pool
	}
	if _, _, err := s.e.writer.checkpoint("RESTART"); err != nil {
		s.e.log.Warn("checkpoint failed", "error", err)
	}
	for _, c := range conns {
		s.e.pool <- c
	}
}

const (
	// vacuumStep is how many pages one job of [Engine.Shrink] returns to the file system.
	vacuumStep  = 256
	vacuumPause = 10 * time.Millisecond
	// keepFree is how many free pages [Engine.Shrink] leaves for new rows.
	keepFree = 512
)

// Shrink returns free pages to the file system, until at most a quarter of the file, or [keepFree] pages, are free. New rows will soon
// use that many pages again. A file of an earlier release cannot shrink before "PRAGMA auto_vacuum=2; VACUUM" has run on it.
func (e *Engine) Shrink(ctx context.Context) error {
	for ctx.Err() == nil {
		step := &vacuum{}
		if err := e.Do(ctx, step); err != nil || !step.more {
			return err
		}
		_ = periodic.Sleep(ctx, vacuumPause) // the loop ends with ctx
	}
	return nil
}

type vacuum struct{ more bool }

func (v *vacuum) Apply(tx *Tx) error {
	v.more = false
	var mode, free, pages int64
	for _, read := range []struct {
		sql string
		to  *int64
	}{{"PRAGMA auto_vacuum", &mode}, {"PRAGMA freelist_count", &free}, {"PRAGMA page_count", &pages}} {
		var err error
		if *read.to, err = tx.Int(read.sql); err != nil {
			return err
		}
	}
	if mode != 2 || free <= keepFree || free <= pages/4 {
		return nil
	}
	v.more = true
	return tx.vacuum()
}

func (*vacuum) Done(error) {}

// Rewrite rewrites the file and empties the write-ahead log, so that both lose the remains of deleted rows. Reads and writes wait until
// it is done.
func (e *Engine) Rewrite(ctx context.Context) error {
	if e.inMemory() {
		return nil
	}
	job := rewrite{e, make(chan error, 1)}
	if err := e.Do(ctx, job); err != nil {
		return err
	}
	return <-job.done
}

type rewrite struct {
	e    *Engine
	done chan error
}

func (rewrite) Apply(*Tx) error { return nil }

// Done runs VACUUM. Apply could not do that, because VACUUM cannot run in a transaction.
func (r rewrite) Done(err error) {
	if err != nil {
		return
	}
	conns := make([]*Conn, cap(r.e.pool)) // the log cannot be emptied while there are readers
	for i := range conns {
		conns[i] = <-r.e.pool
	}
	if err = r.e.writer.Exec("VACUUM"); err == nil {
		_, _, err = r.e.writer.checkpoint("TRUNCATE")
	}
	for _, c := range conns {
		r.e.pool <- c
	}
	r.done <- err
}

// health holds the errors of the last write and the last checkpoint, and the last error that reported damage of the file.
type health struct {
	log *slog.Logger

	mu         sync.Mutex
	damaged    error // stays set until the engine is closed
	write      error
	checkpoint error
}

// Health returns an error if the last write or checkpoint failed because of the file or the disk, or if the file is damaged, removed or
// replaced. The engine logs the cause. While writes fail, the engine tries a write every half second, so that Health also recovers on an
// idle server.
func (e *Engine) Health() error {
	if err := e.files.check(); err != nil {
		return err
	}
	h := &e.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.damaged != nil:
		return fault.New(fault.Unavailable, "the database is damaged")
	case h.write != nil:
		return fault.New(fault.Unavailable, "the last write to the database failed")
	case h.checkpoint != nil:
		return fault.New(fault.Unavailable, "the last checkpoint of the database failed")
	}
	return nil
}

// blames reports whether an error is about the file or its disk. It also reports whether the error says that the file is damaged.
func blames(err error) (is, damaged bool) {
	se, ok := errors.AsType[*Error](err)
	if !ok {
		return false, false
	}
	primary := se.Code.ToPrimary()
	damaged = primary == sqlite.ResultCorrupt || primary == sqlite.ResultNotADB
	return damaged || transient[primary] && primary != sqlite.ResultInterrupt, damaged
}

// note stores err, the outcome of a write or a checkpoint, in one of the fields h.write and h.checkpoint. The parameter to points to the
// field. Then note logs whether failures begin or end. It ignores errors that are not about the file.
func (h *health) note(to *error, err error) {
	is, damaged := blames(err)
	if err != nil && !is {
		return
	}
	if damaged {
		h.damage(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil && *to == nil:
		h.log.Error("database write failed", "error", err)
	case err == nil && *to != nil:
		h.log.Info("database writes succeed again")
	}
	*to = err
}

func (h *health) noteRead(err error) {
	if _, damaged := blames(err); damaged {
		h.damage(err)
	}
}

func (h *health) damage(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.damaged == nil {
		h.log.Error("database damaged", "error", err)
	}
	h.damaged = err
}

func (h *health) writing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.write == nil
}

// probe is a [Job] that tests whether writes succeed. It writes the schema version that the file already has.
type probe struct{}

func (probe) Apply(tx *Tx) error {
	version, err := tx.Int("PRAGMA user_version")
	if err != nil {
		return err
	}
	return tx.Exec("PRAGMA user_version=" + strconv.FormatInt(version, 10))
}

func (probe) Done(error) {}

func (e *Engine) probe() {
	if !e.health.writing() {
		_ = e.Do(context.Background(), probe{}) // the writer notes the outcome
	}
}

// errRemoved is the error while the database file or its log is missing at its path. The operating system keeps an open file that was
// removed or replaced, so writes to it would succeed, but would be lost when the engine closes.
var errRemoved = fault.New(fault.Unavailable, "the database was removed or replaced while it was open")

// presence detects that the database file or its write-ahead log was removed or replaced. The zero value is for an engine in memory.
type presence struct {
	path string
	log  *slog.Logger

	mu        sync.Mutex
	main, wal os.FileInfo
	removed   bool // the last check found a removed or replaced file
}

func (p *presence) open(path string) error {
	main, err := os.Stat(path)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "look at the file")
	}
	p.path, p.main = path, main
	p.wal, _ = os.Stat(path + "-wal") // it may not be there yet
	return nil
}

// check returns [errRemoved] if the database file or its log was removed or replaced. It returns nil again after the file was moved back.
func (p *presence) check() error {
	if p.path == "" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	main, wal := p.main, p.wal
	removed := isMissing(p.path, &main) || isMissing(p.path+"-wal", &wal)
	p.wal = wal
	switch {
	case removed && !p.removed:
		p.log.Error("database removed", "path", p.path)
	case !removed && p.removed:
		p.log.Info("database is back", "path", p.path)
	}
	if p.removed = removed; removed {
		return errRemoved
	}
	return nil
}

// isMissing reports whether the file at path was removed or replaced since an earlier call stored its state in *known. If *known is nil,
// isMissing stores the state there. If the file cannot be examined, for example because a permission is missing, it counts as present.
func isMissing(path string, known *os.FileInfo) bool {
	found, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return *known != nil
	case err != nil:
		return false
	case *known == nil:
		*known = found
		return false
	}
	return !os.SameFile(*known, found)
}
