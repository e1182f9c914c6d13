//go:build unix

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// follower gets events as a client does that goes on from its last position
// whatever happens to the server.
type follower struct {
	connections, polls atomic.Int64
	stop               func()

	begun chan struct{} // closed with the first position

	mu       sync.Mutex
	ids      []string // of the events, as they came
	seen     map[string]bool
	position string // a cursor, or the id of a server-sent event
	faults   []string
}

// step takes a follower further: it reads a stream to its end, or polls once.
type step func(context.Context, *follower) error

// follow takes a follower on and on until the test ends. It returns when the
// follower has a position.
func follow(t *testing.T, next step) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{begun: make(chan struct{}), seen: map[string]bool{}}
	done := make(chan struct{})
	var last atomic.Value
	go func() {
		defer close(done)
		pause := time.NewTicker(20 * time.Millisecond)
		defer pause.Stop()
		for ctx.Err() == nil {
			if err := next(ctx, f); err != nil {
				last.Store(err.Error())
			}
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
		}
	}()
	f.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(f.stop)
	select {
	case <-f.begun:
	case <-time.After(harness.Patience):
		t.Fatalf("the follower does not begin: %v", last.Load())
	}
	return f
}

// listening is subscriptions/listen.
func listening(c *harness.Client, uris ...string) step {
	return reading(func(ctx context.Context, position string) (*harness.Stream, error) {
		meta := map[string]any{}
		if position != "" {
			meta[harness.Prefix+"cursor"] = position
		}
		return c.TryListen(ctx, "chaos", map[string]any{"resourceSubscriptions": uris}, meta)
	})
}

// session makes a session that is subscribed to the URIs; its follower reads its GET stream.
func session(t *testing.T, target *harness.Target, principal string, uris ...string) step {
	t.Helper()
	c := &harness.Client{URL: target.MCP, Key: target.Keys[principal], Version: harness.Legacy}
	retry(t, func(ctx context.Context) error {
		_, err := c.TryInitialize(ctx)
		return err
	})
	for _, uri := range uris {
		retry(t, func(ctx context.Context) error {
			return call(ctx, c, "resources/subscribe", map[string]any{"uri": uri}, nil)
		})
	}
	return reading(func(ctx context.Context, position string) (*harness.Stream, error) {
		stream, err := c.TryOpen(ctx, position)
		if err == nil && !stream.AwaitPrime(ctx) {
			stream.Close()
			return nil, stream.Err()
		}
		return stream, err
	})
}

// pushed is events/stream, polled is events/poll of the same subscription.
func pushed(c *harness.Client, arguments map[string]any) step {
	return reading(func(ctx context.Context, position string) (*harness.Stream, error) {
		return c.TryStream(ctx, "chaos", "events/stream", occurrences(arguments, position))
	})
}

func polled(c *harness.Client, arguments map[string]any) step {
	return func(ctx context.Context, f *follower) error {
		var page struct {
			Events    []json.RawMessage
			Cursor    string
			Truncated bool
		}
		params := occurrences(arguments, f.at())
		maps.Copy(params, map[string]any{"maxEvents": 100})
		if err := call(ctx, c, "events/poll", params, &page); err != nil {
			return err
		}
		f.polls.Add(1)
		for _, e := range page.Events {
			f.occurred(e)
		}
		if page.Truncated {
			f.fault("a poll was truncated")
		}
		f.advance(page.Cursor)
		return nil
	}
}

func occurrences(arguments map[string]any, position string) map[string]any {
	params := map[string]any{"name": "message.created", "arguments": arguments}
	if position != "" {
		params["cursor"] = position
	}
	return params
}

// inTurn takes each step once, a stream for at most a second.
func inTurn(steps ...step) step {
	return func(ctx context.Context, f *follower) (err error) {
		for _, next := range steps {
			some, cancel := context.WithTimeout(ctx, time.Second)
			err = errors.Join(err, next(some, f))
			cancel()
		}
		return err
	}
}

// reading opens a stream and takes over what it sends until it ends.
func reading(open func(ctx context.Context, position string) (*harness.Stream, error)) step {
	return func(ctx context.Context, f *follower) error {
		stream, err := open(ctx, f.at())
		if err != nil {
			return err
		}
		defer stream.Close()
		f.connections.Add(1)
		f.primed(stream.Primes())
		for n, more := 0, true; more; {
			more = stream.Await(ctx, n+1)
			for _, m := range stream.From(n) {
				n++
				f.take(m)
			}
		}
		if errors.Is(stream.Err(), io.EOF) { // in order: what comes last may be an id alone
			f.primed(stream.Primes())
		}
		return nil
	}
}

func (f *follower) primed(ids []string) {
	if len(ids) > 0 {
		f.advance(ids[len(ids)-1])
	}
}

func (f *follower) take(m *harness.Message) {
	if bytes.Contains(m.Raw, []byte(`truncated":true`)) {
		f.fault("a stream was truncated")
	}
	var params struct {
		Cursor  string
		Payload struct{ ID string }
		Meta    map[string]any `json:"_meta"`
	}
	body := m.Params
	if body == nil {
		body = m.Result
	}
	if err := json.Unmarshal(body, &params); err != nil {
		f.fault(fmt.Sprintf("%s: %v", m.Raw, err))
	}
	switch m.Method {
	case "notifications/resources/updated":
		id, _ := params.Meta[harness.Prefix+"eventId"].(string)
		f.event(id, params.Payload.ID)
	case "notifications/events/event":
		f.occurred(m.Params)
	}
	if params.Cursor == "" {
		params.Cursor, _ = params.Meta[harness.Prefix+"cursor"].(string)
	}
	if m.EventID != "" {
		params.Cursor = m.EventID
	}
	if params.Cursor != "" {
		f.advance(params.Cursor)
	}
}

// occurred takes an event of SEP-3415.
func (f *follower) occurred(raw json.RawMessage) {
	var e struct {
		EventID string
		Data    struct{ ID string }
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		f.fault(err.Error())
	}
	f.event(e.EventID, e.Data.ID)
}

// event takes an event, whose payload repeats its id.
func (f *follower) event(id, payload string) {
	if id == "" || id != payload {
		f.fault(fmt.Sprintf("the event %q has the payload of %q", id, payload))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids, f.seen[id] = append(f.ids, id), true
}

func (f *follower) advance(position string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.position == "" {
		close(f.begun)
	}
	f.position = position
}

func (f *follower) fault(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) < 10 {
		f.faults = append(f.faults, text)
	}
}

func (f *follower) at() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.position
}

func (f *follower) different() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

// check ends the follower, which must have had every event and no other, and says how
// many it had more than once.
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
	t.Logf("%d events, %d repetitions, %d connections, %d polls", len(f.seen), repetitions, f.connections.Load(), f.polls.Load())
	if missing > 0 || len(f.seen) != len(want) {
		t.Errorf("%d events are missing, %d ids are strange", missing, len(f.seen)-(len(want)-missing))
	}
	for _, text := range f.faults {
		t.Error(text)
	}
	return repetitions
}
