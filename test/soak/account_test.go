//go:build unix

package soak

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// line is a line that a backend writes about a call.
type line struct {
	Serving   bool   `json:"serving,omitempty"`
	Called    string `json:"called,omitempty"`
	Done      string `json:"done,omitempty"`
	Cancelled string `json:"cancelled,omitempty"`
	Answered  string `json:"answered,omitempty"`
	Withdrawn string `json:"withdrawn,omitempty"`
	Value     string `json:"value,omitempty"`
}

// call is one call of a client, as both ends saw it.
type call struct {
	mark, backend, client string
	began, ended          time.Time
	cancelledAt           time.Time
	// What the client did and got.
	cancelled bool   // it cancelled the call
	hung      bool   // it did not end
	given     string // its answer to the question, if the gateway accepted it
	refused   bool   // the gateway refused its answer, because the question was withdrawn
	questions int
	responses int
	failed    string // the error of the response
	// What the backend saw.
	epochs     []int // the process of each call with this mark
	done       bool
	cancelSeen int
	answers    []string
	withdrawn  bool
	died       bool // its process ended before it wrote how the call ended
	restarted  bool // the backend was down meanwhile
}

// account keeps the observations of both ends, and finds differences.
type account struct {
	mu       sync.Mutex
	calls    map[string]*call
	versions map[string][]time.Time // by URI: when each version was made, from version 1
	waits    []time.Duration        // between a change and the time at which a subscriber had read it
	late     []string
	merged   int
	faults   []string
	counts   map[string]int
}

func newAccount() *account {
	return &account{calls: map[string]*call{}, versions: map[string][]time.Time{}, counts: map[string]int{}}
}

// fault notes what must not be.
func (a *account) fault(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = append(a.faults, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// wrong and lateCount tell how many faults and late changes there are so far.
func (a *account) wrong() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.faults)
}

func (a *account) lateCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.late)
}

func (a *account) count(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[what]++
}

// with has f change a call.
func (a *account) with(mark string, f func(*call)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.calls[mark]
	if c == nil {
		c = &call{mark: mark}
		a.calls[mark] = c
	}
	f(c)
}

func (a *account) backendSaw(backend string, epoch int, l line) {
	a.with(l.Called+l.Done+l.Cancelled+l.Answered+l.Withdrawn, func(c *call) {
		c.backend = backend
		switch {
		case l.Called != "":
			c.epochs = append(c.epochs, epoch)
		case l.Done != "":
			c.done = true
		case l.Cancelled != "":
			c.cancelSeen++
		case l.Answered != "":
			c.answers = append(c.answers, l.Value)
		case l.Withdrawn != "":
			c.withdrawn = true
		}
	})
}

// died notes that a backend's process ended: the calls under way in it have no end there.
func (a *account) died(backend string, epoch int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.calls {
		if c.backend == backend && slices.Contains(c.epochs, epoch) && !c.done && c.cancelSeen == 0 {
			c.died = true
		}
	}
}

// changes adds a version of a URI, which write stores.
func (a *account) changes(uri string, at time.Time, write func(version int) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.versions[uri]) == 0 {
		a.versions[uri] = []time.Time{at}
	}
	if err := write(len(a.versions[uri]) + 1); err != nil {
		return err
	}
	a.versions[uri] = append(a.versions[uri], at)
	return nil
}

// latest returns the current version of a URI.
func (a *account) latest(uri string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(1, len(a.versions[uri]))
}

// lateAfter is when a change that a subscriber has not read yet counts as lost: changes of some resources are rarer, so
// that the update of a later change does not hide it.
const lateAfter = 60 * time.Second

// has notes that a subscriber has read a version, the one before it last time.
func (a *account) has(client, uri string, before, version int, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	times := a.versions[uri]
	for v := before + 1; v <= version && v <= len(times); v++ {
		wait := now.Sub(times[v-1])
		a.waits = append(a.waits, wait)
		if v < version {
			a.merged++
		}
		if wait > lateAfter {
			a.late = append(a.late, fmt.Sprintf("%s read version %d of %s %v after it was made (at %s)", client, v, uri, wait.Round(time.Millisecond), times[v-1].Format("15:04:05.000")))
		}
	}
}

// open returns the marks of cancelled calls that still run at their backend.
func (a *account) open() (marks []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for mark, c := range a.calls {
		if len(c.epochs) > 0 && !c.done && c.cancelSeen == 0 && !c.died && c.cancelled {
			marks = append(marks, mark)
		}
	}
	return marks
}

