package quota

// The names of the quotas in errors, metrics and the configuration.
const (
	Subscriptions    = "subscriptions"
	Streams          = "streams"
	PublishRate      = "publishRate"
	RegistrationRate = "registrationRate"

	// The following quotas have no flag. They can only be set in the section "quotas" of the configuration.

	Calls            = "calls"
	Sessions         = "sessions"
	ConversationRate = "conversationRate"
	// Verifications limits the challenges per minute.
	Verifications = "verifications"
	// WorkspaceSubscriptions limits the subscriptions of all principals of a workspace together. There is no default.
	WorkspaceSubscriptions = "workspaceSubscriptions"
)

// The defaults of quotas without a flag, for a principal that has no quota of its own.
const (
	DefaultCalls            = 100
	DefaultSessions         = 1000
	DefaultConversationRate = 10
	// DefaultVerifications counts the challenges per minute to all hosts together.
	DefaultVerifications = 200
)

// Names returns the names of all quotas in a stable order.
func Names() []string {
	return []string{Subscriptions, Streams, Calls, Sessions, PublishRate, RegistrationRate, ConversationRate, Verifications, WorkspaceSubscriptions}
}
