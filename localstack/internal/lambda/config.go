package lambda

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"
)

// MaxConcurrency is the environment variable that tells a process on a managed instance how many concurrent
// invocations it gets. An invalid value means 1, as in the functions' Lambda library.
const MaxConcurrency = "AWS_LAMBDA_MAX_CONCURRENCY"

// Config describes a function.
type Config struct {
	// Name and ARN identify the function to callers.
	Name, ARN string
	// Binary is the path of the executable.
	Binary string
	// Env is the complete environment, except for the variables that Lambda adds.
	Env map[string]string
	// Memory in MiB is passed to the function in its environment. It is not enforced. 0 means 128.
	Memory int
	// Instances is the minimum number of processes if each of them accepts several invocations. 0 means 1. If there
	// are fewer, the next invocation starts one.
	Instances int
	// Timeout limits an invocation, from the time at which a process has received it. 0 means 3 s. After a timeout, a
	// process with several invocations continues with all of them, including this one.
	Timeout time.Duration
	// InitTimeout limits the time from exec to the first request for an invocation. 0 means 30 s. Lambda allows 10 s,
	// but does not share its machine with tests.
	InitTimeout time.Duration
	// IdleTimeout is how long an idle process is kept. 0 means 5 minutes.
	IdleTimeout time.Duration
	// Grace is how long a process may continue after SIGTERM. 0 means 2 s.
	Grace time.Duration
	// AllowLoops disables the limit on invocations of the function in a chain of requests (RecursiveLoop: Allow).
	AllowLoops bool
	// Limit limits concurrent invocations. All functions without a reservation share one.
	Limit *Limit
	// Output receives the output of the processes, one line per call, concurrently from several goroutines. Nil
	// discards it.
	Output io.Writer
	// Log logs the starts and ends of processes. Nil discards the messages.
	Log *slog.Logger
}

// Limit limits the number of concurrent invocations.
type Limit struct {
	slots    chan struct{}
	reserved int // slots that functions with their own limit have taken
}

// NewLimit returns a limit of n invocations.
func NewLimit(n int) *Limit { return &Limit{slots: make(chan struct{}, n)} }

func (l *Limit) release() { <-l.slots }

// minUnreserved is how much of an account's quota cannot be reserved, unless the quota is smaller.
const minUnreserved = 100

// Reserve removes n invocations from the pool that functions without a reservation share. If all slots are in use, it
// waits for running invocations. Reserve and Unreserve must not be called concurrently.
func (l *Limit) Reserve(n int) error {
	if left := cap(l.slots) - l.reserved - n; left < min(minUnreserved, cap(l.slots)) {
		return fmt.Errorf("a reservation of %d decreases the account's unreserved concurrency below its minimum value of [%d]", n, min(minUnreserved, cap(l.slots)))
	}
	l.reserved += n
	for range n {
		l.slots <- struct{}{}
	}
	return nil
}

// Unreserve returns n reserved invocations.
func (l *Limit) Unreserve(n int) {
	l.reserved -= n
	for range n {
		l.release()
	}
}

// Stats counts the invocations and processes of a function.
type Stats struct {
	// Invocations is the number of started invocations. Errors ended with FunctionError, including Timeouts and
	// Crashes. Throttles were refused before they started, and Recursive were refused because their chain of requests
	// was too long.
	Invocations, Errors, Timeouts, Crashes, Throttles, Recursive int
	// LongestChain is the largest number of invocations of the function in one chain of requests, see [Config.AllowLoops].
	LongestChain int
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
