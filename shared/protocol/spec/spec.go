// Package spec has the names and numbers of the Model Context Protocol: revisions, methods, headers of the endpoint, _meta keys, error
// codes and log levels, and our additions to them.
package spec

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// Version is a protocol revision. Revisions are dates, so they can be compared as text.
type Version string

// The revisions that this server speaks. Up to 2025-11-25 they are session-based; 2026-07-28 is stateless.
const (
	V20250326 Version = "2025-03-26"
	V20250618 Version = "2025-06-18"
	V20251125 Version = "2025-11-25"
	V20260728 Version = "2026-07-28"
)

// Versions lists the revisions that this server speaks, newest first.
var Versions = []Version{V20260728, V20251125, V20250618, V20250326}

// LatestSessionBased is the revision that the server offers to a client whose initialize names no session-based revision that we know.
const LatestSessionBased = V20251125

// Stateless reports whether the revision has no sessions.
func (v Version) Stateless() bool { return v >= V20260728 }

// Known reports whether this server speaks the revision.
func (v Version) Known() bool { return slices.Contains(Versions, v) }

// The methods of requests that clients send to servers.
const (
	MethodInitialize   = "initialize"
	MethodPing         = "ping"
	MethodDiscover     = "server/discover"
	MethodListen       = "subscriptions/listen"
	MethodResources    = "resources/list"
	MethodTemplates    = "resources/templates/list"
	MethodRead         = "resources/read"
	MethodSubscribe    = "resources/subscribe"
	MethodUnsubscribe  = "resources/unsubscribe"
	MethodRegister     = "resources/subscriptions/register"   // SEP-1803
	MethodDeregister   = "resources/subscriptions/deregister" // SEP-1803
	MethodEvents       = "events/list"                        // this and the next four: SEP-3415
	MethodEventsPoll   = "events/poll"
	MethodEventsStream = "events/stream"
	MethodEventsSub    = "events/subscribe"
	MethodEventsUnsub  = "events/unsubscribe"
	MethodComplete     = "completion/complete"
	MethodSetLevel     = "logging/setLevel"
	MethodToolsList    = "tools/list"
	MethodToolsCall    = "tools/call"
	MethodPromptsList  = "prompts/list"
	MethodPromptsGet   = "prompts/get"
	MethodTasksGet     = "tasks/get" // this and the next two: SEP-2663
	MethodTasksUpdate  = "tasks/update"
	MethodTasksCancel  = "tasks/cancel"
	MethodUserMessage  = "conversation/userMessage" // this and the next: the conversation events proposal
	MethodAssistant    = "conversation/assistantResponse"
)

// The methods of requests that servers send to clients.
const (
	MethodElicit = "elicitation/create"
	MethodSample = "sampling/createMessage"
	MethodRoots  = "roots/list"
)

// The methods of notifications, except for the notifications of an events/stream.
const (
	NoteInitialized     = "notifications/initialized"
	NoteAcknowledged    = "notifications/subscriptions/acknowledged"
	NoteUpdated         = "notifications/resources/updated"
	NoteResourcesChange = "notifications/resources/list_changed"
	NoteToolsChange     = "notifications/tools/list_changed"
	NotePromptsChange   = "notifications/prompts/list_changed"
	NoteRootsChange     = "notifications/roots/list_changed"
	NoteCancelled       = "notifications/cancelled"
	NoteProgress        = "notifications/progress"
	NoteMessage         = "notifications/message"
	NoteElicited        = "notifications/elicitation/complete"
	NoteTaskStatus      = "notifications/tasks/status"        // only 2025-11-25
	NoteTasks           = "notifications/tasks"               // SEP-2663
	NoteEventsChange    = "notifications/events/list_changed" // SEP-3415
	NoteContext         = "conversation/context"              // sent to a client that sent a conversation message as a notification
)

