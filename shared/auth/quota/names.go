package quota

// The names of the quotas, as errors, metrics and the configuration have them.
const (
	Subscriptions    = "subscriptions"
	Streams          = "streams"
	Calls            = "calls"
	Sessions         = "sessions"
	PublishRate      = "publishRate"
	RegistrationRate = "registrationRate"
	ConversationRate = "conversationRate"
	// Verifications limits the challenges per minute. It has no flag, and is set under quotas in the configuration only.
	Verifications = "verifications"
	// WorkspaceSubscriptions limits the subscriptions of all principals of a workspace together. It has no flag either.
	WorkspaceSubscriptions = "workspaceSubscriptions"
)

// DefaultVerifications is how many challenges per minute the server sends for a principal without a quota of its own, to all hosts
// together.
const DefaultVerifications = 200

// Names lists the names of all quotas in a stable order.
func Names() []string {
	return []string{Subscriptions, Streams, Calls, Sessions, PublishRate, RegistrationRate, ConversationRate, Verifications, WorkspaceSubscriptions}
}
