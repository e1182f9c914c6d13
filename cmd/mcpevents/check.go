package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/client/listen"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

type CheckCmd struct {
	URL      string            `arg:"" placeholder:"URL" help:"The MCP endpoint of the server."`
	Key      string            `env:"MCPEVENTS_KEY" placeholder:"KEY" help:"Sent as Authorization: Bearer KEY. Prefer the variable."`
	Event    string            `placeholder:"NAME" help:"Event type to use. Default: the first that offers all modes."`
	Arg      map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"An argument of the subscription, with the same syntax as listen --arg. May be repeated."`
	Publish  string            `placeholder:"COMMAND" help:"Shell command that makes the server emit an event of that type. Without it, rules that need an event are not tested."`
	Listen   string            `default:"127.0.0.1:0" help:"Address on which webhooks are received."`
	Receiver string            `placeholder:"URL" help:"URL at which the server reaches --listen, for example the URL of a tunnel. Most servers require a public https URL."`
	Wait     time.Duration     `default:"40s" help:"How long to wait for an event, a retry or a heartbeat."`
	JSON     bool              `name:"json" help:"Print the report as JSON."`
	JUnit    string            `name:"junit" type:"path" placeholder:"FILE" help:"Also write the report as JUnit XML to this file."`
}

func (c *CheckCmd) Help() string {
	return `Subscribes in each mode that the server offers, sends requests that it must refuse, and receives webhooks. Prints a table with the result of each rule: its level and section, and whether it passed, failed or could not be tested. Progress goes to standard error. The exit code is 1 if a rule with MUST failed.

Examples:
  mcpevents check http://127.0.0.1:8080/mcp --event ci.build_finished --publish "mcpevents publish --uri event://ci/build-finished --data '{\"build\":7,\"status\":\"passed\"}'"
  mcpevents check https://events.example.com/mcp --listen 127.0.0.1:9000 --receiver https://tunnel.example.com --junit report.xml`
}

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
	out := g.out
	if !c.JSON && report.Passed+report.Failed == 0 {
		out = io.Discard // the error says more than a table of rules that were not tested
	}
	if written := report.Write(out, c.JSON, c.JUnit); written != nil {
		return fault.Wrap(fault.Unavailable, errors.Join(err, written), "print the report")
	}
	if err == nil && report.FailedMust > 0 {
		err = fault.New(fault.Internal, "the server violates the specification: %d rules with MUST failed", report.FailedMust)
	}
	return err
}
