// Package conversation forwards the messages in clients' conversations to the context providers to which the user has
// consented, and collects the context that they return.
//
//	client ─▶ shared/mcp ─▶ [Service.Forward] ─▶ consent? ─▶ providers ─▶ merge ─▶ context
//	                                │            (store)    at URLs
//	                                │                       backends, through shared/gateway
//	                                └─────────────────────▶ event, through shared/events/publish
//
// These messages are the most private data in the system. They never occur in errors or logs, at any level: a failure
// only has a [Reason], which is one of our constants. A message is sent only to receivers for which the store has the
// caller's consent at that moment. The package does not depend on a protocol: the MCP methods are in shared/mcp, and
// the HTTP API for consents is in api.go.
package conversation
