package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// Webhook is a webhook subscription of either kind.
type Webhook interface {
	// Begin makes it, and gives the receiver its secret.
	Begin(ctx context.Context, r *Receiver) error
	// Refresh renews it before RefreshAt, from a cursor should it have lapsed.
	Refresh(ctx context.Context, cursor string) error
	// RefreshAt is zero for one that does not lapse.
	RefreshAt() time.Time
	End(ctx context.Context) error
	// ID names it for people; empty before Begin.
	ID() string
	Secret() string
}

// Registration is a subscription by resources/subscriptions/register (SEP-1803).
type Registration struct {
	Client *Client
	URIs   []string
	Target string // the receiver's URL, as the server reaches it

	uri string // subscription://…
	key string
}

func (s *Registration) Begin(ctx context.Context, r *Receiver) error {
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
	err := s.Client.persist(ctx, func() error {
		return s.Client.Call(ctx, mcpspec.MethodRegister, map[string]any{
			"uris": s.URIs, "targetUri": s.Target, "_meta": map[string]any{metaIdempotency: idempotency},
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
		return fault.New(fault.Unavailable, "the server's answer holds no secret")
	}
	r.secret(s.key)
	return nil
}

func (s *Registration) End(ctx context.Context) error {
	if s.uri == "" {
		return nil
	}
	return s.Client.Call(ctx, mcpspec.MethodDeregister, map[string]any{"uri": s.uri}, nil)
}

func (s *Registration) Refresh(context.Context, string) error { return nil }
func (s *Registration) RefreshAt() time.Time                  { return time.Time{} }
func (s *Registration) ID() string                            { return s.uri }
func (s *Registration) Secret() string                        { return s.key }

// EventsSubscription is a subscription by events/subscribe (SEP-3415).
type EventsSubscription struct {
	Client    *Client
	Name      string          // of the event type
	Arguments json.RawMessage // an object
	Target    string          // the receiver's URL, as the server reaches it
	TTL       time.Duration   // what to ask for; 0 leaves it to the server
	Cursor    string          // where it goes on; empty is from now on
	Key       string          // the secret, of [NewSecret]

	mu      sync.Mutex
	subID   string
	granted time.Time // when it was granted
	until   time.Time // zero is for ever
}

// NewSecret makes a secret for an [EventsSubscription].
func NewSecret() string {
	key, _ := webhook.NewSecret()
	return key
}

func (s *EventsSubscription) Begin(ctx context.Context, r *Receiver) error {
	r.secret(s.Key) // the challenge comes before the answer
	return s.Client.persist(ctx, func() error { return s.subscribe(ctx, s.Cursor) })
}

func (s *EventsSubscription) subscribe(ctx context.Context, cursor string) error {
	params := map[string]any{
		"name": s.Name, "arguments": s.Arguments,
		"delivery": map[string]any{"mode": "webhook", "url": s.Target, "secret": s.Key},
	}
	if cursor != "" {
		params["cursor"] = cursor
	}
	if s.TTL > 0 {
		params["ttlMs"] = s.TTL.Milliseconds()
	}
	var result struct {
		ID            string     `json:"id"`
		RefreshBefore *time.Time `json:"refreshBefore"`
	}
	began := time.Now()
	if err := s.Client.Call(ctx, mcpspec.MethodEventsSub, params, &result); err != nil {
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

// Refresh goes on from the cursor only where the subscription has lapsed: a
// living one has its own position.
func (s *EventsSubscription) Refresh(ctx context.Context, cursor string) error {
	s.mu.Lock()
	alive := s.until.IsZero() || time.Now().Before(s.until)
	s.mu.Unlock()
	if alive {
		cursor = ""
	}
	return s.subscribe(ctx, cursor)
}

// RefreshAt is after two thirds of the lifetime.
func (s *EventsSubscription) RefreshAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until.IsZero() {
		return time.Time{}
	}
	return s.granted.Add(s.until.Sub(s.granted) * 2 / 3)
}

func (s *EventsSubscription) End(ctx context.Context) error {
	if s.ID() == "" {
		return nil
	}
	return s.Client.Call(ctx, mcpspec.MethodEventsUnsub, map[string]any{
		"name": s.Name, "arguments": s.Arguments, "delivery": map[string]any{"mode": "webhook", "url": s.Target},
	}, nil)
}

func (s *EventsSubscription) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subID
}

func (s *EventsSubscription) Secret() string { return s.Key }

// maxTries is how often a registration is tried that the server does not answer.
const maxTries = 5

// persist repeats what may be repeated. When the time for it ends, what failed
// last is the error.
func (c *Client) persist(ctx context.Context, do func() error) error {
	var last error
	for try := 0; ; try++ {
		err := do()
		if last != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			return last
		}
		if err == nil || !Again(err) || try+1 >= maxTries {
			return err
		}
		last = err
		if c.Log != nil {
			c.Log.Warn("request failed, retrying", "try", try+2, "of", maxTries, "error", err)
		}
		if stop := Pause(ctx, try, 0); errors.Is(stop, context.DeadlineExceeded) {
			return last
		} else if stop != nil {
			return stop
		}
	}
}
