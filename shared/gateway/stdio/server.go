package stdio

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type server struct {
	t       *Transport
	backend api.Backend
	failed  atomic.Bool // the last shared process has failed
	retired atomic.Bool // the configuration no longer has the backend

	// starting lets all callers that need the shared process wait for the same start. The start continues if the callers disconnect,
	// because the first start of a command may download it.
	starting singleflight.Group

	mu      sync.Mutex
	current *process // the shared process, or nil
	// failures has the last failure of each principal's processes and, under "", of the shared process. So a principal whose processes
	// fail does not delay other principals.
	failures bounded.Map[string, failure]
}

// failure says when the next process may start after one has failed.
type failure struct {
	times int // failures so far; reset after [settledAfter]
	until time.Time
	why   string
}

const (
	// minRestart is the pause before the next start after a failure. The pause doubles with each further failure, up to maxRestart, or up
	// to readyRestart if the process had answered before.
	minRestart, maxRestart, readyRestart = time.Second, time.Minute, 8 * time.Second
	// settledAfter is a running time. If a process has run for at least this time, its failure counts as the first one again, and the
	// next pause is short.
	settledAfter = 10 * time.Second
	// worthWaiting is the longest time that a caller waits for the end of a pause after a failure. If the pause lasts longer, the caller
	// gets an error immediately.
	worthWaiting = 1500 * time.Millisecond
)

// readyProcess returns the shared process if it is ready, and otherwise nil.
func (s *server) readyProcess() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.isEnding() {
		return nil
	}
	return s.current
}

func (s *server) getShared(ctx context.Context) (*process, error) {
	if p := s.readyProcess(); p != nil {
		return p, nil
	}
	select {
	case begun := <-s.starting.DoChan("", s.start):
		p, _ := begun.Val.(*process)
		return p, begun.Err
	case <-ctx.Done():
		return nil, newUnsentError(fault.Unavailable, s.backend, "is still starting")
	}
}

// start starts the shared process and waits for its handshake, unless another start has already done so. The result is a *process.
func (s *server) start() (any, error) {
	if p := s.readyProcess(); p != nil {
		return p, nil
	}
	if err := s.awaitPause(context.Background(), ""); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.t.startTime())
	defer cancel()
	p, err := s.startShared(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.isEnding() { // if p is ending, recordFailure may have set failed, and must not be overruled
		s.current = p
		s.failed.Store(false)
	}
	return p, nil
}

func (s *server) startShared(ctx context.Context) (*process, error) {
	probe := s.triesDiscover()
	for {
		p, err := s.spawn(ctx, "")
		if err != nil {
			return nil, err
		}
		if err = p.handshake(ctx, probe); err == nil {
			return p, nil
		}
		died := p.isEnding()
		p.fail(err.Error())
		<-p.done
		if probe && died && s.triesInitialize() {
			probe = false // some commands of earlier revisions end at a request before initialize
			continue
		}
		return nil, newUnsentError(fault.Unavailable, s.backend, "does not run: "+err.Error())
	}
}

// begin starts a process for a client's session, and sends it the client's initialize request.
func (s *server) begin(req *http.Request, holder string, id, body json.RawMessage) (*http.Response, error) {
	if err := s.awaitPause(req.Context(), holder); err != nil {
		return nil, err
	}
	p, err := s.spawn(req.Context(), holder)
	if err != nil {
		return nil, err
	}
	resp, err := p.post(req, id, spec.MethodInitialize, body)
	if errors.Is(err, io.ErrClosedPipe) { // the process has just ended, for example to make room for another session
		return s.begin(req, holder, id, body)
	}
	if err != nil {
		p.stop("its session did not begin")
		return nil, err
	}
	resp.Header.Set(spec.HeaderSession, p.id)
	return resp, nil
}

// awaitPause waits for the end of the pause after a failed process. If the pause still lasts longer than worthWaiting, it returns an
// error instead.
func (s *server) awaitPause(ctx context.Context, holder string) error {
	s.mu.Lock()
	f, _ := s.failures.Get(holder)
	s.mu.Unlock()
	left := time.Until(f.until)
	if left <= 0 {
		return nil
	}
	if left > worthWaiting || periodic.Sleep(ctx, left) != nil {
		why := fmt.Sprintf("does not run: %s; the next start is in %s", f.why, left.Round(time.Second))
		return newUnsentError(fault.Unavailable, s.backend, why)
	}
	return nil
}

