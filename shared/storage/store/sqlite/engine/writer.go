package engine

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
)

// Job is work for the writer, the only goroutine that writes to the file. The writer calls the methods of one job at a time, so jobs may
// share state without locks.
type Job interface {
	// Apply does the work in a transaction that other jobs may share. If Apply returns an [*Error], because SQLite failed, the transaction is
	// rolled back, and the writer may call Apply again in a transaction without other jobs. If Apply returns another error, only this job
	// fails, so it must not have written anything.
	Apply(tx *Tx) error
	// Done receives the outcome of the job. After an error, the job has written nothing. Done must return quickly and must not submit
	// jobs.
	Done(err error)
}

// Tx is the transaction in which the writer applies a job.
type Tx struct {
	*Conn
	// Now is the time of the transaction, which jobs use as the time of the commit.
	Now time.Time
	// Attempt is a number that is different in each transaction. If a transaction is rolled back, its jobs are applied again in another
	// transaction, and can recognize this by the new number.
	Attempt int64
}

const (
	// maxJobs limits the jobs in one commit, and maxQueue limits the jobs that wait for a later commit.
	maxJobs  = 512
	maxQueue = 1024
	// lazyDelay is how long a job of [Engine.Lazily] waits for the commit of another job. Sharing a commit saves a sync of the disk.
	lazyDelay = 50 * time.Millisecond
	// fullBatch is the number of rows at which the jobs of [Engine.Batch] are committed. Larger batches would save little, and events
	// would wait longer for the commit.
	fullBatch = 32
	// spacing is the shortest time between two commits while many jobs arrive, so that more jobs share a commit. The constant enough is
	// the number of jobs with which a commit no longer waits.
	spacing = 2 * time.Millisecond
	enough  = 16
	// crowded is how many jobs must arrive during a commit, on average, before commits wait for [spacing]. If events arrive one after the
	// other, no job arrives during a commit, so commits do not wait.
	crowded = 1
)

// The states of an entry, which is a job that was submitted to the writer. Either the writer takes the entry, or its caller abandons it
// because the caller's context ended.
const (
	waiting int32 = iota
	taken
	abandoned
)

type entry struct {
	job   Job
	err   error
	state atomic.Int32
	seq   int64         // the order of lazy and batch jobs
	done  chan struct{} // receives when err has the outcome; nil if no caller waits
}

// Do submits a job to the writer and waits until the job is committed. If ctx ends before the writer has taken the job, Do drops the job
// and returns the error of ctx. [Job.Done] is then not called. Once the writer has taken the job, Do ignores ctx, so that the caller learns
// the outcome.
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
			return ctx.Err() // the writer still has en, so do not reuse it
		}
		<-en.done
	}
	err := en.err
	en.job, en.err = nil, nil
	e.entries.Put(en)
	return err
}

// Post submits a job to the writer and does not wait for the job's commit. It blocks while [maxQueue] other jobs wait for the writer. After
// [Engine.Close], Post returns an error, and [Job.Done] is not called.
func (e *Engine) Post(job Job) error {
	return e.submit(context.Background(), &entry{job: job})
}

// Lazily submits a job whose outcome no caller waits for. The job shares the next commit, or gets its own commit after fifty
// milliseconds. The engine does not limit the number of such jobs, so callers must limit them.
func (e *Engine) Lazily(job Job) error { return e.Within(lazyDelay, job) }

// Within submits a job like [Engine.Lazily], with another delay. It does not wait for the writer, so a caller may hold a lock that the
// job's Done takes.
func (e *Engine) Within(delay time.Duration, job Job) error {
	by := time.Now().Add(delay)
	e.lazyMu.Lock()
	defer e.lazyMu.Unlock()
	if e.lazyDone {
		return errClosed
	}
	e.lazySeq++
	e.lazy = append(e.lazy, &entry{job: job, seq: e.lazySeq})
	if e.lazyBy.IsZero() || by.Before(e.lazyBy) {
		e.lazyBy = by
		e.setAlarm()
	}
	return nil
}

// setAlarm makes the writer wake up when the first job of [Engine.Lazily] or the batch of [Engine.Batch] must be committed. The caller
// holds lazyMu.
func (e *Engine) setAlarm() {
	by := e.lazyBy
	if b := e.batch.by; by.IsZero() || !b.IsZero() && b.Before(by) {
		by = b
	}
	if !by.IsZero() {
		e.alarm.Reset(time.Until(by))
	}
}

// BatchJob is a job for [Engine.Batch], which commits such jobs together, so that they write each page of the file only once.
type BatchJob interface {
	Job
	// Before reports whether this job must be applied before the other job, which was submitted later.
	Before(other Job) bool
}

type batch struct {
	entries []*entry
	weight  int
	by      time.Time // when the entries must be committed; zero if there are no entries
}

// Batch submits a job whose outcome no caller waits for. It holds the job back to commit it together with other jobs of Batch, until one
// of these cases:
//
//   - The weights of the held jobs add up to [fullBatch]. The weight of a job is the number of rows that it writes.
//   - The writer takes a job, and a held job must be applied before it; see [BatchJob.Before].
//   - About fifty milliseconds have passed.
func (e *Engine) Batch(job BatchJob, weight int) error {
	e.lazyMu.Lock()
	defer e.lazyMu.Unlock()
	if e.lazyDone {
		return errClosed
	}
	b := &e.batch
	e.lazySeq++
	b.entries, b.weight = append(b.entries, &entry{job: job, seq: e.lazySeq}), b.weight+weight
	if len(b.entries) == 1 {
		b.by = time.Now().Add(lazyDelay)
		e.setAlarm()
	}
	return nil
}

