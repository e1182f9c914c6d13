package streams

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// backendTopics are those of all backends whose notifications a stream may have.
func (w *Writer) backendTopics(ctx context.Context) (topics []string) {
	if !w.Streams.Backends.Any(ctx) {
		return nil
	}
	for _, name := range w.Streams.Backends.Backends(ctx, w.Caller.Principal) {
		topics = append(topics, stream.TopicBackend(name))
	}
	return topics
}

var topicBackends = stream.TopicBackend("")

// sendOtherBackends follows the backends that there are now, and notifies that their lists are
// others.
func (w *Writer) sendOtherBackends(ctx context.Context, cursor string) error {
	now := w.Streams.Feeds.Log.Position()
	for _, topic := range w.backendTopics(ctx) {
		w.Feed.Follow(topic, now)
	}
	return w.sendChanges(cursor, spec.NoteToolsChange, spec.NotePromptsChange, spec.NoteResourcesChange)
}

// sendBackend sends what a backend notified of, if the stream asked for it and its principal may
// still see the backend.
func (w *Writer) sendBackend(ctx context.Context, d stream.Delivery) error {
	var n api.Notice
	if json.Unmarshal(d.Notice, &n) != nil {
		return nil // of another version
	}
	backends := w.Streams.Backends
	if !backends.Any(ctx) || !slices.Contains(backends.Backends(ctx, w.Caller.Principal), strings.TrimPrefix(d.Topic, topicBackends)) {
		return nil
	}
	if n.Method != spec.NoteUpdated {
		return w.sendChanges(d.Cursor, n.Method)
	}
	uri, ok := jsonrpc.String(jsonrpc.Member(n.Params, "uri"))
	if !ok || !w.subscribedAt(d.Topic, uri) {
		return nil
	}
	// Only what the schema knows: in any other member a client could see one of ours, for example an event's payload.
	members := func(b []byte) []byte { return jsonrpc.AppendString(append(b, `"uri":`...), uri) }
	return w.Send(spec.NoteUpdated, members, text(backendMeta(jsonrpc.Member(n.Params, "_meta"))), d.Cursor)
}

// subscribedAt reports whether the stream is subscribed at the backend with that topic to the resource or to one above it.
func (w *Writer) subscribedAt(topic, uri string) bool {
	for _, t := range w.targets {
		if t.Backend != "" && stream.TopicBackend(t.Backend) == topic && api.Covers(t.URI, uri) {
			return true
		}
	}
	return false
}

// backendMeta returns the members of a backend's _meta, without braces, that may reach a client. It drops ours and the protocol's,
// because the gateway speaks for both: in 2026-07-28 the only one of the protocol on a notification is the id of the client's own
// listen, and in 2025-11-25 the id of a task.
func backendMeta(meta json.RawMessage) (members []byte) {
	for name, value := range jsonrpc.Members(meta) {
		if reservedMeta(string(name)) {
			continue
		}
		if len(members) > 0 {
			members = append(members, ',')
		}
		members = append(append(jsonrpc.AppendString(members, string(name)), ':'), value...)
	}
	return members
}

// reservedMeta reports whether a name of _meta has our prefix or one that MCP reserves. MCP reserves a prefix whose second label is
// mcp or modelcontextprotocol, for example "io.modelcontextprotocol/" and, in 2025-06-18, one that has either before its last label,
// for example "mcp.dev/". Case does not matter, because not all readers of JSON mind it.
func reservedMeta(name string) bool {
	prefix, _, ok := strings.Cut(strings.ToLower(name), "/")
	if !ok {
		return false
	}
	if prefix+"/" == spec.OwnPrefix {
		return true
	}
	labels := strings.Split(prefix, ".")
	for i, label := range labels {
		if (label == "mcp" || label == "modelcontextprotocol") && (i == 1 || i < len(labels)-1) {
			return true
		}
	}
	return false
}

// want subscribes at the backends of a stream's targets, until
// the function that it returns is called.
func (w *Writer) want(ctx context.Context, holder string, until time.Time) (end func(), err error) {
	var all []api.Subscription
	end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
		defer cancel()
		for _, subscribed := range all {
			if err := w.Streams.Backends.Unsubscribe(ctx, subscribed); err != nil {
				w.Streams.Faults.LogError(ctx, "backend subscription left to expire", err)
			}
		}
	}
	for _, t := range w.targets {
		if t.Backend == "" {
			continue
		}
		wanted := api.Subscription{Place: api.Place{Workspace: w.Caller.Principal.Workspace, Backend: t.Backend}, URI: t.URI, Principal: w.Caller.Principal.ID, Holder: holder, Until: until}
		if err := w.Streams.Backends.Subscribe(ctx, wanted); err != nil {
			end()
			return nil, err
		}
		all = append(all, wanted)
	}
	return end, nil
}
