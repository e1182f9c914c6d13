//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/harness"
)

// follower receives events like a program with the package client, which resumes from its last position after every
// failure of the server.
type follower struct {
	connections atomic.Int64
	stop        func()
	ledger      *ledger // records the events instead of ids and seen, unless it is nil

	once  sync.Once
	ready chan struct{} // closed at the first connection

	mu     sync.Mutex
	ids    []string // of the events, in the order of arrival
	seen   map[string]bool
	faults []string
}

// follow runs a follower until the test ends. It returns when the follower is connected.
func follow(t *testing.T, run func(context.Context, *follower) error) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{ready: make(chan struct{}), seen: map[string]bool{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx, f); err != nil {
			f.fault("the client gave up: " + err.Error())
		}
	}()
	f.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(f.stop)
	select {
	case <-f.ready:
	case <-done:
		t.Fatalf("the follower has ended: %v", f.faults)
	case <-time.After(harness.Patience):
		t.Fatal("the follower does not connect")
	}
	return f
}

// newClient returns a client of the public package, which logs to the follower.
func newClient(ctx context.Context, target *harness.Target, principal string, version spec.Version, f *follower, webhooks *client.Handler) (*client.Client, error) {
	return client.Connect(ctx, target.MCP, client.Options{
		Key: target.Keys[principal], Agent: "chaos/1", Revision: string(version), MinPoll: 100 * time.Millisecond, Webhooks: webhooks, Log: slog.New(f),
	})
}

// receive subscribes until ctx ends. Accepted is called when the server has accepted the subscription; it may be nil.
func receive(ctx context.Context, c *client.Client, o client.SubscribeOptions, accepted func(*client.Subscription)) error {
	sub, err := c.Subscribe(ctx, o)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if accepted != nil {
		accepted(sub)
	}
	<-sub.Done()
	return sub.Err()
}

// byURI follows URIs with subscriptions/listen, or in an earlier revision with the GET stream of a session.
func byURI(target *harness.Target, principal string, version spec.Version, uris ...string) func(context.Context, *follower) error {
	return func(ctx context.Context, f *follower) error {
		c, err := newClient(ctx, target, principal, version, f, nil)
		if err != nil {
			return err
		}
		return receive(ctx, c, client.SubscribeOptions{
			URIs: uris, Mode: client.ModePush,
			Event: func(_ context.Context, e client.Event) error { return f.receive(e) },
		}, nil)
	}
}

// byName follows an event type with events/poll or events/stream, or with each of them for a second in turn.
func byName(target *harness.Target, name string, arguments map[string]any, modes ...string) func(context.Context, *follower) error {
	return func(ctx context.Context, f *follower) error {
		c, err := newClient(ctx, target, "alice", spec.V20260728, f, nil)
		if err != nil {
			return err
		}
		for n := 0; ctx.Err() == nil; n++ {
			turn, cancel := ctx, context.CancelFunc(func() {})
			if len(modes) > 1 {
				turn, cancel = context.WithTimeout(ctx, time.Second)
			}
			err := receive(turn, c, client.SubscribeOptions{
				Name: name, Arguments: arguments, Mode: modes[n%len(modes)],
				Event: func(_ context.Context, e client.Event) error { return f.receive(e) },
			}, nil)
			cancel()
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func (f *follower) opened() {
	f.connections.Add(1)
	f.once.Do(func() { close(f.ready) })
}

// Handle receives the client's log records. Only messages about lost connections and their recovery are allowed.
func (f *follower) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case "following":
		f.opened()
		if f.ledger != nil {
			f.ledger.start()
		}
	case "request failed, retrying", "session ended, starting a new one", "subscription not refreshed", "subscription refreshed",
		"subscription was suspended", "subscription ended", "webhook refused", "server reported an error":
	case "events missing after resume":
		if f.ledger != nil {
			f.ledger.gap()
			break
		}
		fallthrough
	default:
		f.fault("the client logged: " + r.Message)
	}
	return nil
}

func (f *follower) Enabled(context.Context, slog.Level) bool { return true }
func (f *follower) WithAttrs([]slog.Attr) slog.Handler       { return f }
func (f *follower) WithGroup(string) slog.Handler            { return f }

// receive records an event, whose payload must repeat its id.
func (f *follower) receive(e client.Event) error {
	var payload struct{ ID string }
	if err := json.Unmarshal(e.Data, &payload); err != nil || e.ID == "" || e.ID != payload.ID {
		f.fault(fmt.Sprintf("the event %q has the payload of %q: %v", e.ID, payload.ID, err))
	}
	if f.ledger != nil {
		f.ledger.receive(e.ID, payload.ID)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids, f.seen[e.ID] = append(f.ids, e.ID), true
	return nil
}

func (f *follower) fault(text string) {
	if f.ledger != nil {
		f.ledger.fault("%s", text)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) < 10 {
		f.faults = append(f.faults, text)
	}
}

// distinct returns the number of different events that arrived.
func (f *follower) distinct() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

// check ends the follower and asserts that it received every wanted event and no others. It returns the number of
// repetitions.
func (f *follower) check(t *testing.T, want []string) (repetitions int) {
	t.Helper()
	f.stop()
	missing := 0
	for _, id := range want {
		if !f.seen[id] {
			missing++
		}
	}
	repetitions = len(f.ids) - len(f.seen)
	t.Logf("%d events, %d repetitions, %d connections", len(f.seen), repetitions, f.connections.Load())
	if missing > 0 || len(f.seen) != len(want) {
		t.Errorf("got %d of %d wanted events and %d others, want all and no others", len(want)-missing, len(want), len(f.seen)-(len(want)-missing))
	}
	for _, text := range f.faults {
		t.Error(text)
	}
	return repetitions
}
