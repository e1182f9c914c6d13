package lambda

import (
	"slices"
	"time"
)

// Stats counts the invocations and processes of a function.
type Stats struct {
	// Invocations is the number of started invocations. Errors ended with FunctionError, including Timeouts and
	// Crashes. Throttles were refused before they started, and Recursive were refused because their chain of requests
	// was too long.
	Invocations, Errors, Timeouts, Crashes, Throttles, Recursive int
	// ColdStarts needed a new process. Kills is the number of processes that [Function.Kill] ended.
	ColdStarts, Kills int
	// Init contains the times from exec to the first request for an invocation, of the latest 1,000 starts.
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

// Live returns the number of processes.
func (f *Function) Live() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

// Idle returns the number of processes without an invocation.
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