// check holds the two ends of every call against each other.
func (a *account) check() {
	a.mu.Lock()
	defer a.mu.Unlock()
	wrong := func(c *call, format string, args ...any) {
		a.faults = append(a.faults, c.describe(fmt.Sprintf(format, args...)))
	}
	for _, c := range a.calls {
		a.counts["calls"]++
		// A session's backend that asks a stateless client gets the call again with the answer. The call that asked is cancelled.
		again := 0
		if strings.HasPrefix(c.mark, statelessName) && c.backend != "py" {
			again = c.questions
		}
		if len(c.epochs) > 1+again {
			wrong(c, "it was made %d times at the backend", len(c.epochs))
		}
		if c.cancelled {
			switch {
			case len(c.epochs) == 0:
				a.counts["cancelled before they reached the backend"]++
			case c.cancelSeen > 0:
				a.counts["cancellations seen by the backend"]++
			case c.done: // a call to be cancelled takes a minute
				wrong(c, "the backend worked to the end in spite of the cancellation")
			case c.died:
				a.counts["cancelled, and their backend ended"]++
			default:
				wrong(c, "the backend did not see its cancellation")
			}
		} else {
			if c.responses != 1 {
				wrong(c, "it got %d responses", c.responses)
			}
			switch {
			case c.failed == "":
				a.counts["answered with their result"]++
			case c.restarted:
				a.counts["failed, and their backend restarted"]++
			default:
				wrong(c, "it failed")
			}
			if c.cancelSeen > again && !c.restarted {
				wrong(c, "the backend saw a cancellation that the client did not send")
			}
		}
		switch {
		case c.given == "" && len(c.answers) > 0 && c.refused && c.restarted:
			// The backend ended before it acknowledged the answer.
			a.counts["refused answers that had reached their backend, and it restarted"]++
		case c.given == "" && len(c.answers) > 0:
			wrong(c, "the backend got an answer that the client did not give")
		case c.given == "":
		case len(c.answers) == 1 && c.answers[0] == c.given:
			a.counts["answers received by the backend"]++
		case len(c.answers) > 0:
			wrong(c, "the backend got other answers")
		case c.withdrawn:
			a.counts["answers that met a withdrawal"]++
		case c.died || c.restarted:
			a.counts["answers, and their backend ended"]++
		case c.cancelled:
			a.counts["answers to calls that were cancelled"]++
		default:
			wrong(c, "the backend did not get the answer")
		}
		if c.refused {
			a.counts["late answers refused"]++
			if !c.withdrawn && !c.restarted && !c.cancelled {
				wrong(c, "an answer was refused, and the question was not withdrawn")
			}
		}
	}
}

// report describes the counts.
func (a *account) report() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	names := make([]string, 0, len(a.counts))
	for name := range a.counts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "\n  %7d %s", a.counts[name], name)
	}
	made := 0
	for _, times := range a.versions {
		made += max(0, len(times)-1)
	}
	fmt.Fprintf(&b, "\n  %7d changes made\n  %7d of them read by subscribers, %d of these together with a later one", made, len(a.waits), a.merged)
	if waits := slices.Sorted(slices.Values(a.waits)); len(waits) > 0 {
		at := func(share float64) time.Duration {
			return waits[int(share*float64(len(waits)-1))].Round(time.Millisecond)
		}
		fmt.Fprintf(&b, "\n  after p50 %v, p99 %v, at most %v", at(0.5), at(0.99), at(1))
	}
	return b.String()
}

// describe tells what happened to a call.
func (c *call) describe(wrong string) string {
	clock := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Format("15:04:05.000")
	}
	return fmt.Sprintf("%s at %s: %s. The client began %s, cancelled %s, ended %s, hung %t, got %d questions and %d responses, gave %q, refused %t, failed with %q. "+
		"The backend's processes %v were called; done %t, cancellations %d, answers %q, withdrawn %t, died %t, restarted %t",
		c.mark, c.backend, wrong, clock(c.began), clock(c.cancelledAt), clock(c.ended), c.hung, c.questions, c.responses, c.given, c.refused, c.failed,
		c.epochs, c.done, c.cancelSeen, c.answers, c.withdrawn, c.died, c.restarted)
}
