package main

import (
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/bench/demo"
)

// DemoCmd shows what the product does, without anything having to run before.
type DemoCmd struct {
	Timeout time.Duration `default:"30s" help:"Longest run."`
}

// Help is the long help of the command.
func (c *DemoCmd) Help() string {
	return `Starts a server in this process on a free port, with its data in a temporary directory, and a webhook receiver. Subscribes in four ways: a webhook by SEP-1803, a webhook by the MCP Events extension, a stream of revision 2026-07-28 and one of 2025-11-25. Publishes one event and prints when it arrived, and where. Exits with 0 when it arrived everywhere.`
}

// Run implements the command.
func (c *DemoCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	log := slog.New(slog.DiscardHandler)
	if g.LogLevel == "debug" {
		log = g.logger(g.err)
	}
	return demo.Run(ctx, demo.Options{Agent: agent(), Timeout: c.Timeout, Out: g.out, Log: log})
}
