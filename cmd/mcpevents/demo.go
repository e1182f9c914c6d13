package main

import (
	"log/slog"
	"os"
	"time"

	"github.com/mcp-events/mcpevents/bench/demo"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// DemoCmd shows what the product does, without anything having to run before.
type DemoCmd struct {
	Catalog string        `default:"catalog.yaml" env:"MCPEVENTS_CATALOG" placeholder:"FILE" help:"The event types; the sample catalog of the repository has the one that is shown."`
	Timeout time.Duration `default:"30s" help:"Longest run."`
}

// Help is the long help of the command.
func (c *DemoCmd) Help() string {
	return `Starts a server in this process on a free port, with its data in a temporary directory, and a webhook receiver. Subscribes in four ways: a webhook by SEP-1803, a webhook by the MCP Events extension, a stream of revision 2026-07-28 and one of 2025-11-25. Publishes one event and tells when it arrived where. Exits with 0 when it arrived everywhere.`
}

// Run implements the command.
func (c *DemoCmd) Run(g *Globals) error {
	src, err := os.ReadFile(c.Catalog)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "read the catalog (run this where catalog.yaml is, or give --catalog)")
	}
	ctx, stop := interruptible()
	defer stop()
	log := slog.New(slog.DiscardHandler)
	if g.LogLevel == "debug" {
		log = g.logger(g.err)
	}
	return demo.Run(ctx, demo.Options{Catalog: src, CatalogName: c.Catalog, Agent: agent(), Timeout: c.Timeout, Out: g.out, Log: log})
}
