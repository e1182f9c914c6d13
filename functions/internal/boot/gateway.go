package boot

import (
	"context"

	"mcpevents/shared/config"
	"mcpevents/shared/gateway"
	"mcpevents/shared/wiring"
)

// Gateway reaches the backends of the stored configuration. Key authenticates what
// clients carry between requests; nil where there are none.
func (p *Process) Gateway(key []byte) (*gateway.Gateway, error) {
	return wiring.Gateway(gateway.Options{
		Source: func(ctx context.Context) ([]config.Backend, error) {
			c, err := p.Config.Config(ctx)
			if err != nil {
				return nil, err
			}
			return c.Backends, nil
		},
		DB: p.DB, Key: key, Log: p.Log,
	}, Version)
}
