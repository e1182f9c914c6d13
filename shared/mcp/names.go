package mcp

import "slices"

// Version is a protocol revision. Revisions are dates, so their order is that of
// the text.
type Version string

// The revisions that the endpoint serves.
const (
	V20250326 Version = "2025-03-26"
	V20250618 Version = "2025-06-18"
	V20251125 Version = "2025-11-25"
	V20260728 Version = "2026-07-28"
)

// versions lists them, newest first: in server/discover and in the data of
// UnsupportedProtocolVersion.
var versions = []Version{V20260728, V20251125, V20250618, V20250326}

// latestLegacy is offered to a client whose revision of the session era is not known.
const latestLegacy = V20251125

// modern reports whether the revision is of the era without sessions.
func (v Version) modern() bool { return v >= V20260728 }

func (v Version) known() bool { return slices.Contains(versions, v) }

// The methods.
const (
	methodInitialize    = "initialize"
	methodPing          = "ping"
	methodDiscover      = "server/discover"
	methodListen        = "subscriptions/listen"
	methodResources     = "resources/list"
	methodTemplates     = "resources/templates/list"
	methodRead          = "resources/read"
	methodSubscribe     = "resources/subscribe"
	methodUnsubscribe   = "resources/unsubscribe"
	methodRegister      = "resources/subscriptions/register"   // SEP-1803
	methodDeregister    = "resources/subscriptions/deregister" // SEP-1803
	methodEvents        = "events/list"                        // SEP-3415, as are those below
	methodEventsPoll    = "events/poll"
	methodEventsStream  = "events/stream"
	methodEventsSub     = "events/subscribe"
	methodEventsUnsub   = "events/unsubscribe"
	methodComplete      = "completion/complete"
	methodSetLevel      = "logging/setLevel"
	methodToolsList     = "tools/list"
	methodToolsCall     = "tools/call"
	methodPromptsList   = "prompts/list"
	methodPromptsGet    = "prompts/get"
	methodUserMessage   = "conversation/userMessage" // the conversation events proposal, as are those below
	methodAssistant     = "conversation/assistantResponse"
	noteAcknowledged    = "notifications/subscriptions/acknowledged"
	noteUpdated         = "notifications/resources/updated"
	noteResourcesChange = "notifications/resources/list_changed"
	noteToolsChange     = "notifications/tools/list_changed"
	notePromptsChange   = "notifications/prompts/list_changed"
	noteCancelled       = "notifications/cancelled"
	noteRootsChange     = "notifications/roots/list_changed"
	noteMessage         = "notifications/message"
	noteEventsChange    = "notifications/events/list_changed" // SEP-3415
	noteContext         = "conversation/context"              // to a client that told a message by a notification
)

// The notifications of an events/stream (SEP-3415).
const (
	NoteEventsActive     = "notifications/events/active"
	NoteEventsEvent      = "notifications/events/event"
	NoteEventsHeartbeat  = "notifications/events/heartbeat"
	NoteEventsError      = "notifications/events/error"
	NoteEventsTerminated = "notifications/events/terminated"
)

// mirrored names the member of params that the header Mcp-Name repeats (revision
// 2026-07-28, Standard Request Headers).
var mirrored = map[string]string{
	methodToolsCall:  "name",
	methodPromptsGet: "name",
	methodRead:       "uri",
}

// The HTTP headers of the transport.
const (
	headerVersion   = "Mcp-Protocol-Version"
	headerMethod    = "Mcp-Method"
	headerName      = "Mcp-Name"
	headerSession   = "Mcp-Session-Id"
	headerLastEvent = "Last-Event-Id"
)

// The _meta keys that the specification reserves.
const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaServer       = "io.modelcontextprotocol/serverInfo"
	metaLogLevel     = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// Prefix begins the names of our own: _meta keys and the extension.
const Prefix = "io.github.mcp-events/"

// Our _meta keys.
const (
	// MetaCursor is a position in the log: on every notification of a listen,
	// and in the request of a later one that goes on from there.
	MetaCursor = Prefix + "cursor"
	// MetaEventID, MetaTime and MetaPayload tell of the event behind
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
	// get the message that tells the end of the subscription.
	MetaPlain = Prefix + "plain"
)

// The extensions in capabilities.
const (
	// Extension is ours: SEP-1803 event subscriptions and what goes with them.
	Extension = Prefix + "subscriptions"
	// ConversationExtension repeats capabilities.conversationEvents.
	ConversationExtension = Prefix + "conversation"
	// EventsExtension is the MCP Events extension (SEP-3415).
	EventsExtension = "io.modelcontextprotocol/events"
)

// Delivery modes of the MCP Events extension.
const (
	modePush    = "push"
	modePoll    = "poll"
	modeWebhook = "webhook"
)
