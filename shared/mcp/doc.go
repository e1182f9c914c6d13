// Package mcp is the MCP endpoint: Streamable HTTP for the revisions 2025-03-26,
// 2025-06-18 and 2025-11-25, which have sessions, and 2026-07-28, which has none;
// and, in the files dialect*.go, an older framing of the same at /mcp/{workspace}.
//
//	        ┌ checks ─────────────────────────┐   ┌ method table ┐
//	POST ──▶│ origin, caller, size, JSON-RPC, │──▶│ resources/…  │──▶ catalog, event log
//	        │ version, headers                │   │ events/…     │──▶ subscriptions
//	GET  ──▶│ session                         │   │ …/listen     │──▶ feed ──▶ stream
//	        └─────────────────────────────────┘   └──────────────┘
//
// [Endpoint] has the checks, the table and the dispatch. What serves a method is a small type
// with its own dependencies (lists, reads, webhooks, sessionMethods, calls, streams, …), wrapped by
// the way in which it answers (table.go). A method is in the table when something serves it, here or by a
// [http.Handler] that the whole request is handed to; what is not in the table is
// not advertised and answers as unknown. Messages are read by jsonrpc and
// streams written by sse. What a subscription or an event is does not enter
// here: see shared/events/subscription, shared/events/log and shared/events/stream. Nor does the gateway: [Gateway] is what
// is needed of it, with the data of gateway/api. Sessions are kept by package session, below.
//
// Events are served as tools as well, in the files eventtools*.go, for clients that know tools alone.
//
// The way of a tools/call is in docs/explanation/architecture.md. A listen goes to streams.hold,
// and stays in streamWriter.run until it ends; what differs between the kinds of streams is their framing.
package mcp
