package relay

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A backend may send more notifications than clients can use, by mistake or on purpose. Each notification is written to the event log,
// kept for the log's retention time, and sent to every stream that asked for it. So there are limits that a well-behaved backend never
// reaches: list changes that arrive too fast are combined, updates of resources are read no faster than the limit, and excess updates of
// resources without a subscription are dropped.
const (
	changeRate, changeBurst = 1, 50     // list changes of each kind, per second and in a burst
	updateRate, updateBurst = 200, 1000 // updates of resources; each further KiB of an update counts as another update
	// These limit updates of resources without a subscription. The burst is for updates that arrive before their subscription is
	// recorded.
	unaskedRate, unaskedBurst = 0.1, 1000
	updateUnit                = 1024
)

// notificationThrottle limits how fast the relay announces the notifications of a backend, across all the relay's connections to the
// backend.
type notificationThrottle struct {
	changes          map[string]*rate.Limiter // a limiter for each method; the map is never modified
	updates, unasked *rate.Limiter

	mu   sync.Mutex
	held map[string]bool // the methods of list changes that still have to be announced
}

func newNotificationThrottle() *notificationThrottle {
	t := &notificationThrottle{
		changes: map[string]*rate.Limiter{}, held: map[string]bool{},
		updates: rate.NewLimiter(updateRate, updateBurst), unasked: rate.NewLimiter(unaskedRate, unaskedBurst),
	}
	for _, kind := range api.Kinds {
		t.changes[kind.ChangedMethod()] = rate.NewLimiter(changeRate, changeBurst)
	}
	t.changes[spec.NoteRootsChange] = rate.NewLimiter(changeRate, changeBurst)
	return t
}

// change reports whether the relay may announce the change of a list now. If not, the throttle remembers the notification's method, and
// [notificationThrottle.due] returns it later.
func (t *notificationThrottle) change(method string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[method] = !t.changes[method].Allow()
	return !t.held[method]
}

// due returns the methods of remembered list changes that may be announced now or, if end is set, of all remembered ones. The throttle
// then forgets them.
func (t *notificationThrottle) due(end bool) (methods []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for method, held := range t.held {
		if held && (end || t.changes[method].Allow()) {
			methods = append(methods, method)
			t.held[method] = false
		}
	}
	return methods
}

// hold remembers a list change that could not be announced, so that [notificationThrottle.due] returns it again later.
func (t *notificationThrottle) hold(method string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[method] = true
}

// update waits until the relay may announce a resource's update of the given size in bytes. If no client is subscribed to the resource
// (asked is false), update does not wait, and announce is false if the update must be dropped.
func (t *notificationThrottle) update(ctx context.Context, size int, asked bool) (announce bool, err error) {
	n := 1 + size/updateUnit
	if asked {
		return true, t.updates.WaitN(ctx, n)
	}
	return t.unasked.AllowN(time.Now(), n), nil
}

// catchUp announces the delayed list changes that the throttle permits now. If end is set, it announces all, because the connection
// closes.
func (f *following) catchUp(ctx context.Context, end bool) {
	for _, method := range f.throttle.due(end) {
		if err := f.announceChange(ctx, method); err != nil {
			f.throttle.hold(method)
			f.relay.log(f).WarnContext(ctx, "list change not announced", "error", err)
		}
	}
}

// Besides events, a backend may send cursors, errors, malformed messages, and gaps, which are reports that events were lost. Each of them
// costs something: the relay stores a cursor, logs an error, and publishes a gap.
const (
	gapCost = 10 // events that a gap counts as, because each webhook subscriber gets a notice of it
	// lineRate and lineBurst limit the lines per second of all event streams of a backend together. A message has two lines or more.
	lineRate, lineBurst = 8 * eventRate, 8 * eventBurst
	// logRate and logBurst limit the log lines per second that package client writes about a backend's events.
	logRate, logBurst = 1, 50
)

// limitedStream is a stream from a backend that can be read only at a limited number of lines per second. At the limit, Read waits.
type limitedStream struct {
	io.ReadCloser
	ctx   context.Context
	lines *rate.Limiter
}

func (s limitedStream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	lines := bytes.Count(b[:n], []byte{'\n'}) + bytes.Count(b[:n], []byte{'\r'})
	if late := s.lines.WaitN(s.ctx, min(lines, lineBurst)); err == nil {
		err = late
	}
	return n, err
}

type limitedLog struct {
	slog.Handler
	limit *rate.Limiter
}

func limitLog(l *slog.Logger) *slog.Logger {
	return slog.New(limitedLog{l.Handler(), rate.NewLimiter(logRate, logBurst)})
}

func (l limitedLog) Handle(ctx context.Context, r slog.Record) error {
	if !l.limit.Allow() {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

func (l limitedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limitedLog{l.Handler.WithAttrs(attrs), l.limit}
}

func (l limitedLog) WithGroup(name string) slog.Handler {
	return limitedLog{l.Handler.WithGroup(name), l.limit}
}
