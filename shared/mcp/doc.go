// Package mcp is the MCP endpoint: Streamable HTTP for the revisions 2025-03-26, 2025-06-18 and 2025-11-25, which have sessions, and
// 2026-07-28, which has no sessions. In dialect.go it also serves an older framing of the same methods at /mcp/{workspace}.
//
//	        ┌ checks ─────────────────────────┐   ┌ method table ┐
//	POST ──▶│ origin, caller, size, JSON-RPC, │──▶│ resources/…  │──▶ catalog, event log
//	        │ version, headers                │   │ events/…     │──▶ subscriptions
//	GET  ──▶│ session                         │   │ …/listen     │──▶ feed ──▶ stream
//	        └─────────────────────────────────┘   └──────────────┘
//
// [Endpoint] has the checks, the table and the dispatch, sessions, conversations, and the calls that are forwarded to backends. The packages
// below it serve the other methods:
//
//	mcp ──▶ events ──▶ streams ──▶ method     eventtools/logsource is given to the endpoint by Options.EventTools
//	   └──▶ session ◀────┘
//
// A method is in the table if something serves it, here or by an [http.Handler] to which the endpoint forwards the whole request. A
// method that is not in the table is not advertised and is answered as unknown.
//
// The way of a tools/call is in docs/internals/architecture.md.
package mcp
