package relay

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// connection is the relay's connection to one backend, for as long as the relay has the lease. It is a state machine:
//
//	         ┌────────── after 5 minutes ─────────┐
//	         ▼                                    │
//	──▶ asking ──────no notifications──────▶ no stream: its lists are compared every minute
//	         │                                    ▲
//	         │ notifications                      │
//	         ▼                                    │
//	    connecting ──404, 405 or 501 to the GET───┘
//	         │
//	         │ the stream is open; a listen is acknowledged
//	         ▼
//	    comparing: the lease is taken over, and missed changes of lists are announced
//	         │
//	         ▼
//	    streaming: notifications are announced, and the subscriptions follow what clients want
//
// An error in any state, or the end of the stream, leads back to asking, after a pause that grows while no stream stays open. A list that
// cannot be fetched is no such error; see [Relay.compareLists].
type connection struct {
	relay   *Relay
	lease   *lease
	backend *follower

	state        state
	capabilities api.Capabilities
	version      spec.Version
	stream       *following // while it is connected
	opened       time.Time  // when the stream was opened, or zero
	reported     bool       // whether the log says that the backend has no stream
}

type state string

const (
	asking     state = "asking"
	noStream   state = "no stream"
	connecting state = "connecting"
	comparing  state = "comparing"
	streaming  state = "streaming"
)

// askAgain is how long the relay waits before it asks again for a refused subscription, or for a stream that the backend does not have.
// The answer may change, because it may have come from an old replica, or because the backend may get the capability later.
const askAgain = 5 * time.Minute

// noStreamStatus lists the statuses that mean "no notification stream" in the answer to a GET: 405 according to the specification, and
// 404 and 501 from servers that accept only POST.
var noStreamStatus = []int{http.StatusMethodNotAllowed, http.StatusNotFound, http.StatusNotImplemented}

var errNoStream = errors.New("gateway: the backend has no notification stream")

func (c *connection) keep() {
	if c.backend.OnlyForCallers() { // without credentials, the relay cannot receive its notifications
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
			return // another relay has the lease, and continues
		}
		if err != nil && c.lease.ctx.Err() == nil {
			log.WarnContext(c.lease.ctx, "backend notifications interrupted", "state", string(c.state), "error", err)
		}
		if !c.opened.IsZero() && time.Since(c.opened) > wait {
			wait = least // the stream was open for a while, so the next pause is short again
		}
		c.pause(spread(wait, most))
		wait = min(2*wait, most)
	}
}

// pause waits before the next attempt to connect. A client that subscribes to a resource ends the pause, because the backend probably
// responds again, but not before the shortest pause is over.
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

func (c *connection) follow(ctx context.Context) error {
	defer c.hangUp()
	steps := map[state]func(context.Context) (state, error){
		asking: c.ask, noStream: c.compareRegularly, connecting: c.connect, comparing: c.catchUp, streaming: c.read,
	}
	for c.state = asking; ; {
		c.relay.log(c.backend).DebugContext(ctx, "backend connection changed", "state", string(c.state))
		next, err := steps[c.state](ctx)
		if err != nil {
			return err
		}
		c.state = next
	}
}

func (c *connection) hangUp() {
	c.lease.connected.Store(false)
	if c.stream != nil {
		c.stream.close()
		c.stream = nil
	}
}

func (c *connection) ask(ctx context.Context) (next state, err error) {
	if c.capabilities, c.version, err = c.backend.Ask(ctx); err != nil {
		return "", err
	}
	if !c.capabilities.Notifies() {
		return noStream, nil
	}
	return connecting, nil
}

func (c *connection) connect(ctx context.Context) (state, error) {
	c.stream = newFollowing(ctx, c)
	err := c.stream.connect()
	if errors.Is(err, errNoStream) {
		if !c.reported {
			c.relay.log(c.backend).InfoContext(ctx, "backend has no stream", "error", err)
		}
		c.reported = true
		c.hangUp()
		return noStream, nil
	}
	c.opened, c.reported = time.Now(), false
	return comparing, err
}

// catchUp takes over the lease from another relay whose time is ending, because this relay is now listening too. Then it
// compares the lists, to announce changes that no relay has noticed. The stream reports all later changes.
func (c *connection) catchUp(ctx context.Context) (state, error) {
	c.lease.connected.Store(true)
	if c.lease.follows {
		c.stream.settle(min(c.backend.Client().AskTimeout, c.relay.Handover/2))
	}
	if err := c.lease.take(ctx); err != nil {
		return "", err
	}
	// If the field took is set, the other relay was connected until now, so this connection has missed nothing. That is not true for later
	// connections, so catchUp clears the field.
	continued := c.lease.took
	c.lease.took = false
	if err := c.relay.compareLists(ctx, c.backend, true); err != nil {
		return "", err
	}
	c.stream.begin(continued)
	c.setNoStream(ctx, false)
	return streaming, nil
}

func (c *connection) read(ctx context.Context) (state, error) { return asking, c.stream.run(ctx) }

func (c *connection) compareRegularly(ctx context.Context) (state, error) {
	if err := c.lease.take(ctx); err != nil {
		return "", err
	}
	if c.capabilities.Subscribe {
		c.setNoStream(ctx, true)
	}
	for until := time.Now().Add(askAgain); time.Now().Before(until); {
		if err := c.relay.compareLists(ctx, c.backend, true); err != nil {
			return "", err
		}
		if err := periodic.Sleep(ctx, c.relay.relist()); err != nil {
			return "", err
		}
	}
	return asking, nil
}

func (r *Relay) relist() time.Duration { return cmp.Or(r.Relist, time.Minute) }

// setNoStream records whether the backend's notification stream is missing. Without a stream, clients cannot subscribe to its resources.
func (c *connection) setNoStream(ctx context.Context, missing bool) {
	var until time.Time
	if missing {
		until = time.Now().Add(askAgain + c.relay.relist())
	}
	if err := c.backend.SetNoStream(ctx, until); err != nil && ctx.Err() == nil {
		c.relay.log(c.backend).WarnContext(ctx, "notification stream of backend not recorded", "error", err)
	}
}