// takeLazy adds the waiting jobs of [Engine.Lazily] to the front of group, which has the other jobs of the next commit. So a caller that
// submits a lazy job and then another one gets the outcome of the lazy job first. It also adds the jobs of [Engine.Batch] if they need
// not wait longer.
//
// The parameter end says that the engine closes. takeLazy then takes all jobs.
func (e *Engine) takeLazy(group []*entry, end bool) []*entry {
	e.lazyMu.Lock()
	defer e.lazyMu.Unlock()
	e.lazyDone = end
	b := &e.batch
	soon := time.Until(b.by) < lazyDelay/4 // the batch saves a commit of its own if it shares this one
	if end || soon || b.weight >= fullBatch || b.precedes(e.lazy) || b.precedes(group) {
		e.lazy = append(e.lazy, b.entries...)
		slices.SortFunc(e.lazy, func(x, y *entry) int { return cmp.Compare(x.seq, y.seq) })
		*b = batch{}
	}
	group = slices.Insert(group, 0, e.lazy...)
	clear(e.lazy)
	e.lazy, e.lazyBy = e.lazy[:0], time.Time{}
	e.setAlarm()
	return group
}

func (b *batch) precedes(group []*entry) bool {
	for _, later := range group {
		for _, en := range b.entries {
			if en.job.(BatchJob).Before(later.job) {
				return true
			}
		}
	}
	return false
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

// write runs the writer in its goroutine until the queue is closed and empty. While it writes a commit to the disk, jobs for the next
// commit arrive.
func (e *Engine) write() {
	defer e.alarm.Stop()
	group := make([]*entry, 0, maxJobs)
	pace := pace{timer: time.NewTimer(spacing)}
	defer pace.timer.Stop()
	for open := true; open; {
		group = group[:0]
		late := 0 // number of jobs that joined the group during the wait or arrived during its commit
		select {
		case first, ok := <-e.queue:
			if open = ok; ok {
				runtime.Gosched() // let goroutines that are about to submit a job join
				group = e.gather(append(group, first))
				n := len(group)
				group = e.await(group, pace.wait())
				late = len(group) - n
			}
		case <-e.alarm.C:
			group = e.gather(group)
		}
		if group = e.takeLazy(group, !open); len(group) > 0 {
			late += e.commit(group)
			pace.committed(late)
			clear(group)
		}
	}
}

type pace struct {
	timer *time.Timer
	last  time.Time // when the last commit began
	crowd float64   // a moving average of the jobs that arrived during a commit
}

// wait returns a channel that receives a value when the commit may begin, or nil if the commit may begin immediately.
func (p *pace) wait() <-chan time.Time {
	now := time.Now()
	since := now.Sub(p.last)
	p.last = now
	if since > 10*spacing {
		p.crowd = 0
	}
	if p.crowd < crowded || since >= spacing {
		return nil
	}
	p.last = now.Add(spacing - since)
	p.timer.Reset(spacing - since)
	return p.timer.C
}

func (p *pace) committed(late int) { p.crowd += (float64(min(late, enough)) - p.crowd) / 8 }

// await adds arriving jobs to the group until the parameter end delivers a value, the group has [enough] jobs, or the queue is closed. If
// end is nil, await adds no jobs and returns immediately.
func (e *Engine) await(group []*entry, end <-chan time.Time) []*entry {
	for end != nil && len(group) < enough {
		select {
		case next, ok := <-e.queue:
			if !ok {
				return group
			}
			group = append(group, next)
		case <-end:
			return group
		}
	}
	return group
}

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

// commit applies a group of jobs and commits them. It returns how many jobs arrived meanwhile.
func (e *Engine) commit(group []*entry) (arrived int) {
	conn := e.lockWriter()
	live := group[:0]
	for _, en := range group {
		if en.done == nil || en.state.CompareAndSwap(waiting, taken) {
			live = append(live, en)
		}
	}
	err := e.attempt(conn, live)
	arrived = len(e.queue)
	if err != nil && len(live) > 1 && !isLasting(err) {
		// One job has made the shared transaction fail. Apply each job again in its own transaction.
		for i := range live {
			e.finish(live[i:i+1], e.attempt(conn, live[i:i+1]))
		}
	} else {
		e.finish(live, err)
	}
	e.unlockWriter()
	return arrived
}

// isLasting reports whether the cause of an error, such as a full disk, would make every job fail again.
func isLasting(err error) bool {
	if errors.Is(err, errRemoved) {
		return true
	}
	se, ok := errors.AsType[*Error](err)
	return ok && transient[se.Code.ToPrimary()]
}

// attempt applies jobs in one transaction. If it returns an error, no job has written anything. Otherwise each entry has the outcome of
// its own job.
func (e *Engine) attempt(conn *Conn, group []*entry) (err error) {
	if err := e.files.check(); err != nil {
		return err
	}
	written := e.disk.written.Load()
	defer func() {
		wrote := e.disk.written.Load() > written
		if err != nil || wrote {
			e.health.note(&e.health.write, err)
		}
		if wrote {
			e.dirty.Store(true)
		}
	}()
	if err := run(conn, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil && conn.inTransaction() {
			_ = run(conn, "ROLLBACK")
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
	if err := run(conn, "COMMIT"); err != nil {
		return err
	}
	e.commits.Add(1)
	return nil
}

func run(conn *Conn, sql string) error {
	return conn.Stmt(sql).Exec()
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