// recordFailure delays the next start after a process has failed. The parameter holder is the principal to whom the process belonged, or
// "" for the shared process. The parameter ready is true if the process had ever answered, and lived is how long it ran.
func (s *server) recordFailure(holder, why string, ready bool, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if holder == "" {
		s.failed.Store(true)
	}
	f, _ := s.failures.Get(holder)
	if lived >= settledAfter {
		f.times = 0
	}
	most := maxRestart
	if ready {
		most = readyRestart
	}
	pause := min(minRestart<<min(f.times, 6), most)
	s.failures.Put(holder, failure{f.times + 1, time.Now().Add(pause), why})
}

func (s *server) forget(p *process) {
	s.mu.Lock()
	if s.current == p {
		s.current = nil
	}
	s.mu.Unlock()
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	delete(s.t.processes, p)
	delete(s.t.sessions, p.id)
}

// retire ends the backend's processes. A process with running calls ends after its last call.
func (s *server) retire() {
	s.retired.Store(true)
	for _, p := range s.t.listProcesses() {
		if p.server == s {
			p.retire()
		}
	}
}

// Limits on the processes of clients' sessions, see [Transport.Processes].
const (
	maxProcesses    = 64
	maxPerPrincipal = 16
)

// place adds a process to the processes that count toward the limits, before its command starts. If a limit is reached, place first ends
// another process and waits for its end:
//
//   - At the principal's limit, it ends the principal's own process that has been unused for longest and has no running call.
//   - At the total limit, it looks at the principal with the most processes. If this principal has more processes than the new process's
//     principal, place ends one of them. If it has at least two more, place may end even a process with a running call. So no principal
//     can lock out the others, and two principals do not end each other's running calls in turn.
//   - If there is no such process at the total limit, it chooses as at the principal's limit.
//
// If no process may end, place returns an error.
func (t *Transport) place(ctx context.Context, p *process) error {
	for {
		t.mu.Lock()
		if t.closed || p.server.retired.Load() {
			t.mu.Unlock()
			return newUnsentError(fault.Unavailable, p.server.backend, "no longer starts")
		}
		victim, full := t.findVictim(p.holder)
		if !full {
			if t.processes == nil {
				t.processes, t.sessions = map[*process]bool{}, map[string]*process{}
			}
			t.processes[p], t.sessions[p.id] = true, p
		}
		t.mu.Unlock()
		switch {
		case !full:
			return nil
		case victim == nil:
			e := newUnsentError(fault.Exhausted, p.server.backend, "has no process for a further session, because calls are running in all of them")
			e.Fault = e.Fault.AtLimit("backendProcesses", float64(t.perPrincipal()))
			return e
		}
		victim.stop("another session needs its place")
		select {
		case <-victim.done:
		case <-ctx.Done():
			return newUnsentError(fault.Unavailable, p.server.backend, "is still starting")
		}
	}
}

func (t *Transport) perPrincipal() int { return cmp.Or(t.PerPrincipal, maxPerPrincipal) }

// findVictim reports whether a limit prevents a new process of the principal holder. If so, it returns the process to end, or nil if no
// process may end. The caller holds the lock.
func (t *Transport) findVictim(holder string) (victim *process, full bool) {
	if holder == "" {
		return nil, false // the limits do not apply to the shared process
	}
	byHolder, total := map[string][]*process{}, 0
	for p := range t.processes {
		if p.holder != "" {
			byHolder[p.holder] = append(byHolder[p.holder], p)
			total++
		}
	}
	own := len(byHolder[holder])
	switch {
	case own >= t.perPrincipal():
		return findOldest(byHolder[holder], false), true
	case total < cmp.Or(t.Processes, maxProcesses):
		return nil, false
	}
	most := ""
	for other, processes := range byHolder {
		if len(processes) > len(byHolder[most]) {
			most = other
		}
	}
	if len(byHolder[most]) > own {
		if victim = findOldest(byHolder[most], len(byHolder[most]) > own+1); victim != nil {
			return victim, true
		}
	}
	return findOldest(byHolder[holder], false), true
}

// findOldest returns the process that has been unused for longest. Processes with running calls come last, and only if busy is set.
func findOldest(processes []*process, busy bool) *process {
	type state struct {
		*process
		running int
		used    time.Time
	}
	var all []state
	for _, p := range processes {
		used, running := p.usage()
		if running == 0 || busy {
			all = append(all, state{p, running, used})
		}
	}
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(x, y state) int { return cmp.Or(x.running-y.running, x.used.Compare(y.used)) }).process
}
