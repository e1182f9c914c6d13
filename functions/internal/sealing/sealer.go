package sealing

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Sealer seals secrets with the stored public keyset. It reads the keyset again when its copy is older than
// [ReloadAfter], so that a long-running process follows a rotation. It is safe for concurrent use.
type Sealer struct {
	DB store.DB

	mu     sync.Mutex
	sealer *webhook.Sealer
	read   time.Time
}

// Seal implements targets.Sealer.
func (s *Sealer) Seal(ctx context.Context, secret []byte, b webhook.Binding) ([]byte, error) {
	sealer, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	return sealer.Seal(ctx, secret, b)
}

func (s *Sealer) current(ctx context.Context) (*webhook.Sealer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealer != nil && time.Since(s.read) < ReloadAfter {
		return s.sealer, nil
	}
	began := time.Now()
	sealer, err := Public(ctx, s.DB)
	if err != nil {
		return nil, err
	}
	s.sealer, s.read = sealer, began
	return sealer, nil
}