// The notifications of an events/stream (SEP-3415).
const (
	NoteEventsActive     = "notifications/events/active"
	NoteEventsEvent      = "notifications/events/event"
	NoteEventsHeartbeat  = "notifications/events/heartbeat"
	NoteEventsError      = "notifications/events/error"
	NoteEventsTerminated = "notifications/events/terminated"
)

// The _meta keys that the specification reserves.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClient       = "io.modelcontextprotocol/clientInfo"
	MetaServer       = "io.modelcontextprotocol/serverInfo"
	MetaLogLevel     = "io.modelcontextprotocol/logLevel"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
	MetaRelatedTask  = "io.modelcontextprotocol/related-task"
)

// EventsExtension names the MCP Events extension (SEP-3415) in capabilities.
const EventsExtension = "io.modelcontextprotocol/events"

// TasksExtension names the tasks extension (SEP-2663) in capabilities.
const TasksExtension = "io.modelcontextprotocol/tasks"

// Profile selects a version of the MCP Events extension: the draft that released clients implement, or the Final version of SEP-3415. They
// differ in the webhook-id of deliveries, in the error codes, and in the response to events/unsubscribe for an unknown subscription.
type Profile string

// The profiles of the MCP Events extension.
const (
	// Released is the profile that follows the draft of the extension which ChatGPT, the AI SDK and TanStack implement.
	Released Profile = "released"
	// Final follows the MCP Events extension as published in the Final version of SEP-3415.
	Final Profile = "final"
)

// Profiles returns the names of all profiles.
func Profiles() []string { return []string{string(Released), string(Final)} }

// EventsRevisions maps the revision that a client declares in its [EventsExtension] settings to our profile for it. It is empty, because
// the published texts do not define revisions yet.
var EventsRevisions = map[string]Profile{}

// Delivery modes of the MCP Events extension.
const (
	ModePush    = "push"
	ModePoll    = "poll"
	ModeWebhook = "webhook"
)

// The error codes of MCP, in addition to the codes of JSON-RPC.
const (
	CodeResourceNotFound   = -32002 // up to 2025-11-25; 2026-07-28 uses -32602
	CodeNeedsURL           = -32042 // only 2025-11-25: the user has to visit URLs first
	CodeHeaderMismatch     = -32020 // this and the next two: since 2026-07-28
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
)

// severities are the levels of log messages, the least severe first (RFC 5424, with MCP's names).
var severities = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// KnownSeverity reports whether a level of log messages exists.
func KnownSeverity(level string) bool { return slices.Contains(severities, level) }

// SevereAs reports whether a level of log messages is at least as severe as the level least. An unknown level is the least severe.
func SevereAs(level, least string) bool {
	return slices.Index(severities, level) >= slices.Index(severities, least)
}

// OwnPrefix is the beginning of all _meta keys and extension names that this project defines.
const OwnPrefix = "io.github.mcp-events/"

// IsOwn reports whether a name begins with [OwnPrefix]. It ignores case, because some JSON readers do.
func IsOwn(name string) bool {
	prefix, _, ok := strings.Cut(name, "/")
	return ok && strings.EqualFold(prefix+"/", OwnPrefix)
}

// The _meta keys that this project defines.
const (
	// MetaCursor is a position in the event log, which each notification of a subscriptions/listen stream has. A client that sends the
	// position in a later subscriptions/listen receives the events after it.
	MetaCursor = OwnPrefix + "cursor"
	// MetaEventID, MetaTime and MetaPayload describe the event behind notifications/resources/updated. Clients get the payload in params,
	// and in _meta as well if they declare [OwnExtension].
	MetaEventID = OwnPrefix + "eventId"
	MetaTime    = OwnPrefix + "time"
	MetaPayload = OwnPrefix + "payload"
	// MetaURI and MetaArguments describe the event of an EventOccurrence (SEP-3415). Without them, a client that subscribed to many URIs
	// with one subscription, for example to all orders, could not tell which order an event is about.
	MetaURI       = OwnPrefix + "uri"
	MetaArguments = OwnPrefix + "arguments"
	// MetaTruncated marks a notification about a gap: events after the client's cursor are no longer in the log.
	MetaTruncated = OwnPrefix + "truncated"
	// MetaConflicts lists the names in a list, for example of tools, that several backends use. The first of these backends serves the
	// name.
	MetaConflicts = OwnPrefix + "conflicts"
	// MetaIdempotency is a key that the client chooses for a registration. Repeating the request with the key returns the same
	// subscription.
	MetaIdempotency = OwnPrefix + "idempotencyKey"
	// MetaContextCut marks a conversation context from which parts are missing, for example because it was too long.
	MetaContextCut = OwnPrefix + "contextCut"
	// MetaPlain, if true in events/subscribe, tells the server to send no control messages, such as a termination notice, to the webhook.
	// The server still sends the challenge with which it verifies the webhook.
	MetaPlain = OwnPrefix + "plain"
)

