package client

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Registration is a subscription by resources/subscriptions/register (SEP-1803).
type Registration struct {
	Client *Client
	URIs   []string
	Target string // the receiver's URL, as the server reaches it

	uri string // subscription://…
	key string
}

// Begin registers, and gives the receiver its secret.
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
		return s.Client.Call(ctx, spec.MethodRegister, map[string]any{
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
		r.secret("")
		return nil
	}
	if s.key == "" {
		return fault.New(fault.Unavailable, "the server's answer holds no secret")
	}
	r.secret(s.key)
	return nil
}

// End deregisters.
func (s *Registration) End(ctx context.Context) error {
	if s.uri == "" {
		return nil
	}
	return s.Client.Call(ctx, spec.MethodDeregister, map[string]any{"uri": s.uri}, nil)
}

// ID is the subscription's URI; empty before Begin.
func (s *Registration) ID() string { return s.uri }

// Secret is what webhooks are signed with, or empty if they are not.
func (s *Registration) Secret() string { return s.key }

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
		c.log().Warn("request failed, retrying", "try", try+2, "of", maxTries, "error", err)
		_ = Pause(ctx, try, 0) // or until ctx ends, and do with it
	}
}
