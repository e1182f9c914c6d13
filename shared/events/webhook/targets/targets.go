// Package targets fits shared/events/webhook to what shared/events/subscription asks of the
// outside world: checking, verifying and sealing. It holds no rules of its own.
package targets

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
)

// Targets implements [subscription.Targets].
type Targets struct {
	Sender *webhook.Sender
	Sealer Sealer
}

var _ subscription.Targets = Targets{}

// Sealer seals secrets. It has a context because the keyset can be in a store.
type Sealer interface {
	Seal(ctx context.Context, secret []byte, b webhook.Binding) ([]byte, error)
}

// Check refuses a URL that could never be delivered to.
func (t Targets) Check(url string) error { return t.Sender.Check(url) }

// Verify sends a challenge, which is signed unless key is nil.
func (t Targets) Verify(ctx context.Context, url, subscriptionID string, key []byte) error {
	if key == nil {
		return t.Sender.Verify(ctx, url, subscriptionID, nil) // anybody could sign with an empty key
	}
	return t.Sender.Verify(ctx, url, subscriptionID, [][]byte{key})
}

// ParseSecret decodes a client's whsec_ secret.
func (t Targets) ParseSecret(secret string) ([]byte, error) { return webhook.ParseSecret(secret) }

// NewSecret makes a secret of the type; none has neither text nor key.
func (t Targets) NewSecret(kind subscription.SecretType) (secret string, key []byte) {
	switch kind {
	case subscription.None:
		return "", nil
	case subscription.Raw:
		return webhook.NewRawSecret()
	}
	return webhook.NewSecret()
}

// Seal encrypts a key for storage.
func (t Targets) Seal(ctx context.Context, key []byte, b subscription.Binding) ([]byte, error) {
	return t.Sealer.Seal(ctx, key, webhook.Binding(b))
}
