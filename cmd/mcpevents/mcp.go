package main

import (
	"strings"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/tools"
)

// McpCmd is an MCP server on standard input and output.
type McpCmd struct{ Remote }

// Help is the long help of the command.
func (c *McpCmd) Help() string {
	return `For local clients that know tools and no events: they start this command, as any MCP server over stdio. Its tools list event types, subscribe, and read or wait for events; it needs no public address. What comes while the client does not wait is pushed to one that has a channel for it: Claude Code (claude/channel), one that subscribed to the resource events://recent, one that set a log level.

Example, as most clients take it:
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
