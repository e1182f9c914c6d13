package publish

import (
	"context"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/queue"
)

// OnBehalf publishes what the server itself makes of something that a principal did. The
// principal needs no scope for it, but its rate counts.
type OnBehalf struct{ Service *Service }

// Publish accepts one event, as [Service.Accept] does.
func (o OnBehalf) Publish(ctx context.Context, p auth.Principal, in Input) error {
	p.Scopes = append(slices.Clone(p.Scopes), auth.ScopePublish)
	_, err := o.Service.Accept(ctx, p, []Input{in})
	return err
}

// ByInbox does the same where only the inbox queue can be reached: [Inbox] checks the
// event and publishes it.
type ByInbox struct{ Queue queue.Sender }

// Publish sends one event to the inbox.
func (b ByInbox) Publish(ctx context.Context, p auth.Principal, in Input) error {
	body := jsonrpc.AppendString([]byte(`{"workspace":`), p.Workspace)
	body = jsonrpc.AppendString(append(body, `,"uri":`...), in.URI)
	body = jsonrpc.AppendString(append(body, `,"id":`...), in.ID)
	body = append(append(append(body, `,"data":`...), in.Data...), '}')
	if body = escapeNoncharacters(body); len(body) > queue.MaxBody {
		return fault.New(fault.TooLarge, "the event is larger than %d bytes in the queue", queue.MaxBody)
	}
	return fault.Wrap(fault.Unavailable, b.Queue.Send(ctx, queue.Inbox, queue.Outgoing{Body: body}), "send to the inbox")
}
