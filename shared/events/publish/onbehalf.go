package publish

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// OnBehalf publishes events that the server itself creates because of a principal's action. The principal does not
// need the scope to publish, but the events count against its quota.
type OnBehalf struct{ Service *Service }

// Publish accepts one event, as [Service.Accept] does.
func (o OnBehalf) Publish(ctx context.Context, p auth.Principal, in Input) error {
	p.Scopes = append(slices.Clone(p.Scopes), auth.ScopePublish)
	_, err := o.Service.Accept(ctx, p, []Input{in})
	return err
}

// ByInbox publishes in the same way from a function that can reach only the inbox queue. [Inbox] then checks and
// publishes the event.
type ByInbox struct{ Queue queue.Sender }

// Publish sends one event to the inbox.
func (b ByInbox) Publish(ctx context.Context, p auth.Principal, in Input) error {
	out, err := InboxMessage(p.Workspace, in)
	if err != nil {
		return err
	}
	return fault.Wrap(fault.Unavailable, b.Queue.Send(ctx, queue.Inbox, out), "send to the inbox")
}

// InboxMessage returns a message that makes [Inbox] publish an event in a workspace. It has no trace context.
func InboxMessage(workspace string, in Input) (queue.Outgoing, error) {
	body := jsonrpc.AppendString([]byte(`{"workspace":`), workspace)
	body = jsonrpc.AppendString(append(body, `,"uri":`...), in.URI)
	body = jsonrpc.AppendString(append(body, `,"id":`...), in.ID)
	if !in.Time.IsZero() {
		body = jsonrpc.AppendString(append(body, `,"time":`...), in.Time.Format(time.RFC3339Nano))
	}
	if in.Resend != "" {
		body = jsonrpc.AppendString(append(body, `,"resend":`...), in.Resend)
	}
	body = append(append(append(body, `,"data":`...), in.Data...), '}')
	if body = queue.Escape(body); len(body) > queue.MaxBody {
		return queue.Outgoing{}, fault.New(fault.TooLarge, "the event is larger than %d bytes in the queue", queue.MaxBody)
	}
	return queue.Outgoing{Body: body}, nil
}
