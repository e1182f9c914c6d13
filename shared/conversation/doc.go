// Package conversation hands what is said in the conversations of clients to those
// who were consented to, and gathers the context that they have to it.
//
//	client ─▶ shared/mcp ─▶ [Service.Forward] ─▶ consent? ─▶ providers ─▶ merge ─▶ context
//	                                │            (store)    at URLs
//	                                │                       backends, by shared/gateway
//	                                └─────────────────────▶ event, by shared/events/publish
//
// What is said here is the most private thing that passes through the system. So
// nothing of it is in an error or a log line, at any level: failures have a [Reason],
// which is a word of ours. Nothing is sent to anybody for whom the store has no
// consent of this caller at this moment. No protocol enters here; the methods are in
// shared/mcp, the HTTP API of consent is in api.go.
package conversation
