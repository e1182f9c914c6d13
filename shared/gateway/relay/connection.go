package relay

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// connection is the relay's connection to one backend. It exists while the relay has the backend's [lease]. Its states are:
//
//	asking:     the relay asks for the backend's capabilities
//	no stream:  the backend sends no notifications, or answers the GET with 404, 405 or 501. The relay compares its lists with the
//	            stored hashes every minute. After 5 minutes, the connection is asking again.
//	connecting: the relay opens the stream
//	comparing:  the stream is open. The relay takes over the lease, and announces changes of lists that it has missed.
//	streaming:  the relay announces notifications, and subscribes to the resources that clients want
//
// An error in any state, or the end of the stream, leads back to asking, after a pause that grows while no stream stays open. A list that
// cannot be fetched is no such error; see [Relay.compareLists].
type connection struct {
	relay   *Relay
	lease   *lease
	backend *follower

	state    string
	opened   time.Time // when the stream was opened, or zero
	reported bool      // whether the log says that the backend has no stream
}

// askAgain is how long the relay waits before it repeats a subscription that the backend refused, or before it tries again to open a
// stream that the backend does not have. The answer may have come from an old replica, or the backend may have got the capability by
// then.
const askAgain = 5 * time.Minute

// noStreamStatus lists the statuses that mean "no notification stream" in the answer to a GET: 405 according to the specification, and
// 404 and 501 from servers that accept only POST.
var noStreamStatus = []int{http.StatusMethodNotAllowed, http.StatusNotFound, http.StatusNotImplemented}

var errNoStream = errors.New("gateway: the backend has no notification stream")

func (c *connection) keep() {
	if c.backend.OnlyForCallers() { // the relay has no credentials to open the stream, so it only holds the lease
		<-c.lease.ctx.Done()
		return
	}
	least, most := c.relay.pauses()
	log := c.relay.log(c.backend)
	for wait := least; c.lease.ctx.Err() == nil; {
		c.opened = time.Time{}
		err := c.follow(c.lease.ctx)
		if c.lease.follows {
			log.InfoContext(c.lease.ctx, "lease not taken over", "error", err)
			return // another relay still has the lease
		}
		if err != nil && c.lease.ctx.Err() == nil {
			log.WarnContext(c.lease.ctx, "backend notifications interrupted", "state", c.state, "error", err)
		}
		if !c.opened.IsZero() && time.Since(c.opened) > wait {
			wait = least // the stream was open for a while, so the next pause is short again
		}
		c.pause(spread(wait, most))
		wait = min(2*wait, most)
	}
}

// pause waits before the next attempt to connect to the backend. If clients' subscriptions to the backend's resources change meanwhile,
// pause returns early, so that a new subscription takes effect soon. It always waits for the shortest pause.
func (c *connection) pause(wait time.Duration) {
	least, _ := c.relay.pauses()
	least = min(least, wait)
	if periodic.Sleep(c.lease.ctx, least) != nil {
		return
	}
	rest := time.NewTimer(wait - least)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-c.backend.Changed():
	case <-c.lease.ctx.Done():
	}
}

func (c *connection) enter(ctx context.Context, state string) {
	c.state = state
	c.relay.log(c.backend).DebugContext(ctx, "backend connection changed", "state", state)
}

// follow runs through the states of the connection until an error occurs or the stream ends.
func (c *connection) follow(ctx context.Context) error {
	for {
		c.enter(ctx, "asking")
		info, err := c.backend.Ask(ctx)
		switch {
		case err != nil:
			return err
		case info.Notifies():
			if err := c.stream(ctx, info); !errors.Is(err, errNoStream) {
				return err
			}
		}
		c.enter(ctx, "no stream")
		if err := c.compareRegularly(ctx, info.Subscribe); err != nil {
			return err
		}
	}
}

// stream opens the backend's notification stream and reads it to its end. The error is errNoStream if the backend does not have one.
func (c *connection) stream(ctx context.Context, info *backends.ServerInfo) error {
	c.enter(ctx, "connecting")
	f := newFollowing(ctx, c, info)
	defer func() {
		c.lease.connected.Store(false)
		f.close()
	}()
	err := f.connect()
	missing := errors.Is(err, errNoStream)
	if missing && !c.reported {
		c.relay.log(c.backend).InfoContext(ctx, "backend has no stream", "error", err)
	}
	if c.reported = missing; err != nil {
		return err
	}
	c.opened = time.Now()
	c.enter(ctx, "comparing")
	if err := c.catchUp(ctx, f); err != nil {
		return err
	}
	c.enter(ctx, "streaming")
	return f.run(ctx)
}

// catchUp is called when the stream is open. If another relay whose time is ending still has the lease, catchUp takes it over, because
// this relay is listening, too. Then catchUp compares the backend's lists with the stored hashes, to announce changes that no relay has
// noticed. The stream reports all later changes.
func (c *connection) catchUp(ctx context.Context, f *following) error {
	c.lease.connected.Store(true)
	if c.lease.follows {
		f.settle(min(c.backend.Client().AskTimeout, c.relay.Handover/2))
	}
	if err := c.lease.take(ctx); err != nil {
		return err
	}
	// The field took is set if the previous relay was connected until now, so that this connection has missed no notifications. catchUp
	// clears the field, because later connections may miss some.
	continued := c.lease.took
	c.lease.took = false
	if err := c.relay.compareLists(ctx, c.backend, true); err != nil {
		return err
	}
	f.begin(continued)
	c.setNoStream(ctx, false)
	return nil
}

func (c *connection) compareRegularly(ctx context.Context, subscribable bool) error {
	if err := c.lease.take(ctx); err != nil {
		return err
	}
	if subscribable {
		c.setNoStream(ctx, true)
	}
	for until := time.Now().Add(askAgain); time.Now().Before(until); {
		if err := c.relay.compareLists(ctx, c.backend, true); err != nil {
			return err
		}
		if err := periodic.Sleep(ctx, c.relay.relist()); err != nil {
			return err
		}
	}
	return nil
}

func (r *Relay) relist() time.Duration { return cmp.Or(r.Relist, time.Minute) }

// setNoStream records in the store whether the backend's notification stream is missing. Without a stream, clients cannot subscribe to
// the backend's resources.
func (c *connection) setNoStream(ctx context.Context, missing bool) {
	var until time.Time
	if missing {
		until = time.Now().Add(askAgain + c.relay.relist())
	}
	if err := c.backend.SetNoStream(ctx, until); err != nil && ctx.Err() == nil {
		c.relay.log(c.backend).WarnContext(ctx, "notification stream of backend not recorded", "error", err)
	}
}
