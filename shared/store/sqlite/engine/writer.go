package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Job is work for the writer. One goroutine calls both methods, for one job at a
// time, so that jobs may share state without locks.
type Job interface {
	// Apply does the work within a transaction that it shares with other jobs.
	// It is called again when that transaction fails and its jobs are repeated
	// one by one. An error that is an [*Error] fails the whole transaction; a job that
	// returns any other error must not have written anything.
	Apply(tx *Tx) error
	// Done is told the outcome: nil after the commit, else the job has left no
	// trace. It must be quick and must not submit jobs.
	Done(err error)
}

// Tx is the transaction that a job is applied in.
type Tx struct {
	*Conn
	// Now is the time of the commit.
	Now time.Time
	// Attempt numbers the transactions, those that fail included.
	Attempt int64
}

const (
	// maxJobs bounds a commit. What waits beyond it is the next commit's.
	maxJobs  = 512
	maxQueue = 1024
	// lazyDelay is how long a job of [Engine.Lazily] waits for company.
	lazyDelay = 2 * time.Millisecond
)

// The states of an entry. Whoever moves it from waiting decides: the writer
// that takes it or the caller that gives up.
const (
	waiting int32 = iota
	taken
	abandoned
)

type entry struct {
	job   Job
	err   error
	state atomic.Int32
	done  chan struct{} // nil if nobody waits; else receives after the outcome
}

// Do submits a job and waits for its commit. When ctx ends before the writer has
// taken the job, the job is dropped, without [Job.Done], and the error is ctx's; after that
// moment Do waits for the outcome, so that it never leaves a doubt.
func (e *Engine) Do(ctx context.Context, job Job) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	en, _ := e.entries.Get().(*entry)
	if en == nil {
		en = &entry{done: make(chan struct{}, 1)}
	}
	en.job = job
	en.state.Store(waiting)
	if err := e.submit(ctx, en); err != nil {
		return err
	}
	select {
	case <-en.done:
	case <-ctx.Done():
		if en.state.CompareAndSwap(waiting, abandoned) {
			return ctx.Err() // the writer still holds the entry
		}
		<-en.done
	}
	err := en.err
	en.job, en.err = nil, nil
	e.entries.Put(en)
	return err
}

// Post submits a job without waiting for it. It blocks while very many jobs wait. A
// job that comes after [Engine.Close] is refused and not told.
func (e *Engine) Post(job Job) error {
	return e.submit(context.Background(), &entry{job: job})
}

// Lazily submits a job that nobody waits for and that is in no hurry. It rides
// along with the next commit, whoever causes that, or has one of its own after
// two milliseconds. A caller has few such jobs waiting, for there is no bound.
func (e *Engine) Lazily(job Job) error {
	e.gate.RLock()
	defer e.gate.RUnlock()
	if e.closed {
		return errClosed
	}
	e.lazyMu.Lock()
	e.lazy = append(e.lazy, &entry{job: job})
	e.lazyMu.Unlock()
	select {
	case e.lazyArm <- struct{}{}:
	default:
	}
	return nil
}

func (e *Engine) takeLazy(group []*entry) []*entry {
	e.lazyMu.Lock()
	defer e.lazyMu.Unlock()
	group = append(group, e.lazy...)
	clear(e.lazy)
	e.lazy = e.lazy[:0]
	return group
}

func (e *Engine) submit(ctx context.Context, en *entry) error {
	e.gate.RLock()
	defer e.gate.RUnlock()
	if e.closed {
		return errClosed
	}
	select {
	case e.queue <- en:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write is the writer: it takes what waits, commits it, answers, and so on until
// the queue is closed and empty. While a commit is on its way to the disk, the next
// group gathers.
func (e *Engine) write() {
	alarm := time.NewTimer(lazyDelay)
	defer alarm.Stop()
	group := make([]*entry, 0, maxJobs)
	for open := true; open; {
		group = group[:0]
		select {
		case first, ok := <-e.queue:
			if open = ok; ok {
				group = e.gather(append(group, first))
			}
		case <-e.lazyArm:
			alarm.Reset(lazyDelay)
			continue
		case <-alarm.C:
			group = e.gather(group)
		}
		if group = e.takeLazy(group); len(group) > 0 {
			e.commit(group)
			clear(group)
		}
	}
}

// gather adds what waits to the group.
func (e *Engine) gather(group []*entry) []*entry {
	for len(group) < maxJobs {
		select {
		case next, ok := <-e.queue:
			if !ok {
				return group
			}
			group = append(group, next)
		default:
			return group
		}
	}
	return group
}

func (e *Engine) commit(group []*entry) {
	conn := e.lockWriter()
	live := group[:0]
	for _, en := range group {
		if en.done == nil || en.state.CompareAndSwap(waiting, taken) {
			live = append(live, en)
		}
	}
	err := e.attempt(conn, live)
	if err != nil && len(live) > 1 && !lasting(err) {
		// One job has spoilt it for all. Alone, each gets what it deserves.
		for i := range live {
			e.finish(live[i:i+1], e.attempt(conn, live[i:i+1]))
		}
	} else {
		e.finish(live, err)
	}
	e.unlockWriter()
	e.dirty.Store(true)
}

// lasting reports that an error would meet each job of the group again: the
// disk is full, the file locked.
func lasting(err error) bool {
	se, ok := errors.AsType[*Error](err)
	return ok && transient[se.Code&0xff]
}

// attempt applies jobs in one transaction. An error means that nothing of it is
// left, nil that each entry has its own outcome.
func (e *Engine) attempt(conn *Conn, group []*entry) (err error) {
	if err := run(conn, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil && conn.inTransaction() {
			_ = run(conn, "ROLLBACK") // what matters is the error that led here
		}
	}()
	tx := &e.tx
	tx.Conn, tx.Now = conn, e.now()
	tx.Attempt++
	for _, en := range group {
		en.err = en.job.Apply(tx)
		if _, fatal := errors.AsType[*Error](en.err); fatal {
			return en.err
		}
	}
	return run(conn, "COMMIT")
}

func run(conn *Conn, sql string) error {
	s, err := conn.Stmt(sql)
	if err != nil {
		return err
	}
	return s.Exec()
}

func (e *Engine) finish(group []*entry, err error) {
	for _, en := range group {
		if err != nil {
			en.err = err
		}
		en.job.Done(en.err)
	}
	for _, en := range group {
		if en.done != nil {
			en.done <- struct{}{}
		}
	}
}
