package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/stream"
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
	return o.sendChanges(cursor, mcpspec.NoteToolsChange, mcpspec.NotePromptsChange, mcpspec.NoteResourcesChange)
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
	if n.Method != mcpspec.NoteUpdated {
		return o.sendChanges(d.Cursor, n.Method)
	}
	uri, _ := jsonrpc.String(jsonrpc.Member(n.Params, "uri"))
	t, ok := o.targets[uri]
	if !ok || stream.TopicBackend(t.backend) != d.Topic {
		return nil
	}
	meta := inner(jsonrpc.Member(n.Params, "_meta"))
	members := inner(jsonrpc.Without(n.Params, func(name string) bool { return name == "_meta" }))
	return o.send(mcpspec.NoteUpdated, text(members), text(meta), d.Cursor)
}

// inner is what stands between the braces of an object; empty without one.
func inner(object json.RawMessage) []byte {
	return bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(object), []byte("{")), []byte("}")))
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
		w := api.Subscription{Place: api.Place{Workspace: o.principal.Workspace, Backend: t.backend}, URI: t.uri, Holder: holder, Until: until}
		if err := o.streams.backends.Subscribe(ctx, w); err != nil {
			end()
			return nil, err
		}
		all = append(all, w)
	}
	return end, nil
}
