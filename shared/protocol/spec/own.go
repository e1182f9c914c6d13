package spec

// OwnPrefix begins the names of our own: _meta keys and the extension.
const OwnPrefix = "io.github.mcp-events/"

// Our _meta keys.
const (
	// MetaCursor is a position in the log: on every notification of a listen,
	// and in the request of a later one that goes on from there.
	MetaCursor = OwnPrefix + "cursor"
	// MetaEventID, MetaTime and MetaPayload are of the event of
	// notifications/resources/updated. The payload is there only for clients that
	// declare [OwnExtension]; for all it is in params.
	MetaEventID = OwnPrefix + "eventId"
	MetaTime    = OwnPrefix + "time"
	MetaPayload = OwnPrefix + "payload"
	// MetaTruncated says that the log no longer reached back to the cursor.
	MetaTruncated = OwnPrefix + "truncated"
	// MetaConflicts lists names that more than one backend has.
	MetaConflicts = OwnPrefix + "conflicts"
	// MetaIdempotency makes a repeated registration safe.
	MetaIdempotency = OwnPrefix + "idempotencyKey"
	// MetaContextCut says that a context had to be shortened.
	MetaContextCut = OwnPrefix + "contextCut"
	// MetaPlain set to true in events/subscribe says that the client's endpoint is not to
	// get the notification of the end of the subscription.
	MetaPlain = OwnPrefix + "plain"
)

// The extensions in capabilities.
const (
	// OwnExtension is ours: SEP-1803 event subscriptions and what goes with them.
	OwnExtension = OwnPrefix + "subscriptions"
	// ConversationExtension repeats capabilities.conversationEvents.
	ConversationExtension = OwnPrefix + "conversation"
)
