package stdio

import (
	"cmp"
	"context"
	"slices"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Limits on the processes of clients' sessions, see [Transport.Processes].
const (
	maxProcesses    = 64
	maxPerPrincipal = 16
)

// limitProcesses is the name of the limit in errors.
const limitProcesses = "backendProcesses"

// place adds a process to the running ones. If a limit is reached, it first ends another process and waits for its end:
//
//   - at the principal's limit, the principal's process that has been unused for longest and has no running call.
//   - at the limit for all, a process of the principal that has the most, if that are more than the principal has that needs one. A process
//     with a running call ends only if the other principal has at least two more. So no principal can lock out the others, and two principals
//     do not end each other's processes in turn.
//
// If there is no such process, place returns an error.
func (t *Transport) place(ctx context.Context, p *process) error {
	for {
		t.mu.Lock()
		if t.closed || p.server.isRetired() {
			t.mu.Unlock()
			return unsent(fault.Unavailable, p.server.backend, "no longer starts")
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
			return exhausted(p.server.backend, t.perPrincipal())
		}
		victim.stop("another session needs its place")
		select {
		case <-victim.done:
		case <-ctx.Done():
			return unsent(fault.Unavailable, p.server.backend, "is still starting")
		}
	}
}

func exhausted(b api.Backend, limit int) error {
	e := unsent(fault.Exhausted, b, "has no process for a further session, because calls are running in all of them")
	e.Fault = e.Fault.AtLimit(limitProcesses, float64(limit))
	return e
}

func (t *Transport) perPrincipal() int { return cmp.Or(t.PerPrincipal, maxPerPrincipal) }

// findVictim reports whether a limit is reached, and returns the process to end. The caller holds the lock.
func (t *Transport) findVictim(holder string) (victim *process, full bool) {
	if holder == "" {
		return nil, false // a backend has one shared process
	}
	of, total := map[string][]*process{}, 0
	for p := range t.processes {
		if p.holder != "" {
			of[p.holder] = append(of[p.holder], p)
			total++
		}
	}
	own := len(of[holder])
	switch {
	case own >= t.perPrincipal():
		return oldest(of[holder], false), true
	case total < cmp.Or(t.Processes, maxProcesses):
		return nil, false
	}
	most := ""
	for other, processes := range of {
		if len(processes) > len(of[most]) {
			most = other
		}
	}
	if len(of[most]) > own {
		if victim = oldest(of[most], len(of[most]) > own+1); victim != nil {
			return victim, true
		}
	}
	return oldest(of[holder], false), true
}

// oldest returns the process that has been unused for longest. Processes with running calls come last, and only if busy is set.
func oldest(processes []*process, busy bool) *process {
	type state struct {
		*process
		running bool
		unused  int64
	}
	var all []state
	for _, p := range processes {
		used, running := p.usage()
		if !running || busy {
			all = append(all, state{p, running, used.UnixNano()})
		}
	}
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(x, y state) int {
		if x.running != y.running {
			if x.running {
				return 1
			}
			return -1
		}
		return cmp.Compare(x.unused, y.unused)
	}).process
}
