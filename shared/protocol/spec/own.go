package spec

// OwnPrefix is the prefix of our own names: _meta keys and the extensions.
const OwnPrefix = "io.github.mcp-events/"

// Our _meta keys.
const (
	// MetaCursor is a position in the log. Every notification of a listen has it, and a later listen that sends it continues there.
	MetaCursor = OwnPrefix + "cursor"
	// MetaEventID, MetaTime and MetaPayload describe the event of notifications/resources/updated. Only clients that declare
	// [OwnExtension] get the payload in _meta; all clients get it in params.
	MetaEventID = OwnPrefix + "eventId"
	MetaTime    = OwnPrefix + "time"
	MetaPayload = OwnPrefix + "payload"
	// MetaTruncated says that the log no longer reaches back to the cursor.
	MetaTruncated = OwnPrefix + "truncated"
	// MetaConflicts lists the names that several backends have.
	MetaConflicts = OwnPrefix + "conflicts"
	// MetaIdempotency identifies a registration, so that repeating it returns the same subscription.
	MetaIdempotency = OwnPrefix + "idempotencyKey"
	// MetaContextCut says that a context was shortened.
	MetaContextCut = OwnPrefix + "contextCut"
	// MetaPlain set to true in events/subscribe keeps the server from sending a termination notice to the endpoint.
	MetaPlain = OwnPrefix + "plain"
)

// The extensions in capabilities.
const (
	// OwnExtension is our extension: event subscriptions of SEP-1803 and our additions.
	OwnExtension = OwnPrefix + "subscriptions"
	// ConversationExtension has the same content as capabilities.conversationEvents.
	ConversationExtension = OwnPrefix + "conversation"
)
