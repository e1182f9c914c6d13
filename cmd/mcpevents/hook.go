package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// hook is a webhook subscription of either kind.
type hook interface {
	// begin makes it, and gives the receiver its secret.
	begin(ctx context.Context, r *receiver) error
	// refresh renews it before refreshAt, from a cursor should it have lapsed.
	refresh(ctx context.Context, cursor string) error
	// refreshAt is zero for one that does not lapse.
	refreshAt() time.Time
	end(ctx context.Context) error
	// id names it for people; empty before begin.
	id() string
	secret() string
}

// registration is a subscription by resources/subscriptions/register (SEP-1803).
type registration struct {
	client *mcpClient
	uris   []string
	target string

	uri string // subscription://…
	key string
}

func (s *registration) begin(ctx context.Context, r *receiver) error {
	// One key for all tries: a registration whose answer was lost is found again.
	idempotency := rand.Text()
	var result struct {
		Subscription struct {
			URI    string `json:"uri"`
			Secret struct {
				Type  string `json:"type"`
				Key   string `json:"key"`
				Value string `json:"value"`
			} `json:"webhookSecret"`
		} `json:"subscription"`
	}
	err := persist(ctx, func() error {
		return s.client.call(ctx, "resources/subscriptions/register", map[string]any{
			"uris": s.uris, "targetUri": s.target, "_meta": map[string]any{mcp.MetaIdempotency: idempotency},
		}, &result)
	})
	if err != nil {
		return err
	}
	s.uri, s.key = result.Subscription.URI, result.Subscription.Secret.Key
	switch secret := result.Subscription.Secret; secret.Type {
	case "raw":
		s.key = secret.Value
	case "none":
		r.unsigned()
		return nil
	}
	if s.key == "" {
		return fault.New(fault.Unavailable, "the server's response has no secret")
	}
	r.secret(s.key)
	return nil
}

func (s *registration) end(ctx context.Context) error {
	if s.uri == "" {
		return nil
	}
	return s.client.call(ctx, "resources/subscriptions/deregister", map[string]any{"uri": s.uri}, nil)
}

func (s *registration) refresh(context.Context, string) error { return nil }
func (s *registration) refreshAt() time.Time                  { return time.Time{} }
func (s *registration) id() string                            { return s.uri }
func (s *registration) secret() string                        { return s.key }

// eventsSubscription is a subscription by events/subscribe (SEP-3415).
type eventsSubscription struct {
	client    *mcpClient
	name      string
	arguments json.RawMessage
	target    string
	ttl       time.Duration
	key       string
	cursor    string

	mu      sync.Mutex
	subID   string
	granted time.Time // when it was granted
	until   time.Time // zero is for ever
}

func newEventsSubscription(client *mcpClient, name string, args map[string]string, target string, ttl time.Duration, cursor string) (*eventsSubscription, error) {
	encoded, err := arguments(args)
	if err != nil {
		return nil, err
	}
	key, _ := webhook.NewSecret()
	return &eventsSubscription{
		client: client, name: name, arguments: encoded, target: target, ttl: ttl, key: key, cursor: cursor,
	}, nil
}

func (s *eventsSubscription) begin(ctx context.Context, r *receiver) error {
	r.secret(s.key) // the challenge comes before the answer
	return persist(ctx, func() error { return s.subscribe(ctx, s.cursor) })
}

func (s *eventsSubscription) subscribe(ctx context.Context, cursor string) error {
	params := map[string]any{
		"name": s.name, "arguments": s.arguments,
		"delivery": map[string]any{"mode": "webhook", "url": s.target, "secret": s.key},
	}
	if cursor != "" {
		params["cursor"] = cursor
	}
	if s.ttl > 0 {
		params["ttlMs"] = s.ttl.Milliseconds()
	}
	var result struct {
		ID            string     `json:"id"`
		RefreshBefore *time.Time `json:"refreshBefore"`
	}
	began := time.Now()
	if err := s.client.call(ctx, "events/subscribe", params, &result); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subID, s.granted, s.until = result.ID, began, time.Time{}
	if result.RefreshBefore != nil {
		s.until = *result.RefreshBefore
	}
	return nil
}

// refresh goes on from the cursor only where the subscription has lapsed: a
// living one has its own position.
func (s *eventsSubscription) refresh(ctx context.Context, cursor string) error {
	s.mu.Lock()
	alive := s.until.IsZero() || time.Now().Before(s.until)
	s.mu.Unlock()
	if alive {
		cursor = ""
	}
	return s.subscribe(ctx, cursor)
}

// refreshAt is after two thirds of the lifetime.
func (s *eventsSubscription) refreshAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until.IsZero() {
		return time.Time{}
	}
	return s.granted.Add(s.until.Sub(s.granted) * 2 / 3)
}

func (s *eventsSubscription) end(ctx context.Context) error {
	if s.id() == "" {
		return nil
	}
	return s.client.call(ctx, "events/unsubscribe", map[string]any{
		"name": s.name, "arguments": s.arguments, "delivery": map[string]any{"mode": "webhook", "url": s.target},
	}, nil)
}

func (s *eventsSubscription) id() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subID
}

func (s *eventsSubscription) secret() string { return s.key }

// maxTries is how often a registration is tried that the server does not answer.
const maxTries = 5

// persist repeats what may be repeated. When the time for it ends, what failed
// last is told.
func persist(ctx context.Context, do func() error) error {
	var last error
	for try := 0; ; try++ {
		err := do()
		if last != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			return last
		}
		if err == nil || !again(err) || try+1 >= maxTries {
			return err
		}
		last = err
		if stop := pause(ctx, try, 0); errors.Is(stop, context.DeadlineExceeded) {
			return last
		} else if stop != nil {
			return stop
		}
	}
}
