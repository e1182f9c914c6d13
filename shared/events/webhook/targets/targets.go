// Package targets adapts shared/events/webhook to the interface [subscription.Targets].
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

// Sealer seals secrets. It needs a context because the keyset may have to be read from a store.
type Sealer interface {
	Seal(ctx context.Context, secret []byte, b webhook.Binding) ([]byte, error)
}

// Check returns an error for a URL to which webhooks can never be sent.
func (t Targets) Check(url string) error { return t.Sender.Check(url) }

// Verify verifies an endpoint like [webhook.Sender.Verify]. The challenge is signed unless key is nil.
func (t Targets) Verify(ctx context.Context, url, subscriptionID string, key []byte) error {
	if key == nil {
		return t.Sender.Verify(ctx, url, subscriptionID, nil) // unsigned, because anyone can sign with an empty key
	}
	return t.Sender.Verify(ctx, url, subscriptionID, [][]byte{key})
}

// ParseSecret decodes a client's whsec_ secret.
func (t Targets) ParseSecret(secret string) ([]byte, error) { return webhook.ParseSecret(secret) }

// NewSecret returns a new secret of the given type: the text for the client, and the key that the text encodes. For subscription.None,
// both are empty.
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
