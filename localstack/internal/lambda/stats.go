package lambda

import (
	"slices"
	"time"
)

// Stats counts what a function did since it was made.
type Stats struct {
	// Invocations were begun; Errors ended with FunctionError, Timeouts and
	// Crashes among them. Throttles were refused before they began, Recursive ones
	// because of the chain of requests that they ended.
	Invocations, Errors, Timeouts, Crashes, Throttles, Recursive int
	// ColdStarts had to start a process. Kills were asked for by [Function.Kill].
	ColdStarts, Kills int
	// Init holds the times from exec to the first request for an invocation,
	// of the latest 1,000 starts at most.
	Init []time.Duration
}

const maxInit = 1000

// Stats returns a copy of the counts.
func (f *Function) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Init = slices.Clone(s.Init)
	return s
}

func (f *Function) count(add func(*Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add(&f.stats)
}

func (f *Function) started(took time.Duration) {
	f.count(func(s *Stats) {
		if len(s.Init) == maxInit {
			s.Init = slices.Delete(s.Init, 0, 1)
		}
		s.Init = append(s.Init, took)
	})
}

// Live is the number of processes.
func (f *Function) Live() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

// Idle is the number of processes that have no work.
func (f *Function) Idle() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.room {
		if i.taken == 0 {
			n++
		}
	}
	return n
}
