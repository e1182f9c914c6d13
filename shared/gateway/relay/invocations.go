package relay

import (
	"context"
	"time"
)

// An invocation of 15 minutes closes the streams 15 s before its end. In the last quarter of its time, the next invocation
// takes the streams over. If it dies, others wait for 30 s.
const (
	closingShare  = 60
	handoverShare = 4
	leaseShare    = 30
	minLease      = 3 * time.Second
)

// Invocations runs relays in a function whose invocations are limited in time. Each invocation follows the backends until
// shortly before its end and hands them over to the next one.
type Invocations struct {
	newRelay func() *Relay
	idle     chan struct{} // has a token while no invocation runs
	ending   context.Context
	end      context.CancelFunc
}

// NewInvocations returns invocations that each run a new relay.
func NewInvocations(newRelay func() *Relay) *Invocations {
	i := &Invocations{newRelay: newRelay, idle: make(chan struct{}, 1)}
	i.idle <- struct{}{}
	i.ending, i.end = context.WithCancel(context.Background())
	return i
}

// Serve runs a relay until shortly before ctx's deadline. It returns earlier if there are no backends, if other relays
// follow all of them, or after [Invocations.Shutdown]. Concurrent calls run one after the other.
func (i *Invocations) Serve(ctx context.Context) error {
	<-i.idle
	defer func() { i.idle <- struct{}{} }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(i.ending, cancel)()
	r := i.newRelay()
	if deadline, ok := ctx.Deadline(); ok {
		life := time.Until(deadline)
		r.Until = deadline.Add(-life / closingShare)
		r.Handover = life / handoverShare
		r.Lease = max(life/leaseShare, minLease)
	}
	r.Run(ctx)
	return nil
}

// Shutdown ends the running invocation, which releases its leases first, so that other relays follow the backends
// immediately. It waits for the invocation, but not longer than limit.
func (i *Invocations) Shutdown(limit time.Duration) {
	i.end()
	select {
	case <-i.idle:
	case <-time.After(limit):
	}
}
