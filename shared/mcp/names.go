package mcp

// Prefix begins the names of our own: _meta keys and the extension.
const Prefix = "io.github.mcp-events/"

// Our _meta keys.
const (
	// MetaCursor is a position in the log: on every notification of a listen,
	// and in the request of a later one that goes on from there.
	MetaCursor = Prefix + "cursor"
	// MetaEventID, MetaTime and MetaPayload are of the event of
	// notifications/resources/updated. The payload is there only for clients that
	// declare [Extension]; for all it is in params.
	MetaEventID = Prefix + "eventId"
	MetaTime    = Prefix + "time"
	MetaPayload = Prefix + "payload"
	// MetaTruncated says that the log no longer reached back to the cursor.
	MetaTruncated = Prefix + "truncated"
	// MetaConflicts lists names that more than one backend has.
	MetaConflicts = Prefix + "conflicts"
	// MetaIdempotency makes a repeated registration safe.
	MetaIdempotency = Prefix + "idempotencyKey"
	// MetaContextCut says that a context had to be shortened.
	MetaContextCut = Prefix + "contextCut"
	// MetaPlain set to true in events/subscribe says that the client's endpoint is not to
	// get the notification of the end of the subscription.
	MetaPlain = Prefix + "plain"
)

// The extensions in capabilities.
const (
	// Extension is ours: SEP-1803 event subscriptions and what goes with them.
	Extension = Prefix + "subscriptions"
	// ConversationExtension repeats capabilities.conversationEvents.
	ConversationExtension = Prefix + "conversation"
)
