package streams

import (
	"context"
	"slices"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// watchTasks watches the tasks of a listen until the stream ends. It returns the ids of the tasks of which the client will be notified.
func (w *Writer) watchTasks(ctx context.Context, c *method.Call, ids []string) (watched []string, err error) {
	if len(ids) == 0 || !w.Streams.Backends.Any(ctx) {
		return nil, nil
	}
	if most := w.Streams.MaxURIs; len(ids) > most {
		return nil, session.LimitReached("streamURIs", most)
	}
	ctx, cancel := context.WithCancel(ctx)
	watched, w.tasks, err = w.Streams.Backends.WatchTasks(ctx, c.Client(), ids)
	states := w.tasks
	w.ends = append(w.ends, func() {
		cancel()
		for states != nil {
			if _, open := <-states; !open {
				return
			}
		}
	})
	return watched, err
}

// sendTask sends a state of a task, if the caller may still see its backend. If t is nil, no further states will come.
func (w *Writer) sendTask(ctx context.Context, t *api.Task) error {
	if t == nil {
		w.tasks = nil
		return nil
	}
	if w.CheckDue() { // while states arrive, there are no heartbeats that would check it
		if err := w.CheckCredentials(ctx); err != nil {
			return err
		}
	}
	if !slices.Contains(w.Streams.Backends.Backends(ctx, w.Caller.Principal), t.Backend) {
		return nil
	}
	members := method.WithoutBraces(jsonrpc.Without(t.Params, func(name string) bool { return name == "_meta" }))
	return w.Send(spec.NoteTasks, text(members), text(backendMeta(jsonrpc.Member(t.Params, "_meta"))), w.ResumeAt())
}