// The extensions that this project defines, by their names in capabilities.
const (
	// OwnExtension is the name of the extension that adds the event subscriptions of SEP-1803 and our additions to them.
	OwnExtension = OwnPrefix + "subscriptions"
	// ConversationExtension is the name of an extension whose settings repeat capabilities.conversationEvents, for clients that only
	// read extensions.
	ConversationExtension = OwnPrefix + "conversation"
)

// The HTTP headers of the transport, in the canonical form of [http.Header].
const (
	HeaderVersion   = "Mcp-Protocol-Version"
	HeaderMethod    = "Mcp-Method"
	HeaderName      = "Mcp-Name"
	HeaderSession   = "Mcp-Session-Id"
	HeaderLastEvent = "Last-Event-Id"
	// HeaderParameter is the prefix of the HTTP headers in which a client repeats arguments of a tool call, for example Mcp-Param-Region
	// (2026-07-28, Custom Headers from Tool Parameters).
	HeaderParameter = "Mcp-Param-"
)

// Mirrored maps a method to the name of the member of params that a client repeats in [HeaderName] (2026-07-28, Standard Request
// Headers).
var Mirrored = map[string]string{
	MethodToolsCall:  "name",
	MethodPromptsGet: "name",
	MethodRead:       "uri",

	MethodTasksGet: "taskId", MethodTasksUpdate: "taskId", MethodTasksCancel: "taskId",
}

// If a value of Mcp-Name is not plain ASCII, it is encoded in Base64 between these marks, for example =?base64?w6k=?= for é (2026-07-28,
// Value Encoding).
const (
	sentinelStart = "=?base64?"
	sentinelEnd   = "?="
)

var errHeaderValue = errors.New("the header value is malformed")

// EncodeHeader returns a name or a URI as a value of Mcp-Name, encoded in Base64 if necessary.
func EncodeHeader(s string) string {
	plain := strings.Trim(s, " \t") == s && (!strings.HasPrefix(s, sentinelStart) || !strings.HasSuffix(s, sentinelEnd))
	for i := 0; plain && i < len(s); i++ {
		plain = headerByte(s[i])
	}
	if plain {
		return s
	}
	return sentinelStart + base64.StdEncoding.EncodeToString([]byte(s)) + sentinelEnd
}

// DecodeHeader decodes a header value that [EncodeHeader] has encoded.
func DecodeHeader(value string) (string, error) {
	value = strings.Trim(value, " \t")
	for i := 0; i < len(value); i++ {
		if !headerByte(value[i]) {
			return "", errHeaderValue
		}
	}
	inner, ok := strings.CutPrefix(value, sentinelStart)
	if !ok || !strings.HasSuffix(inner, sentinelEnd) {
		return value, nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSuffix(inner, sentinelEnd))
	if err != nil || !utf8.Valid(b) {
		return "", errHeaderValue
	}
	return string(b), nil
}

// headerByte reports whether a header value may contain the character unencoded (RFC 9110, without non-ASCII bytes).
func headerByte(c byte) bool { return c >= ' ' && c <= '~' || c == '\t' }
