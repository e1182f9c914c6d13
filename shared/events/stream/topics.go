package stream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
)

// The topics. A topic belongs to a workspace. The package that notifies it defines the JSON of its notices.

// TopicCatalog has a notice for each change of a workspace's event types or backends. [OfBackends] tells them apart.
const TopicCatalog = "catalog"

// topics returns the partitions of a topic. A change of a catalog that workspaces share is announced in one partition for all
// of them.
func (ts *Tails) topics(ctx context.Context, workspace, topic string) []eventlog.Partition {
	out := []eventlog.Partition{eventlog.Topic(workspace, topic)}
	if topic == TopicCatalog && ts.Shares != nil && ts.Shares(ctx, workspace) {
		out = append(out, eventlog.Topic(catalog.Shared, topic))
	}
	return out
}

// TopicPrincipal returns the topic for changes of a principal's subscriptions.
func TopicPrincipal(principal string) string {
	return "principal-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}

// TopicSubscription returns the topic for changes of a subscription's state.
func TopicSubscription(id string) string { return "subscription-" + id }

// TopicSession returns the topic for changes that other requests make to the open stream of a session.
func TopicSession(id string) string { return "session-" + id }

// AnnounceBackends notifies the streams of a workspace that its backends or their settings changed. version is the version of
// the new settings.
func AnnounceBackends(ctx context.Context, log *eventlog.Log, workspace, version string) error {
	notice, _ := json.Marshal(backendsNotice{version}) // a string
	return log.NotifyAs(ctx, workspace, TopicCatalog, "backends-"+version, notice)
}

type backendsNotice struct {
	Backends string `json:"backends"`
}

// OfBackends reports whether a notice of [TopicCatalog] is one of [AnnounceBackends].
func OfBackends(notice json.RawMessage) bool {
	var n backendsNotice
	return json.Unmarshal(notice, &n) == nil && n.Backends != ""
}

// AnnounceStored returns the function with which [settings.Announce] announces stored documents.
func AnnounceStored(log *eventlog.Log) func(context.Context, settings.Change) error {
	return func(ctx context.Context, c settings.Change) error {
		version := strconv.FormatInt(c.Version, 10)
		if c.Kind == settings.Backends {
			return AnnounceBackends(ctx, log, c.Workspace, version)
		}
		notice, _ := json.Marshal(map[string]string{"version": version}) // two strings
		return log.NotifyAs(ctx, c.Workspace, TopicCatalog, string(c.Kind)+"-"+c.Workspace+"-"+version, notice)
	}
}

// TopicBackend returns the topic for notifications of a backend of the gateway.
func TopicBackend(name string) string { return "backend-" + name }

// TopicConversation returns the topic for the context of a principal's notifications outside of sessions.
func TopicConversation(principal string) string {
	return "conversation-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}
