//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestShortRetentionOnAWS keeps subscribers for longer than the retention of the log, which is a minute here and a day by
// default. During the test, processes that are frozen between events renew everything that a deployment renews only
// after hours: the interest in a pattern, subscriptions and cursors.
func TestShortRetentionOnAWS(t *testing.T) {
	t.Parallel()
	env := maps.Clone(harness.Quick)
	env["MCPEVENTS_LOG_RETENTION"] = "1m"
	env["MCPEVENTS_STREAM_MAX_AGE"] = "65s" // longer than the retention; the clients continue once
	aws := harness.StartAWS(t, harness.AWSOptions{Env: env})
	alice := aws.Stateless("alice")
	hook := harness.NewReceiver(t).Endpoint("refreshed")
	subscribe(t, alice, hook, "github.push", nil)
	polls := follow(t, &aws.Target, "github.push", object{})
	listener := watch(t, "events/stream", watchEvents(alice))
	session := watch(t, "the stream of a session", watchSession(t, aws.SessionBased(t, "alice", harness.V20251125),
		"event://github/acme/app0/push", "event://github/acme/app1/push", "event://github/acme/app2"))
	poll := func() {
		for more := true; more; {
			p := polls.poll(t, nil)
			if more = p.HasMore; p.Truncated {
				t.Error("EVX-07 a cursor that is used every few seconds has lost events")
			}
		}
	}
	var published []string
	const pause, rounds = 3 * time.Second, 30 // one and a half retentions
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for n := range rounds {
		id := fmt.Sprint("push-", n)
		published = append(published, id)
		aws.Publish(t, harness.Event{ID: id, URI: fmt.Sprintf("event://github/acme/app%d/push", n%3), Data: object{"ref": "refs/heads/main", "after": "0123456789abcdef0123456789abcdef01234567"}})
		if n%4 == 3 {
			subscribe(t, alice, hook, "github.push", nil)
		}
		if n%2 == 1 {
			poll()
		}
		<-ticker.C
	}
	missing := func(got func(id string) bool) []string {
		return slices.DeleteFunc(slices.Clone(published), got)
	}
	harness.Eventually(t, harness.Patience, "EVX-11 the webhook gets all events", func() bool {
		ids := hook.IDs()
		return len(missing(func(id string) bool { return ids[id] > 0 })) == 0
	})
	for _, w := range []*watcher{listener, session} {
		harness.Eventually(t, harness.Patience, "EVX-26 "+w.name+" brings all events", func() bool { return len(missing(w.has)) == 0 })
		w.stop()
		for _, fault := range w.faults {
			t.Errorf("%s: %s", w.name, fault)
		}
		if w.opened < 2 {
			t.Errorf("%s was opened %d times, want at least twice", w.name, w.opened)
		}
	}
	harness.Eventually(t, harness.Patience, "EVX-07 the polls get all events", func() bool {
		poll()
		polled := map[string]bool{}
		for _, e := range polls.got {
			polled[e.EventID] = true
		}
		return len(missing(func(id string) bool { return polled[id] })) == 0
	})
}

// watcher is a client that keeps a stream open. If the server ends the stream, the client continues from its last
// position.
type watcher struct {
	name string
	stop func()

	mu     sync.Mutex
	ids    map[string]bool
	faults []string
	opened int
}

func (w *watcher) has(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids[id]
}

func (w *watcher) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.faults) < 10 {
		w.faults = append(w.faults, fmt.Sprintf(format, args...))
	}
}

func (w *watcher) event(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids[id] = true
}

// watch keeps a stream open until the watcher is stopped. It returns when the stream is open for the first time. once
// opens the stream at a position, reads it to its end, and returns the next position.
func watch(t *testing.T, name string, once func(ctx context.Context, w *watcher, position string, began func()) string) *watcher {
	t.Helper()
	w := &watcher{name: name, ids: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	done, begun := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(begun) })
	began := func() {
		w.mu.Lock()
		w.opened++
		w.mu.Unlock()
		first()
	}
	go func() {
		defer close(done)
		for position := ""; ctx.Err() == nil; {
			if position = once(ctx, w, position, began); ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	w.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(w.stop)
	select {
	case <-begun:
	case <-time.After(harness.Patience):
		w.stop()
		t.Fatalf("%s did not begin: %v", name, w.faults)
	}
	return w
}

// watchEvents reads an events/stream with a wildcard.
func watchEvents(c *harness.Client) func(context.Context, *watcher, string, func()) string {
	return func(ctx context.Context, w *watcher, cursor string, began func()) string {
		params := object{"name": "github.push", "arguments": object{}, "cursor": nil}
		if cursor != "" {
			params["cursor"] = cursor
		}
		s, err := c.TryStream(ctx, 1, "events/stream", params)
		if err != nil {
			if cursor == "" && ctx.Err() == nil {
				w.fault("not opened: %v", err)
			}
			return cursor
		}
		defer s.Close()
		began()
		for n := 0; s.Await(ctx, n+1); n++ {
			m := s.Messages()[n]
			var p struct {
				EventID, Cursor string
				Truncated       bool
			}
			if err := json.Unmarshal(m.Params, &p); m.Params != nil && err != nil {
				w.fault("%v: %s", err, m.Raw)
			}
			if p.Truncated {
				w.fault("EVX-07 a cursor that is followed does not reach back to the events since")
			}
			if p.EventID != "" {
				w.event(p.EventID)
			}
			if p.Cursor != "" {
				cursor = p.Cursor
			}
		}
		return cursor
	}
}

// watchSession subscribes a session to URIs and reads its GET stream.
func watchSession(t *testing.T, c *harness.Client, uris ...string) func(context.Context, *watcher, string, func()) string {
	t.Helper()
	for _, uri := range uris {
		c.Call(t, "resources/subscribe", object{"uri": uri}, nil)
	}
	return func(ctx context.Context, w *watcher, last string, began func()) string {
		s, err := c.TryOpen(ctx, last)
		if err != nil {
			if last == "" && ctx.Err() == nil {
				w.fault("not opened: %v", err)
			}
			return last
		}
		defer s.Close()
		if s.AwaitPrime(ctx) {
			began()
		}
		for n := 0; s.Await(ctx, n+1); n++ {
			m := s.Messages()[n]
			last = m.EventID
			if u, err := m.Update(); err == nil && u.EventID != "" {
				w.event(u.EventID)
			} else if err == nil && u.Meta[harness.Prefix+"truncated"] == true {
				w.fault("SES-03 a stream that is continued does not reach back to the events since")
			}
		}
		if primes := s.Primes(); len(primes) > 1 { // the server ended the stream regularly
			last = primes[len(primes)-1]
		}
		return last
	}
}
