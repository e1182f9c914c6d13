// Package backend has MCP servers to stand behind the gateway in tests.
//
// Two are sound and written with the official Go SDK: [Stateful] speaks the
// revisions with sessions, [Stateless] speaks 2026-07-28 only. Both have the tools,
// prompts and resources that the official conformance suite asks of a server, each
// in the way of its revision: where one sends a request to the client, the other
// answers that input is required. The third, [Misbehaving], breaks the protocol
// in as many ways as it has tools.
//
// A test runs them in its own process by [New], or as processes that it can kill
// by the program in mcpbackend. What a backend saw of its clients is at /state.
package backend
