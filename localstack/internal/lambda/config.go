package lambda

import (
	"fmt"
	"io"
	"log/slog"
	"time"
)

// MaxConcurrency is the environment variable in which Lambda gives a process on
// a managed instance how many invocations it gets at once. A value that is no number above 0
// is 1, as in the library of the functions.
const MaxConcurrency = "AWS_LAMBDA_MAX_CONCURRENCY"

// Config describes a function.
type Config struct {
	// Name and ARN are how others call it.
	Name, ARN string
	// Binary is the path of the executable.
	Binary string
	// Env is its whole environment, but for what Lambda adds.
	Env map[string]string
	// Memory in MiB is in the function's environment; it is not enforced. 0 is 128.
	Memory int
	// Instances is how many processes share the invocations at least, where each takes
	// several; 0 is 1. Fewer are added to at the next invocation.
	Instances int
	// Timeout bounds an invocation, from the moment a process has taken it; 0 is 3 s. A
	// process that takes several goes on with the others, and with this one.
	Timeout time.Duration
	// InitTimeout bounds the time from exec to the first request for an
	// invocation; 0 is 30 s. (Lambda gives 10 s, but on machines of its own.)
	InitTimeout time.Duration
	// IdleTimeout is how long a process is kept without work; 0 is 5 minutes.
	IdleTimeout time.Duration
	// Grace is how long a process may go on after SIGTERM; 0 is 2 s.
	Grace time.Duration
	// AllowLoops lets the function be invoked in a chain of requests however long
	// (RecursiveLoop: Allow).
	AllowLoops bool
	// Limit is what invocations share. Functions without a reservation have one together.
	Limit *Limit
	// Output receives what the processes print, a line per call, from several
	// goroutines at once; nil discards it.
	Output io.Writer
	// Log is of the life of processes; nil discards it.
	Log *slog.Logger
}

// Limit is a number of invocations that may run at once.
type Limit struct {
	slots    chan struct{}
	reserved int // of the slots, for functions with a limit of their own
}

// NewLimit makes a limit of n invocations.
func NewLimit(n int) *Limit { return &Limit{slots: make(chan struct{}, n)} }

func (l *Limit) release() { <-l.slots }

// minUnreserved is how much of an account's quota cannot be reserved, unless the quota is smaller.
const minUnreserved = 100

// Reserve takes n invocations off what functions without a reservation share. It waits for running invocations if they
// have the slots. Reserve and Unreserve must not be called concurrently.
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

// Unreserve gives n reserved invocations back.
func (l *Limit) Unreserve(n int) {
	l.reserved -= n
	for range n {
		l.release()
	}
}
