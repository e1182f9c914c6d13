package gateway

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"mcpevents/shared/metric"
)

// MetricDropped is the name under which messages of backends that were not handed on are
// counted, by workspace, backend and reason.
const MetricDropped = "GatewayMessagesDropped"

// Why a message of a backend was not handed on. There are few, since they are counted by.
const (
	dropGarbage    = "it is no JSON"
	dropNoMessage  = "it is no JSON-RPC message"
	dropOther      = "it answers another request"
	dropOutOfPlace = "its method does not belong into a call"
	dropQuestion   = "it asks a client outside of a call"
	dropUpdate     = "an update without a URI, or too large"
	dropMethod     = "its method is none that is relayed"
	dropNameless   = "an entry of a list without a name"
)

// tellEvery is how often a line tells of what one backend had dropped for one reason: a
// backend that sends nothing but garbage must not fill the log.
const tellEvery = 10 * time.Second

// drops counts what was dropped.
type drops struct {
	log   *slog.Logger
	every time.Duration

	mu     sync.Mutex
	counts map[dropped]*count
}

type dropped struct {
	place
	reason string
}

// count is how many there were, how many of them a line has told of, and whether one is
// due. A line is written at once, and then at most each [tellEvery], with all since the last.
type count struct {
	all, told int64
	due       bool
}

func (b *backend) dropped(ctx context.Context, reason string) {
	b.gateway.drops.add(ctx, dropped{b.place(), reason})
}

func (d *drops) add(ctx context.Context, what dropped) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counts[what]
	if c == nil {
		c = &count{}
		d.counts[what] = c
	}
	if c.all++; !c.due {
		d.tell(ctx, what, c)
	}
}

// tell writes a line, and another one later if there is more then. The lock is held.
func (d *drops) tell(ctx context.Context, what dropped, c *count) {
	n := c.all - c.told
	if c.due = n > 0; !c.due {
		return
	}
	c.told = c.all
	d.log.WarnContext(ctx, "messages of a backend were dropped", metric.Count(MetricDropped, n,
		slog.String("workspace", what.workspace), slog.String("backend", what.name), slog.String("reason", what.reason)))
	time.AfterFunc(d.every, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.tell(context.Background(), what, c)
	})
}

// Dropped tells how many messages of each backend, named workspace/backend, were not handed
// on since the process began, and why.
func (g *Gateway) Dropped() map[string]map[string]int64 {
	g.drops.mu.Lock()
	defer g.drops.mu.Unlock()
	out := map[string]map[string]int64{}
	for what, c := range maps.All(g.drops.counts) {
		name := what.workspace + "/" + what.name
		if out[name] == nil {
			out[name] = map[string]int64{}
		}
		out[name][what.reason] = c.all
	}
	return out
}
