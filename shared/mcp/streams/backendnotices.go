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

// backendTopics returns the topics of all backends whose notifications the stream may receive.
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

// sendOtherBackends follows the current backends after a change of the configuration, and notifies the client that the lists have changed.
func (w *Writer) sendOtherBackends(ctx context.Context, cursor string) error {
	now := w.Streams.Feeds.Log.Position()
	for _, topic := range w.backendTopics(ctx) {
		w.Feed.Follow(topic, now)
	}
	return w.sendChanges(cursor, spec.NoteToolsChange, spec.NotePromptsChange, spec.NoteResourcesChange)
}

// sendBackend sends a backend's notification if the stream asked for it and the principal may still see the backend.
func (w *Writer) sendBackend(ctx context.Context, d stream.Delivery) error {
	var n api.Notice
	if json.Unmarshal(d.Notice, &n) != nil {
		return nil // a notice of another version
	}
	backends := w.Streams.Backends
	if !backends.Any(ctx) || !slices.Contains(backends.Backends(ctx, w.Caller.Principal), strings.TrimPrefix(d.Topic, topicBackends)) {
		return nil
	}
	if n.Method != spec.NoteUpdated {
		return w.sendChanges(d.Cursor, n.Method)
	}
	uri, ok := jsonrpc.String(jsonrpc.Member(n.Params, "uri"))
	if !ok || !w.subscribedAt(d.Topic, uri) || !backends.Permits(ctx, w.Caller.Principal, strings.TrimPrefix(d.Topic, topicBackends), uri) {
		return nil
	}
	// Pass on only members of the schema. Clients could mistake others for ours, for example for an event's payload.
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

// backendMeta returns the members of a backend's _meta, without braces, that may reach a client. It drops the members with our prefix and the
// protocol's, because only the gateway sets them: on a notification, the protocol defines the id of the client's listen (2026-07-28)
// and the id of a task (2025-11-25).
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
// for example "mcp.dev/". The comparison ignores case, because some readers of JSON do.
func reservedMeta(name string) bool {
	if spec.IsOwn(name) {
		return true
	}
	prefix, _, ok := strings.Cut(strings.ToLower(name), "/")
	if !ok {
		return false
	}
	labels := strings.Split(prefix, ".")
	for i, label := range labels {
		if (label == "mcp" || label == "modelcontextprotocol") && (i == 1 || i < len(labels)-1) {
			return true
		}
	}
	return false
}

// subscribeBackends subscribes to the stream's targets at their backends. end unsubscribes.
func (w *Writer) subscribeBackends(ctx context.Context, holder string, until time.Time) (end func(), err error) {
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
