package main

import (
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/bench/demo"
)

// DemoCmd shows the product in one process, without any setup.
type DemoCmd struct {
	Timeout time.Duration `default:"30s" help:"Time limit of the demo."`
}

// Help returns the long help of the command.
func (c *DemoCmd) Help() string {
	return `Starts a server in this process, with a free port and a temporary data directory, and a webhook receiver. Subscribes in four ways: a webhook of SEP-1803, a webhook of MCP Events, a stream of revision 2026-07-28 and a stream of 2025-11-25. Then publishes one event and prints when it arrived at each of them. The exit code is 0 if it arrived everywhere.`
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
