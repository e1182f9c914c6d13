package bench

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/progress"
)

const (
	// eventsPrefix is the prefix of the backend with events.
	eventsPrefix = "events_"
	eventName    = "bench.tick"
	// warmEvents is the number of events before the measured ones.
	warmEvents = 50
)

// backendEvents publishes events at a backend, one at a time, and compares how long each takes to a stream of the backend and to one of the
// gateway.
func (o Options) backendEvents(ctx context.Context, backend *server, gateway string, count int) (string, error) {
	direct, end, err := openStream(ctx, backend.url, eventName)
	if err != nil {
		return "", err
	}
	defer end()
	over, end, err := openStream(ctx, gateway, eventsPrefix+eventName)
	if err != nil {
		return "", err
	}
	defer end()
	p := o.newPublisher(backend)
	defer p.caller.close()
	var done atomic.Int64
	defer progress.Count(o.Progress, "events of a backend", int64(count), done.Load)()
	var before, after []time.Duration
	for n := range warmEvents + count {
		began := time.Now()
		if err := p.publish(n); err != nil {
			return "", err
		}
		var took [2]time.Duration
		for i, arrived := range []<-chan time.Time{direct, over} {
			select {
			case at := <-arrived:
				took[i] = at.Sub(began)
			case <-ctx.Done():
				return "", fault.New(fault.Unavailable, "event %d did not arrive in time", n)
			}
		}
		if n >= warmEvents {
			before, after = append(before, took[0]), append(after, took[1])
			done.Add(1)
		}
	}
	return fmt.Sprintf("events of a backend, one at a time, %d\n  stream of 2026-07-28                           %s", count, compared(before, after)), nil
}

// openStream subscribes to an event type as soon as the server lists it, and returns a channel with the arrival times of its events.
func openStream(ctx context.Context, server, name string) (arrived <-chan time.Time, end func(), err error) {
	c, err := client.Connect(ctx, server, client.Options{Agent: "bench/1", Revision: "2026-07-28"})
	if err != nil {
		return nil, nil, err
	}
	for {
		types, err := c.EventTypes(ctx)
		if err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(types, func(t client.EventType) bool { return t.Name == name }) {
			break
		}
		if err := until(ctx, time.Now().Add(20*time.Millisecond)); err != nil {
			return nil, nil, err
		}
	}
	times := make(chan time.Time, 1)
	_, err = c.Subscribe(ctx, client.SubscribeOptions{
		Name: name, Arguments: map[string]string{"n": "0"}, Mode: client.ModePush,
		Event: func(context.Context, client.Event) error { times <- time.Now(); return nil },
	})
	return times, func() { _ = c.Close() }, err
}

// idleSessions begins sessions of 2025-11-25, each with a call to a backend, and measures their memory.
func (o Options) idleSessions(ctx context.Context, s *server, count int) (string, error) {
	if count == 0 {
		return "", nil
	}
	collect := func() int64 {
		s.debugPage(ctx, "/debug/pprof/heap?gc=1")
		return memory(s.pid, "VmRSS")
	}
	before := collect()
	var begun atomic.Int64
	defer progress.Count(o.Progress, "sessions begun", int64(count), begun.Load)()
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(8)
	for range count {
		all.Go(func() error {
			c, err := newToolCaller(ctx, s.url+"/mcp", "2025-11-25", "b25_work")
			if err == nil {
				_, err = c.call(ctx, 0)
			}
			begun.Add(1)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return "", err
	}
	grown := collect() - before
	return fmt.Sprintf("%d idle sessions of 2025-11-25, after a call each: %.1f KiB a session (resident, over %.0f MiB without)",
		count, float64(grown)/1024/float64(count), float64(before)/(1<<20)), nil
}
