package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// scripted answers requests by their method until it is silent. A request for another method blocks until its context ends.
type scripted struct {
	answers map[string]string
	silent  bool
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	var message struct{ Method string }
	_ = json.NewDecoder(r.Body).Decode(&message)
	result, ok := s.answers[message.Method]
	if s.silent || !ok {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	header := http.Header{"Content-Type": {"application/json"}, "Mcp-Session-Id": {"s"}}
	body := io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`))
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: body, Request: r}, nil
}

// dial returns a client of a scripted server.
func dial(t *testing.T, s *scripted, revision string) *Client {
	t.Helper()
	c := expect.Value(Connect(t.Context(), "http://server.test", Options{
		Revision: revision, HTTP: &http.Client{Transport: s}, Webhooks: &Handler{URL: "http://receiver.test"},
	}))(t)
	return c
}

func ignore(context.Context, Event) error { return nil }

func TestCloseEndsInTimeAlthoughTheServerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answers: map[string]string{
			spec.MethodInitialize: `{"protocolVersion":"2025-11-25"}`, spec.NoteInitialized: `{}`,
			spec.MethodRegister: `{"subscription":{"uri":"subscription://s","webhookSecret":{"type":"none"}}}`,
		}}
		c := dial(t, s, "2025-11-25")
		sub := expect.Value(c.Subscribe(t.Context(), SubscribeOptions{URIs: []string{"event://a/b"}, Mode: ModeWebhook, Event: ignore}))(t)
		if sub.ID() != "subscription://s" || sub.Secret() != "" || sub.Mode() != ModeWebhook {
			t.Errorf("got the subscription %q by %s with the secret %q, want subscription://s by webhook without a secret", sub.ID(), sub.Mode(), sub.Secret())
		}
		s.silent = true
		began := time.Now()
		if err := sub.Close(); err != nil || time.Since(began) != drainTime {
			t.Errorf("Subscription.Close: got %v after %v, want no error after %v", err, time.Since(began), drainTime)
		}
		began = time.Now()
		expect.Error(t, "the error of Close", c.Close())
		expect.Equal(t, "the time of Close", time.Since(began), drainTime)
	})
}

func TestSubscribeReturnsTheErrorOfAContextThatEndsBeforeTheServerAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, &scripted{}, "2026-07-28")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		sub, err := c.Subscribe(ctx, SubscribeOptions{Name: "a", Mode: ModePoll, Event: ignore})
		if sub != nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "call the server") {
			t.Errorf("got %v, %v, want context.DeadlineExceeded and the reason", sub, err)
		}
	})
}

// hungStore is a store that never saves a cursor.
type hungStore struct{ memory }

func (*hungStore) Save(ctx context.Context, _, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAStoreThatHangsEndsTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, &scripted{answers: map[string]string{spec.MethodEventsPoll: pageOfOne}}, "2026-07-28")
		began := time.Now()
		sub := expect.Value(c.Subscribe(t.Context(), SubscribeOptions{Name: "a", Mode: ModePoll, Event: ignore, Store: &hungStore{}}))(t)
		<-sub.Done()
		expect.Is(t, "the error", sub.Err(), ErrUnavailable)
		expect.Equal(t, "the time", time.Since(began), saveTimeout)
	})
}

// Close waits for the save that is running, and for the events that are still being handled, which also save their cursors.
func TestAStoreThatHangsDelaysTheEndOnlyOnce(t *testing.T) {
	for name, tc := range map[string]struct{ ends, want time.Duration }{
		"after the end":    {0, drainTime},
		"before the end":   {10 * time.Second, 10*time.Second + drainTime},
		"while it runs on": {time.Hour, saveTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, &scripted{}, "2026-07-28")
				f := expect.Value(newFlow(t.Context(), c, SubscribeOptions{Name: "a", Store: &hungStore{}}))(t)
				time.AfterFunc(tc.ends, func() { f.fail(context.Canceled) })
				synctest.Wait()
				began := time.Now()
				for _, cursor := range []string{"c1", "c2", "c3"} {
					f.saveSafe(cursor)
				}
				expect.Equal(t, "the time", time.Since(began), tc.want)
				expect.Equal(t, "the saved cursor", f.cursors.savedCursor(), "")
			})
		})
	}
}

// pageOfOne is a page of events/poll with one event.
const pageOfOne = `{"events":[{"eventId":"1","name":"a","data":{}}],"cursor":"c","nextPollMs":3600000}`

func TestCloseWaitsForTheFunctionForEventsAndSavesTheCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, &scripted{answers: map[string]string{spec.MethodEventsPoll: pageOfOne}}, "2026-07-28")
		handled := false
		sub := expect.Value(c.Subscribe(t.Context(), SubscribeOptions{Name: "a", Mode: ModePoll, Event: func(context.Context, Event) error {
			time.Sleep(time.Hour) // of the bubble's clock
			handled = true
			return nil
		}}))(t)
		synctest.Wait()
		expect.OK(t, sub.Err(), "Err of a running subscription")
		expect.OK(t, sub.Close())
		expect.True(t, "the event was handled", handled)
		expect.Equal(t, "the saved cursor", expect.Value(c.memory.Load(t.Context(), sub.flow.cursors.key))(t), "c")
		<-sub.Done()
	})
}
