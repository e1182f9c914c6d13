package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Notice is what the log holds of a backend's notification, for all streams.
type Notice struct {
	Method string          `json:"m"`
	Params json.RawMessage `json:"p,omitempty"`
}

// Announcer appends notices to a backend's topic of the log.
type Announcer func(ctx context.Context, workspace, backend string, notice json.RawMessage) error

// Relay holds one notification stream to each backend in the whole deployment, and
// puts what comes into the log. Who holds it is decided by a lease in the store.
type Relay struct {
	Gateway  *Gateway
	Announce Announcer
	// Lease is how long a holder that died keeps others waiting; 0 is 30 s.
	Lease time.Duration
	// Relist is how often the lists of a backend without notifications are compared; 0 is 1 min.
	Relist time.Duration
	// MinPause and MaxPause bound the pause before a backend is tried again, which doubles
	// each time; 0 are 1 s and 1 min.
	MinPause, MaxPause time.Duration
	// Until is when this process has to have ended, where its time is bounded. In the last
	// Handover of that time others take the backends over.
	Until    time.Time
	Handover time.Duration
}

func (r *Relay) pauses() (least, most time.Duration) {
	return cmp.Or(r.MinPause, time.Second), cmp.Or(r.MaxPause, time.Minute)
}

func (r *Relay) bounded() bool { return !r.Until.IsZero() }

func (r *Relay) lease() time.Duration { return cmp.Or(r.Lease, 30*time.Second) }

// setEvery is how often the relay looks which backends there are.
const setEvery = time.Second

// follower is the work for one backend.
type follower struct {
	stop context.CancelFunc
	idle atomic.Bool // somebody else has it
}

// Run relays until ctx ends, and follows what the gateway's backends are. Where its time is bounded
// it ends as soon as there is nothing to hold: when there are no backends, or others have them.
func (r *Relay) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if r.bounded() {
		end := time.AfterFunc(time.Until(r.Until), stop)
		defer end.Stop()
	}
	followed, idled := map[*backend]*follower{}, make(chan struct{}, 1)
	tick := time.NewTicker(setEvery)
	defer tick.Stop()
	for {
		// Where only callers have credentials there is nobody to listen as.
		now := slices.DeleteFunc(slices.Clone(r.Gateway.backends(ctx)), (*backend).perCaller)
		for b, f := range followed {
			if !slices.Contains(now, b) {
				f.stop()
				delete(followed, b)
			}
		}
		idle := true
		for _, b := range now {
			f := followed[b]
			if f == nil {
				f = &follower{}
				followed[b] = f
				var one context.Context
				one, f.stop = context.WithCancel(ctx)
				wg.Go(func() { r.backend(one, b, f, idled) })
			}
			idle = idle && f.idle.Load()
		}
		if idle && r.bounded() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-idled:
		case <-tick.C:
		}
	}
}

// backend keeps trying to hold the stream of one backend.
func (r *Relay) backend(ctx context.Context, b *backend, f *follower, idled chan<- struct{}) {
	again, _ := r.pauses()
	if r.bounded() {
		again = max(r.Handover/8, 100*time.Millisecond)
	}
	for ctx.Err() == nil {
		l, err := r.acquire(ctx, b)
		if l != nil {
			f.idle.Store(false)
			r.keep(l)
			l.release()
		} else if err != nil && ctx.Err() == nil {
			r.Gateway.options.Log.WarnContext(ctx, "who holds a backend's notifications is not known", "backend", b.Name, "error", err)
		}
		f.idle.Store(true)
		select {
		case idled <- struct{}{}:
		default:
		}
		pause(ctx, again/2+mathrand.N(again/2)) // so that not all come together
	}
}

// keep keeps connecting, as long as it has the lease.
func (r *Relay) keep(l *lease) {
	least, most := r.pauses()
	for wait := least; l.ctx.Err() == nil; {
		began := time.Now()
		err := r.follow(l)
		if l.follows {
			r.Gateway.options.Log.InfoContext(l.ctx, "the notifications of a backend were not taken over", "backend", l.backend.Name, "error", err)
			return // the holder goes on
		}
		if err != nil && l.ctx.Err() == nil {
			r.Gateway.options.Log.WarnContext(l.ctx, "the notifications of a backend are interrupted", "backend", l.backend.Name, "error", err)
		}
		if time.Since(began) > wait {
			wait = least // it was not refused, it ended
		}
		// Jitter, so that backends that died together are not called together.
		pause(l.ctx, wait/2+mathrand.N(wait/2))
		wait = min(2*wait, most)
	}
}

