package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/client/listen"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// CheckCmd tries a server against the specification.
type CheckCmd struct {
	URL      string            `arg:"" placeholder:"URL" help:"The MCP endpoint of the server."`
	Key      string            `env:"MCPEVENTS_KEY" placeholder:"KEY" help:"Sent as Authorization: Bearer KEY. Prefer the variable."`
	Event    string            `placeholder:"NAME" help:"The event type to try, by default the first that offers all modes."`
	Arg      map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"An argument to subscribe with; its value is read as that of listen --arg. May be repeated."`
	Publish  string            `placeholder:"COMMAND" help:"Shell command that has the server emit an event of that type. Without it what needs an event is not tested."`
	Listen   string            `default:"127.0.0.1:0" help:"Where webhooks are received."`
	Receiver string            `placeholder:"URL" help:"The URL at which the server reaches --listen, such as a tunnel's. Servers that are not set up for development take public https alone."`
	Wait     time.Duration     `default:"40s" help:"How long an event, a retry or a heartbeat may take."`
	JSON     bool              `name:"json" help:"Print the report as JSON."`
	JUnit    string            `name:"junit" type:"path" placeholder:"FILE" help:"Write the report as JUnit XML too."`
}

// Help is the long help of the command.
func (c *CheckCmd) Help() string {
	return `Subscribes in each mode that the server offers, sends what it must refuse, receives webhooks, and prints a table: the rule, its level and section, and whether it passed, failed or could not be tested. What it is doing goes to standard error. Exits with 1 if a MUST failed.

Examples:
  mcpevents check http://127.0.0.1:8080/mcp --event ci.build_finished --publish "mcpevents publish --uri event://ci/build-finished --data '{\"build\":7,\"status\":\"passed\"}'"
  mcpevents check https://events.example.com/mcp --listen 127.0.0.1:9000 --receiver https://tunnel.example.com --junit report.xml`
}

// Run implements the command.
func (c *CheckCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	o := check.Options{
		URL: c.URL, Key: c.Key, Agent: agent(), Event: c.Event, Listen: c.Listen, Receiver: c.Receiver, Wait: c.Wait,
		Progress: func(text string) { fmt.Fprintln(g.err, "mcpevents:", text) },
	}
	var err error
	if o.Arguments, err = listen.Arguments(c.Arg); err != nil {
		return err
	}
	if c.Publish != "" {
		o.Publish = check.Shell(c.Publish, g.err)
	}
	report, err := check.Run(ctx, o)
	if report == nil {
		return err
	}
	if written := report.Write(g.out, c.JSON, c.JUnit); written != nil {
		return fault.Wrap(fault.Unavailable, errors.Join(err, written), "print the report")
	}
	if err == nil && report.FailedMust > 0 {
		err = fault.New(fault.Internal, "the server breaks the specification: %d rules with MUST failed", report.FailedMust)
	}
	return err
}
