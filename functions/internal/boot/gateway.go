package boot

import (
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/publish"
)

// Gateway reaches the backends. Key authenticates what clients carry between requests; nil where there are none.
func (p *Process) Gateway(key []byte) (*gateway.Gateway, error) {
	return p.Core.Gateway(gateway.Options{Secrets: p.Secrets.Secret, Key: key})
}

// Conversation tells what is said in conversations, as the stored configuration wants it.
// Events of it go by the inbox: only publish may send to the events queue.
func (p *Process) Conversation(key []byte, backends *gateway.Gateway) (*conversation.Service, error) {
	return p.Core.Conversation(conversation.Options{
		Secrets: p.Secrets.Secret, Key: key, Backends: backends, Publisher: publish.ByInbox{Queue: p.Queues},
	})
}
