package main

import (
	"cmp"
	"time"

	"github.com/mcp-events/mcpevents/client/listen"
	runs "github.com/mcp-events/mcpevents/client/run"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// ListenCmd receives events until it is interrupted.
type ListenCmd struct {
	Remote
	Stream   bool     `help:"Read a stream instead of receiving webhooks."`
	Revision string   `default:"2026-07-28" enum:"2025-03-26,2025-06-18,2025-11-25,2026-07-28" help:"Revision of MCP to speak: ${enum}."`
	Via      string   `default:"register" enum:"register,events" help:"How to ask for webhooks: register (SEP-1803, with --uri) or events (the MCP Events extension, with --name and --arg). --name alone means events."`
	URI      []string `name:"uri" sep:"none" placeholder:"event://…" help:"What to receive: an event's URI, a parent of several, or a template with * for variables. May be repeated."`

	Mode string `enum:",webhook,poll,push" default:"" help:"How to receive with --name: webhook, poll or push. Anything but webhook implies --via events. By default webhook; with --exec and without --target what the event type has of push and poll, which need no public address."`

	Name   string            `placeholder:"NAME" help:"With --via events: name of the event type."`
	Arg    map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"With --via events: an argument, which binds a variable or filters. A list, an object, true and false are read as JSON, anything else as text; NAME:=JSON always reads JSON. May be repeated."`
	TTL    time.Duration     `name:"ttl" help:"With --via events: lifetime to ask for; it is refreshed in time. By default the server decides."`
	Cursor string            `placeholder:"CURSOR" help:"Continue from this cursor, which an earlier run printed (--stream of 2026-07-28, --via events in any mode)."`

	Exec        string        `placeholder:"COMMAND" help:"With --name: run this for each event instead of printing it. The event is JSON on its standard input, and EVENT_ID, EVENT_NAME, EVENT_TIME, EVENT_URI, EVENT_SUBSCRIPTION and EVENT_CURSOR are in its environment. When it ends with 0, the event is done; else it is run again, after growing intervals."`
	CursorFile  string        `placeholder:"FILE" help:"With --name: continue from the cursor in this file, which moves past an event when it is printed, or when the command of --exec has ended with 0. Each subscription needs a file of its own."`
	Concurrency int           `default:"1" placeholder:"N" help:"With --exec: how many commands run at once (${default}); one keeps the order of events."`
	Timeout     time.Duration `default:"10m" help:"With --exec: longest run of a command, which is ended then and has failed."`
	Tries       int           `default:"5" placeholder:"N" help:"With --failed-file: how often a command is run for an event (${default})."`
	FailedFile  string        `placeholder:"FILE" help:"With --exec: append an event whose command has failed --tries times to this file, as a line of JSON, and go on. Without it the command is run until it does not fail."`

	Listen string `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address of the receiver for webhooks (${default}: any free port)."`
	Target string `placeholder:"URL" help:"URL at which the server reaches the receiver, such as that of a tunnel. By default the address of --listen, for a server on this machine."`

	Count      int           `placeholder:"N" help:"End after N events."`
	For        time.Duration `placeholder:"TIME" help:"End after this time. With --count, it is a failure (exit code 5) if the count is not reached by then."`
	ShowSecret bool          `help:"Print the webhook's secret to standard error."`
}

// Help is the long help of the command.
func (c *ListenCmd) Help() string {
	return `Registers a webhook, answers the challenge, verifies every signature, prints each event as one line of JSON, and deregisters at the end (SIGINT, SIGTERM, --count, --for); with --cursor-file the subscription stays until it expires, because another run continues it. With --stream it opens a stream instead, and goes on without a gap after a disconnect; so does --mode push for one event type, and --mode poll asks again and again.

A server that is not run with --allow-insecure-targets only sends to public https addresses: give that of a tunnel as --target.

Examples:
  mcpevents listen --uri event://ci/build-finished
  mcpevents listen --name github.pull_request --arg owner=acme --arg 'action=["opened","merged"]'
  mcpevents listen --mode poll --name incident.created --arg severity=critical
  mcpevents listen --stream --uri event://github/acme
  mcpevents listen --name incident.created --cursor-file incidents.cursor --exec ./on-incident`
}

// Run implements the command.
func (c *ListenCmd) Run(g *Globals) error {
	args, err := listen.Arguments(c.Arg)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	o := listen.Options{
		URL: c.Server, Key: c.Key, Agent: agent(), Revision: c.Revision, URIs: c.URI, Stream: c.Stream,
		Name: c.Name, Arguments: args, Mode: c.Mode, TTL: c.TTL, Cursor: c.Cursor, File: c.CursorFile,
		Listen: c.Listen, Target: c.Target, Count: c.Count, For: c.For, Out: g.out, Log: g.logger(g.err), Concurrency: c.Concurrency,
	}
	if c.Mode == "" && (c.Exec == "" || c.Target != "") {
		o.Mode = spec.ModeWebhook
	}
	if c.ShowSecret {
		o.Secret = g.err
	}
	if c.Exec != "" {
		o.Run = &runs.Command{
			Line: c.Exec, Timeout: c.Timeout, Failed: c.FailedFile, Tries: c.Tries, Stdout: g.out, Stderr: g.err, Log: o.Log,
		}
	}
	return listen.Run(ctx, o)
}

// Validate refuses flags that do not go together, and takes --name alone for --via events.
func (c *ListenCmd) Validate() error {
	// Followed without a webhook.
	followed := c.Mode != "" && c.Mode != spec.ModeWebhook || c.Mode == "" && c.Exec != "" && c.Target == ""
	if c.Name != "" && len(c.URI) == 0 && !c.Stream { // an event type has a name in the extension alone
		c.Via = "events"
	}
	events := (c.Via == "events" || followed) && !c.Stream
	switch {
	case c.Name == "" && (c.Exec != "" || c.CursorFile != ""):
		return fault.New(fault.Invalid, "--exec and --cursor-file are for --name, the name of an event type")
	case c.Exec == "" && c.FailedFile != "":
		return fault.New(fault.Invalid, "--failed-file is for --exec")
	case c.Concurrency < 1 || c.Tries < 1 || c.Timeout <= 0:
		return fault.New(fault.Invalid, "--concurrency, --tries and --timeout must be positive")
	case followed && (c.Stream || c.Target != "" || c.ShowSecret || c.TTL != 0):
		return fault.New(fault.Invalid, "--mode %s does not go with --stream, nor with --target, --show-secret and --ttl, which are for webhooks", cmp.Or(c.Mode, "push"))
	case c.Mode == spec.ModePush && c.Revision != "2026-07-28":
		return fault.New(fault.Invalid, "--mode push is for revision 2026-07-28")
	case followed && c.Name == "":
		return fault.New(fault.Invalid, "--mode %s needs --name, the name of an event type", c.Mode)
	case events && c.Name == "":
		return fault.New(fault.Invalid, "--via events needs --name, the name of an event type")
	case events && len(c.URI) > 0:
		return fault.New(fault.Invalid, "--via events takes --name and --arg, not --uri")
	case c.Stream && c.Name != "":
		return fault.New(fault.Invalid, "--stream takes --uri, not --name; the stream of an event type is --mode push --name %s", c.Name)
	case !events && len(c.URI) == 0:
		return fault.New(fault.Invalid, "what to receive is missing: --uri, or the --name of an event type")
	case !events && c.Name != "":
		return fault.New(fault.Invalid, "--uri and --name do not go together: --name is an event type of the MCP Events extension (--via events)")
	case !events && (len(c.Arg) > 0 || c.TTL != 0):
		return fault.New(fault.Invalid, "--arg and --ttl are for --via events")
	case c.Cursor != "" && !events && (!c.Stream || c.Revision != "2026-07-28"):
		return fault.New(fault.Invalid, "--cursor is for --via events, and for --stream of revision 2026-07-28")
	case c.Stream && (c.Target != "" || c.ShowSecret):
		return fault.New(fault.Invalid, "--target and --show-secret are for webhooks, not for --stream")
	case c.Count < 0 || c.For < 0 || c.TTL < 0:
		return fault.New(fault.Invalid, "--count, --for and --ttl must not be negative")
	}
	return nil
}
