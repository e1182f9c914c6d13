package main

import (
	"cmp"
	"time"

	"github.com/mcp-events/mcpevents/client/listen"
	runs "github.com/mcp-events/mcpevents/client/run"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type ListenCmd struct {
	Remote
	Stream   bool     `help:"With --uri: read a stream instead of receiving webhooks."`
	Revision string   `default:"2026-07-28" enum:"2025-03-26,2025-06-18,2025-11-25,2026-07-28" help:"Revision of MCP to speak: ${enum}."`
	Via      string   `default:"" enum:",register,events" placeholder:"HOW" help:"Subscribe with a webhook in this way: register (SEP-1803, with --uri) or events (MCP Events, with --name and --arg). Default: the one that fits --uri or --name."`
	URI      []string `name:"uri" sep:"none" placeholder:"event://…" help:"URI of the events to receive: of an event, of a parent of several, or a template with * for variables. May be repeated."`

	Mode string `enum:",webhook,poll,push" default:"" help:"With --name: how to receive: webhook, poll or push (a stream). Default: webhook if the server can reach this machine, and otherwise push or poll, whichever the event type offers. With --exec and without --target: push or poll."`

	Name   string            `placeholder:"NAME" help:"Name of the event type to receive."`
	Arg    map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"With --name: an argument that binds a variable or filters events. Lists, objects, true and false are read as JSON, all other values as text; NAME:=JSON always reads JSON. May be repeated."`
	TTL    time.Duration     `name:"ttl" help:"With --name: requested lifetime of the webhook subscription, which is refreshed in time. Default: the server decides."`
	Cursor string            `placeholder:"CURSOR" help:"Continue from this cursor, which an earlier run printed. For --name, and for --stream with revision 2026-07-28."`

	Exec        string        `placeholder:"COMMAND" help:"With --name: run this command for each event instead of printing the event. The command gets the event as JSON on standard input, and EVENT_ID, EVENT_NAME, EVENT_TIME, EVENT_URI, EVENT_SUBSCRIPTION and EVENT_CURSOR in its environment. Exit code 0 acknowledges the event. After any other the command runs again, with growing pauses."`
	CursorFile  string        `placeholder:"FILE" help:"With --name: keep the cursor in this file and continue from it. It moves past an event when the event is printed, or when the command of --exec has acknowledged it. Use a different file for each listen."`
	Concurrency int           `default:"1" placeholder:"N" help:"With --exec: how many commands run concurrently (${default}). 1 keeps the order of events."`
	Timeout     time.Duration `default:"10m" help:"With --exec: time after which a command is ended and counts as failed."`
	Tries       int           `default:"5" placeholder:"N" help:"With --failed-file: how often the command runs for an event (${default})."`
	FailedFile  string        `placeholder:"FILE" help:"With --exec: after --tries failures, append the event to this file as a line of JSON and continue with the next event. Without it, the command runs until it succeeds."`

	Listen string `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address on which webhooks are received (${default}: any free port)."`
	Target string `placeholder:"URL" help:"URL at which the server reaches --listen, for example the URL of a tunnel. Default: the address of --listen, for a server on this machine."`

	Count      int           `placeholder:"N" help:"End after N events."`
	For        time.Duration `placeholder:"TIME" help:"End after this time. With --count, exit with code 5 if fewer events have arrived by then."`
	ShowSecret bool          `help:"Print the webhook's secret to standard error."`
}

func (c *ListenCmd) Help() string {
	return `Prints each event as a line of JSON, until SIGINT, SIGTERM, --count or --for ends it.

If the server runs on this machine and may send webhooks to it (--allow-insecure-targets), listen subscribes with a webhook: it answers the server's challenge, verifies every signature, and unsubscribes when it ends. With --cursor-file the subscription stays until it expires, so that the next run continues it.

Any other server cannot reach this machine, so listen reads a stream or polls, and says so. These need no public URL, and they continue after an interruption without a gap. To choose one, use --mode push or --mode poll (for --name) or --stream (for --uri).

To receive webhooks from a server elsewhere, use a tunnel, and give its public https URL as --target.

Examples:
  mcpevents listen --uri event://ci/build-finished
  mcpevents listen --name github.pull_request --arg owner=acme --arg 'action=["opened","merged"]'
  mcpevents listen --mode poll --name incident.created --arg severity=critical
  mcpevents listen --stream --uri event://github/acme
  mcpevents listen --name incident.created --cursor-file incidents.cursor --exec ./on-incident`
}

const anyPort = "127.0.0.1:0"

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
		o.OrFollow = c.Via == "" && c.Listen == anyPort && c.Target == "" && c.TTL == 0 && !c.ShowSecret && !c.Stream
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

func (c *ListenCmd) Validate() error {
	// followed is true if the command receives events of MCP Events on a stream or with polls. It then needs no webhook.
	followed := c.Mode != "" && c.Mode != spec.ModeWebhook || c.Mode == "" && c.Exec != "" && c.Target == ""
	named := c.Name != "" && len(c.URI) == 0 // only MCP Events has names of event types
	events := (c.Via == "events" || named || followed) && !c.Stream
	switch {
	case c.Name == "" && (c.Exec != "" || c.CursorFile != ""):
		return fault.New(fault.Invalid, "--exec and --cursor-file need --name, the name of an event type")
	case c.Exec == "" && c.FailedFile != "":
		return fault.New(fault.Invalid, "--failed-file needs --exec")
	case c.Concurrency < 1 || c.Tries < 1 || c.Timeout <= 0:
		return fault.New(fault.Invalid, "--concurrency, --tries and --timeout must be positive")
	case followed && (c.Stream || c.Target != "" || c.ShowSecret || c.TTL != 0):
		return fault.New(fault.Invalid, "--mode %s cannot be combined with --stream, or with --target, --show-secret and --ttl, which are for webhooks", cmp.Or(c.Mode, "push"))
	case c.Mode == spec.ModePush && c.Revision != "2026-07-28":
		return fault.New(fault.Invalid, "--mode push needs --revision 2026-07-28")
	case followed && c.Name == "":
		return fault.New(fault.Invalid, "--mode %s needs --name, the name of an event type", c.Mode)
	case events && c.Name == "":
		return fault.New(fault.Invalid, "--via events needs --name, the name of an event type")
	case events && len(c.URI) > 0:
		return fault.New(fault.Invalid, "--via events needs --name and cannot be combined with --uri")
	case c.Stream && c.Name != "":
		return fault.New(fault.Invalid, "--stream needs --uri; for the stream of an event type, use --mode push --name %s", c.Name)
	case !events && len(c.URI) == 0:
		return fault.New(fault.Invalid, "--name or --uri is missing: give the event type or the URI of the events")
	case !events && c.Name != "":
		return fault.New(fault.Invalid, "--uri and --name cannot be combined: use --uri for URIs, or --name for an event type")
	case !events && (len(c.Arg) > 0 || c.TTL != 0):
		return fault.New(fault.Invalid, "--arg and --ttl need --name, the name of an event type")
	case c.Cursor != "" && !events && (!c.Stream || c.Revision != "2026-07-28"):
		return fault.New(fault.Invalid, "--cursor needs --name, or --stream with revision 2026-07-28")
	case c.Stream && (c.Target != "" || c.ShowSecret):
		return fault.New(fault.Invalid, "--target and --show-secret are for webhooks, not for --stream")
	case c.Count < 0 || c.For < 0 || c.TTL < 0:
		return fault.New(fault.Invalid, "--count, --for and --ttl must not be negative")
	}
	return nil
}
