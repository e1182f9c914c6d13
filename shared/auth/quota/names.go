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
	// Verifications counts challenges within a minute. It has no setting.
	Verifications = "verifications"
	// WorkspaceSubscriptions counts the subscriptions of all principals of a workspace together.
	WorkspaceSubscriptions = "workspaceSubscriptions"
)

// Names lists the names of all quotas in a stable order.
func Names() []string {
	return []string{Subscriptions, Streams, Calls, Sessions, PublishRate, RegistrationRate, ConversationRate, Verifications, WorkspaceSubscriptions}
}
