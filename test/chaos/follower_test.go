//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/harness"
)

// follower receives events like a program with the package client, which resumes from its last position after every
// failure of the server, and records them in its ledger.
type follower struct {
	*ledger
	once  sync.Once
	ready chan struct{} // closed at the first connection
}

// follow runs a follower until the test ends. It returns when the follower is connected.
func follow(t *testing.T, l *ledger, run func(context.Context, *follower) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{ledger: l, ready: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx, f); err != nil {
			l.fault("the client gave up: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-f.ready:
	case <-done:
		t.Fatalf("the follower has ended: %v", l.faults)
	case <-time.After(harness.Patience):
		t.Fatal("the follower does not connect")
	}
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
			Event: f.received,
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
				Event: f.received,
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
	f.start()
	f.once.Do(func() { close(f.ready) })
}

// Handle receives the client's log records. Only messages about lost connections and their recovery are allowed.
func (f *follower) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case "following":
		f.opened()
	case "request failed, retrying", "session ended, starting a new one", "subscription not refreshed", "subscription refreshed",
		"subscription was suspended", "subscription ended", "webhook refused", "server reported an error":
	case "events missing after resume":
		f.gap()
	default:
		f.fault("the client logged: %s", r.Message)
	}
	return nil
}

func (f *follower) Enabled(context.Context, slog.Level) bool { return true }
func (f *follower) WithAttrs([]slog.Attr) slog.Handler       { return f }
func (f *follower) WithGroup(string) slog.Handler            { return f }

// received records an event, whose payload must repeat its id.
func (f *follower) received(_ context.Context, e client.Event) error {
	var payload struct{ ID string }
	_ = json.Unmarshal(e.Data, &payload) // receive reports invalid data
	f.receive(e.ID, payload.ID)
	return nil
}
