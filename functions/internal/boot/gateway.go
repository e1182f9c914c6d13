package boot

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/publish"
)

// Gateway reaches the backends of the stored configuration. Key authenticates what
// clients carry between requests; nil where there are none.
func (p *Process) Gateway(key []byte) (*gateway.Gateway, error) {
	return p.Core.Gateway(gateway.Options{
		Source: func(ctx context.Context) ([]config.Backend, error) {
			c, err := p.Config.Config(ctx)
			if err != nil {
				return nil, err
			}
			return c.Backends, nil
		},
		Secrets: p.Secrets.Secret, Key: key,
	})
}

// Conversation tells what is said in conversations, as the stored configuration wants it.
// Events of it go by the inbox: only publish may send to the events queue.
func (p *Process) Conversation(key []byte, backends *gateway.Gateway) (*conversation.Service, error) {
	return p.Core.Conversation(conversation.Options{
		Source: p.Config, Secrets: p.Secrets.Secret, Key: key, Backends: backends, Publisher: publish.ByInbox{Queue: p.Queues},
	})
}
