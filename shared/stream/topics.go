package stream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"

	"mcpevents/shared/eventlog"
)

// The topics. A topic belongs to a workspace; its notices are JSON of the
// package that sends them.

// TopicCatalog tells that the lists of a workspace's event types changed.
const TopicCatalog = "catalog"

// AnnounceCatalog tells the streams of a workspace that its catalog changed. version
// names the catalog that it has now.
func AnnounceCatalog(ctx context.Context, log *eventlog.Log, workspace, version string) error {
	notice, _ := json.Marshal(map[string]string{"version": version}) // two strings
	return log.NotifyAs(ctx, workspace, TopicCatalog, "catalog-"+version, notice)
}

// TopicPrincipal tells what changed for one principal: its subscriptions.
func TopicPrincipal(principal string) string {
	return "principal-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}

// TopicSubscription tells that a subscription's state changed.
func TopicSubscription(id string) string { return "subscription-" + id }

// TopicSession tells what another request changed for a session's open stream.
func TopicSession(id string) string { return "session-" + id }

// AnnounceStored makes [AnnounceCatalog] what catalog.Announce tells of stored catalogs by.
func AnnounceStored(log *eventlog.Log) func(ctx context.Context, workspace string, version int64) error {
	return func(ctx context.Context, workspace string, version int64) error {
		return AnnounceCatalog(ctx, log, workspace, strconv.FormatInt(version, 10))
	}
}

// TopicBackend brings the notifications of a backend of the gateway.
func TopicBackend(name string) string { return "backend-" + name }

// TopicConversation brings the context of what a principal told by notifications outside of
// sessions.
func TopicConversation(principal string) string {
	return "conversation-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}
