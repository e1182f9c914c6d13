package mcp

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
func (o *streamWriter) backendTopics(ctx context.Context) (topics []string) {
	if !o.streams.backends.Any(ctx) {
		return nil
	}
	for _, name := range o.streams.backends.Backends(ctx, o.principal) {
		topics = append(topics, stream.TopicBackend(name))
	}
	return topics
}

var topicBackends = stream.TopicBackend("")

// sendOtherBackends follows the backends that there are now, and notifies that their lists are
// others.
func (o *streamWriter) sendOtherBackends(ctx context.Context, cursor string) error {
	now := o.streams.feeds.Log.Position()
	for _, topic := range o.backendTopics(ctx) {
		o.feed.Follow(topic, now)
	}
	return o.sendChanges(cursor, spec.NoteToolsChange, spec.NotePromptsChange, spec.NoteResourcesChange)
}

// sendBackend sends what a backend notified of, if the stream asked for it and its principal may
// still see the backend.
func (o *streamWriter) sendBackend(ctx context.Context, d stream.Delivery) error {
	var n api.Notice
	if json.Unmarshal(d.Notice, &n) != nil {
		return nil // of another version
	}
	backends := o.streams.backends
	if !backends.Any(ctx) || !slices.Contains(backends.Backends(ctx, o.principal), strings.TrimPrefix(d.Topic, topicBackends)) {
		return nil
	}
	if n.Method != spec.NoteUpdated {
		return o.sendChanges(d.Cursor, n.Method)
	}
	uri, ok := jsonrpc.String(jsonrpc.Member(n.Params, "uri"))
	if !ok || !o.subscribedAt(d.Topic, uri) {
		return nil
	}
	// Only what the schema knows: in any other member a client could see one of ours, for example an event's payload.
	members := func(b []byte) []byte { return jsonrpc.AppendString(append(b, `"uri":`...), uri) }
	return o.send(spec.NoteUpdated, members, text(backendMeta(jsonrpc.Member(n.Params, "_meta"))), d.Cursor)
}

// subscribedAt reports whether the stream is subscribed at the backend with that topic to the resource or to one above it.
func (o *streamWriter) subscribedAt(topic, uri string) bool {
	for _, t := range o.targets {
		if t.backend != "" && stream.TopicBackend(t.backend) == topic && api.Covers(t.uri, uri) {
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
	if prefix+"/" == Prefix {
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
func (o *streamWriter) want(ctx context.Context, holder string, until time.Time) (end func(), err error) {
	var all []api.Subscription
	end = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reserve/2)
		defer cancel()
		for _, w := range all {
			if err := o.streams.backends.Unsubscribe(ctx, w); err != nil {
				o.streams.faults.log(ctx, "backend subscription left to expire", err)
			}
		}
	}
	for _, t := range o.targets {
		if t.backend == "" {
			continue
		}
		w := api.Subscription{Place: api.Place{Workspace: o.principal.Workspace, Backend: t.backend}, URI: t.uri, Principal: o.principal.ID, Holder: holder, Until: until}
		if err := o.streams.backends.Subscribe(ctx, w); err != nil {
			end()
			return nil, err
		}
		all = append(all, w)
	}
	return end, nil
}
