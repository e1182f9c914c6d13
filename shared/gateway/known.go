package gateway

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// known is what a backend said of itself.
type known struct {
	api.Capabilities
	version mcpspec.Version
	session string // of the gateway's own session with it, in the session-based revisions
	at      time.Time
}

// own is the gateway's own session.
func (k *known) own() backendSession { return backendSession{Version: k.version, ID: k.session} }

// askAgain is how long what a backend said of itself is believed.
const askAgain = 5 * time.Minute

// known is what the backend said of itself, asked for by one caller at a time.
// Something older is better than nothing: with an error, it is what was known before.
func (v *view) known(ctx context.Context) (*known, error) {
	for {
		v.mu.Lock()
		have, f := v.last, v.asking
		if have != nil && time.Since(have.at) < askAgain {
			v.mu.Unlock()
			return have, nil
		}
		first := f == nil
		if first {
			f = newFlight[*known]()
			v.asking = f
		}
		v.mu.Unlock()
		if first {
			now, err := f.fly(ctx, func() (*known, error) { return v.refreshKnown(ctx, have) })
			if err == nil && have != nil {
				// Who still uses it finds it gone, and asks for the new one.
				v.of.gateway.sessions.end(context.WithoutCancel(ctx), v.of, v.token, have.own())
			}
			return now, err
		}
		if now, err, ok := f.wait(ctx); ok {
			if now == nil {
				now = have
			}
			return now, fault.Wrap(fault.Unavailable, err, "wait for backend %s", v.of.Name)
		}
	}
}

func (v *view) refreshKnown(ctx context.Context, have *known) (now *known, err error) {
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.asking = nil
		if err == nil {
			v.last = now
		}
	}()
	if now, err = v.ask(ctx); err != nil {
		return have, err
	}
	now.at = time.Now()
	return now, nil
}

// forget makes the next caller ask again, unless another one has already.
func (v *view) forget(was *known) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if was != nil && v.last == was {
		old := *was
		old.at = time.Time{}
		v.last = &old
	}
}

// ask finds out the revision and what is served: by server/discover, which only
// 2026-07-28 has, and else by initialize.
func (v *view) ask(ctx context.Context) (*known, error) {
	c, pinned := v.client(), v.of.ProtocolVersion
	auto := pinned == config.AutoVersion
	if stateless := !auto && mcpspec.Version(pinned).Stateless(); auto || stateless {
		got, err := c.Discover(ctx)
		if err == nil {
			return newKnown(got), nil
		}
		if stateless || fault.Is(err, fault.Unavailable) && !upstream.Refused(err) {
			return nil, err
		}
	}
	version := mcpspec.LatestSessionBased
	if !auto {
		version = mcpspec.Version(pinned)
	}
	got, err := c.Initialize(ctx, upstream.Declared{Version: version})
	if err != nil {
		return nil, err
	}
	return newKnown(got), nil
}

func newKnown(k upstream.Known) *known {
	return &known{Capabilities: capabilitiesOf(k.Capabilities), version: k.Version, session: k.Session}
}
