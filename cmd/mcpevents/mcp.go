package main

import (
	"strings"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/tools"
)

// McpCmd serves events as MCP tools over standard input and output.
type McpCmd struct{ Remote }

// Help returns the long help of the command.
func (c *McpCmd) Help() string {
	return `For local MCP clients that support tools but no events. The client starts this command like any MCP server over stdio. The tools list event types, subscribe, and read or wait for events, so the command needs no public address. Events that arrive between two calls are pushed to clients that have a channel for them: Claude Code (claude/channel), clients that subscribe to the resource events://recent, and clients that set a log level.

Example configuration, which most clients accept:
  {"mcpServers": {"events": {"command": "mcpevents", "args": ["mcp", "--server", "https://events.example.com"], "env": {"MCPEVENTS_KEY": "…"}}}}`
}

// Run implements the command.
func (c *McpCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	caller, err := client.Connect(ctx, c.Server, client.Options{Key: c.Key, Agent: agent(), Log: g.logger(g.err)})
	if err != nil {
		return err
	}
	defer caller.Close()
	t := tools.New(caller)
	defer t.Close()
	name, version, _ := strings.Cut(agent(), "/")
	return t.Serve(ctx, name, version, g.in, g.out)
}