// follow connects to a backend and relays until the connection or the lease ends. What changed
// while nobody listened is found by comparing the lists.
func (r *Relay) follow(l *lease) error {
	ctx, b := l.ctx, l.backend
	b.mu.Lock()
	was := b.learned
	b.mu.Unlock()
	b.forget(was) // it may be another since
	known, err := b.known(ctx)
	if err != nil {
		return err
	}
	if !known.offers.Notifies() {
		return r.compareForEver(l)
	}
	f := &following{relay: r, backend: b, known: known, subscribed: map[string]bool{}, failed: make(chan error, 1)}
	stream, err := f.connect(ctx)
	defer func() { f.close(stream) }()
	if err != nil {
		if status, ok := errors.AsType[*upstream.StatusError](err); ok && slices.Contains(noStream, status.Status) {
			r.Gateway.options.Log.InfoContext(ctx, "backend has no notification stream, its lists are compared", "backend", b.Name, "status", status.Status)
			return r.compareForEver(l)
		}
		return err
	}
	// Only now: who has it is not to stop before we listen, and what changes after the
	// comparison is notified.
	l.connected.Store(true)
	defer l.connected.Store(false)
	if err := l.take(ctx); err != nil {
		return err
	}
	if err := f.missed(ctx, l.took); err != nil {
		return err
	}
	if err := r.compare(ctx, b, true); err != nil {
		return err
	}
	l.took = false // the next connection has a gap before it
	return f.run(ctx, stream)
}

// noStream are the answers to a GET by which a backend tells that it has no stream: that of the revisions,
// and those of servers that serve nothing but POST.
var noStream = []int{http.StatusMethodNotAllowed, http.StatusNotFound, http.StatusNotImplemented}

// Notifies reports whether the backend tells of any change.
func (o Offers) Notifies() bool {
	return o.ToolsChanged || o.PromptsChanged || o.ResourcesChanged || o.Subscribe
}

// compareForEver stands in for notifications.
func (r *Relay) compareForEver(l *lease) error {
	if err := l.take(l.ctx); err != nil {
		return err
	}
	for {
		if err := r.compare(l.ctx, l.backend, true); err != nil {
			return err
		}
		if err := pause(l.ctx, cmp.Or(r.Relist, time.Minute)); err != nil {
			return err
		}
	}
}

// changes say by which notification a list's change is told.
var changes = map[Kind]string{
	Tools: mcpspec.NoteToolsChange, Prompts: mcpspec.NotePromptsChange,
	Resources: mcpspec.NoteResourcesChange, Templates: mcpspec.NoteResourcesChange,
}

// compare fetches the lists and tells of those that are not what they were when
// they were compared last, by whomever. When that was told already, it only remembers.
func (r *Relay) compare(ctx context.Context, b *backend, tell bool) error {
	b.outdate()
	told := map[string]bool{}
	for kind := range kinds {
		listVersion := r.Gateway.listVersions(ctx, []*backend{b}, Kind(kind))[0]
		list, err := b.list(ctx, Kind(kind), listVersion, func(*fetched) time.Duration { return maxTTL }) // fetched since, if at all
		if err != nil {
			return err
		}
		h := sha256.New()
		for _, e := range list.entries {
			h.Write(e.JSON)
			h.Write([]byte{'\n'})
		}
		sum := []byte(base64.RawURLEncoding.EncodeToString(h.Sum(nil)))
		key := b.relayKey("list#" + kinds[kind].member)
		items, err := r.Gateway.options.DB.Get(ctx, key)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read how a backend's list was")
		}
		if items[0] != nil && bytes.Equal(items[0].Value, sum) {
			continue
		}
		if method := changes[Kind(kind)]; tell && items[0] != nil && !told[method] {
			told[method] = true
			if err := b.changeListVersion(ctx, method); err != nil {
				return err
			}
			if err := r.announce(ctx, b, Notice{Method: method}); err != nil {
				return err
			}
		}
		if err := r.Gateway.options.DB.Write(ctx, store.Put(store.Item{Key: key, Value: sum})); err != nil {
			return fault.Wrap(fault.Unavailable, err, "keep how a backend's list is")
		}
	}
	return nil
}

func (r *Relay) announce(ctx context.Context, b *backend, n Notice) error {
	text, err := json.Marshal(n)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode a backend's notification")
	}
	return r.Announce(ctx, b.Workspace, b.Name, text)
}
