package stream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/settings"
)

// The topics. A topic belongs to a workspace; its notices are JSON of the
// package that sends them.

// TopicCatalog tells that the lists of a workspace's event types changed, or that other backends
// belong to it; [OfBackends] tells which.
const TopicCatalog = "catalog"

// AnnounceCatalog tells the streams of a workspace that its catalog changed. version
// names the catalog that it has now.
func AnnounceCatalog(ctx context.Context, log *eventlog.Log, workspace, version string) error {
	notice, _ := json.Marshal(map[string]string{"version": version}) // two strings
	return log.NotifyAs(ctx, workspace, TopicCatalog, "catalog-"+workspace+"-"+version, notice)
}

// topics are the partitions of a topic: the catalog that a workspace shares with others is announced once for all.
func (ts *Tails) topics(ctx context.Context, workspace, topic string) []eventlog.Partition {
	out := []eventlog.Partition{eventlog.Topic(workspace, topic)}
	if topic == TopicCatalog && ts.Options.Shares != nil && ts.Options.Shares(ctx, workspace) {
		out = append(out, eventlog.Topic(catalog.Shared, topic))
	}
	return out
}

// TopicPrincipal tells what changed for one principal: its subscriptions.
func TopicPrincipal(principal string) string {
	return "principal-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}

// TopicSubscription tells that a subscription's state changed.
func TopicSubscription(id string) string { return "subscription-" + id }

// TopicSession tells what another request changed for a session's open stream.
func TopicSession(id string) string { return "session-" + id }

// AnnounceBackends tells the streams of a workspace that other backends of the gateway belong to it,
// or that one is to be asked in another way. version names those that there are now.
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

// AnnounceStored is what [settings.Announce] tells of stored documents by.
func AnnounceStored(log *eventlog.Log) func(context.Context, settings.Change) error {
	return func(ctx context.Context, c settings.Change) error {
		announce := AnnounceCatalog
		if c.Kind == settings.Backends {
			announce = AnnounceBackends
		}
		return announce(ctx, log, c.Workspace, strconv.FormatInt(c.Version, 10))
	}
}

// TopicBackend brings the notifications of a backend of the gateway.
func TopicBackend(name string) string { return "backend-" + name }

// TopicConversation brings the context of what a principal told by notifications outside of
// sessions.
func TopicConversation(principal string) string {
	return "conversation-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}
