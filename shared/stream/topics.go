package stream

import "encoding/base64"

// The topics. A topic belongs to a workspace; its notices are JSON of the
// package that sends them.

// TopicCatalog tells that the lists of a workspace's event types changed.
const TopicCatalog = "catalog"

// TopicPrincipal tells what changed for one principal: its subscriptions.
func TopicPrincipal(principal string) string {
	return "principal-" + base64.RawURLEncoding.EncodeToString([]byte(principal))
}

// TopicSubscription tells that a subscription's state changed.
func TopicSubscription(id string) string { return "subscription-" + id }

// TopicSession tells what another request changed for a session's open stream.
func TopicSession(id string) string { return "session-" + id }
