package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// slowStore is a store whose saves wait until it is released. It records the cursors.
type slowStore struct {
	memory
	began   chan string
	release chan struct{}

	mu    sync.Mutex
	saved []string
}

func newSlowStore() *slowStore {
	return &slowStore{began: make(chan string, 100), release: make(chan struct{})}
}

func (s *slowStore) Save(_ context.Context, _, cursor string) error {
	s.began <- cursor
	<-s.release
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = append(s.saved, cursor)
	return nil
}

func TestASlowSaveDoesNotStopTheSubscription(t *testing.T) {
	const concurrency = 10
	store, handled := newSlowStore(), make(chan string, 100)
	c := dial(t, &scripted{}, "2026-07-28")
	f := expect.Value(newFlow(t.Context(), c, SubscribeOptions{
		Name: "a", Store: store, Concurrency: concurrency, Event: func(_ context.Context, e Event) error {
			handled <- e.ID
			return nil
		},
	}))(t)
	reading := make(chan error, 1)
	event := func(n int) Event { return Event{ID: fmt.Sprint(n), Cursor: fmt.Sprint("c", n)} }
	expect.OK(t, f.startHandling(event(1)))
	expect.Equal(t, "the first save", expect.Receive(t, "the save", store.began), "c1")
	go func() {
		for n := 2; n <= concurrency; n++ {
			if err := f.startHandling(event(n)); err != nil {
				reading <- err
			}
		}
		f.advance("heartbeat")
		reading <- nil
	}()
	t.Run("RCH-01 further events are read and handled", func(t *testing.T) {
		for range concurrency {
			expect.Receive(t, "the event", handled)
		}
		expect.OK(t, expect.Receive(t, "the end", reading))
	})
	t.Run("RCH-01 the newest cursor is saved when the subscription has ended", func(t *testing.T) {
		close(store.release)
		f.finish(context.Canceled)
		if got := store.saved; got[0] != "c1" || got[len(got)-1] != "heartbeat" {
			t.Errorf("the saved cursors are %q, want c1 first and heartbeat last", got)
		}
	})
}

func TestAWebhookIsAnsweredAfterItsCursorIsSaved(t *testing.T) {
	store, handled := newSlowStore(), make(chan string, 100)
	c := dial(t, &scripted{}, "2026-07-28")
	k := &hook{flow: expect.Value(newFlow(t.Context(), c, SubscribeOptions{
		Name: "a", Store: store, Concurrency: 10, Event: func(_ context.Context, e Event) error {
			handled <- e.ID
			return nil
		},
	}))(t), resubscribe: make(chan struct{}, 1)}
	answers := make(chan int, 10)
	send := func(id, cursor string) {
		go func() {
			status, _ := k.receive(httptest.NewRequest(http.MethodPost, "/", nil), &message{occurrence: occurrence{EventID: id, Cursor: cursor}})
			answers <- status
		}()
		expect.Equal(t, "the handled event", expect.Receive(t, "the event", handled), id)
	}
	send("1", "c1")
	expect.Equal(t, "the first save", expect.Receive(t, "the save", store.began), "c1")
	send("2", "c2")
	send("3", "c3")
	t.Run("RCH-01 all webhooks wait for a slow save", func(t *testing.T) {
		select {
		case status := <-answers:
			t.Errorf("a webhook was answered with %d", status)
		case <-time.After(50 * time.Millisecond):
		}
	})
	t.Run("RCH-01 they are answered when it has ended", func(t *testing.T) {
		close(store.release)
		for range 3 {
			expect.Equal(t, "the status", expect.Receive(t, "the answer", answers), http.StatusNoContent)
		}
		if !slices.Contains([]string{"c2", "c3"}, k.cursors.savedCursor()) {
			t.Errorf("the saved cursor is %q", k.cursors.savedCursor())
		}
	})
	t.Run("EVX-13 a gap is saved after a slow save, and the cursor stays there", func(t *testing.T) {
		store.release = make(chan struct{})
		for len(store.began) > 0 {
			<-store.began
		}
		send("4", "c4")
		expect.Equal(t, "the save", expect.Receive(t, "the save", store.began), "c4")
		send("5", "c5")
		go func() { _ = k.resumeAt(Gap{Cursor: "gap"}); answers <- 0 }()
		expect.Equal(t, "the webhook whose save the gap replaces", expect.Receive(t, "the answer", answers), http.StatusNoContent)
		select {
		case <-k.resubscribe:
			t.Error("it subscribes again before the cursor of the gap is saved")
		case <-time.After(50 * time.Millisecond):
		}
		close(store.release)
		expect.Receive(t, "the answer", answers)
		expect.Receive(t, "the answer", answers)
		send("6", "c6")
		expect.Equal(t, "the status", expect.Receive(t, "the answer", answers), http.StatusNoContent)
		expect.Equal(t, "the saved cursor", k.cursors.savedCursor(), "gap")
	})
	k.finish(context.Canceled)
}
