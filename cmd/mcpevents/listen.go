package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// ListenCmd receives events until it is interrupted.
type ListenCmd struct {
	Remote
	Stream   bool     `help:"Read a stream instead of receiving webhooks."`
	Revision string   `default:"2026-07-28" enum:"2025-03-26,2025-06-18,2025-11-25,2026-07-28" help:"Revision of MCP to speak: ${enum}."`
	Via      string   `default:"register" enum:"register,events" help:"How to ask for webhooks: register (SEP-1803, with --uri) or events (the MCP Events extension, with --name and --arg). --name alone means events."`
	URI      []string `name:"uri" sep:"none" placeholder:"event://…" help:"What to receive: an event's URI, a parent of several, or a template with * for variables. May be repeated."`

	Mode string `default:"webhook" enum:"webhook,poll,push" help:"How to receive with --name: ${enum}. Anything but webhook implies --via events."`

	Name   string            `placeholder:"NAME" help:"With --via events: name of the event type."`
	Arg    map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"With --via events: an argument, which binds a variable or filters. A list, an object, true and false are read as JSON, anything else as text; NAME:=JSON always reads JSON. May be repeated."`
	TTL    time.Duration     `name:"ttl" help:"With --via events: lifetime to ask for; it is refreshed in time. By default the server decides."`
	Cursor string            `placeholder:"CURSOR" help:"Continue from this cursor, which an earlier run printed (--stream of 2026-07-28, --via events in any mode)."`

	Listen string `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address of the receiver for webhooks (${default}: any free port)."`
	Target string `placeholder:"URL" help:"URL at which the server reaches the receiver, such as that of a tunnel. By default the address of --listen, for a server on this machine."`

	Count      int           `placeholder:"N" help:"End after N events."`
	For        time.Duration `placeholder:"TIME" help:"End after this time. With --count, it is a failure (exit code 5) if the count is not reached by then."`
	ShowSecret bool          `help:"Print the webhook's secret to standard error."`
}

// Help is the long help of the command.
func (c *ListenCmd) Help() string {
	return `Registers a webhook, answers the challenge, verifies every signature, prints each event as one line of JSON, and deregisters at the end (SIGINT, SIGTERM, --count, --for). With --stream it opens a stream instead, and goes on without a gap after a disconnect; so does --mode push for one event type, and --mode poll asks again and again.

A server that is not run with --allow-insecure-targets only sends to public https addresses: give that of a tunnel as --target.

Examples:
  mcpevents listen --uri event://ci/build-finished
  mcpevents listen --name github.pull_request --arg owner=acme --arg 'action=["opened","merged"]'
  mcpevents listen --mode poll --name incident.created --arg severity=critical
  mcpevents listen --stream --uri event://github/acme`
}

// Run implements the command.
func (c *ListenCmd) Run(g *Globals) error {
	caller, err := client.New(c.Remote.server(), mcpspec.Version(c.Revision))
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	if c.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.For)
		defer cancel()
	}
	ctx, full := context.WithCancel(ctx)
	defer full()
	p := newPrinter(g.out, c.Count, full)
	log := g.logger(g.err)
	caller.Log = log
	switch {
	case c.Mode != mcpspec.ModeWebhook:
		err = c.occurrences(ctx, caller, p, log)
	case c.Stream:
		err = c.follow(ctx, caller, p, log)
	default:
		err = c.receive(ctx, g, caller, p, log)
	}
	if ctx.Err() != nil && interrupted(err) {
		err = nil
	}
	if err == nil && c.For > 0 && p.missing() > 0 {
		return fault.New(fault.Unavailable, "%d of %d events did not arrive within %s", p.missing(), c.Count, c.For)
	}
	return err
}

// Validate refuses flags that do not go together, and takes --name alone for --via events.
func (c *ListenCmd) Validate() error {
	followed := c.Mode != mcpspec.ModeWebhook         // without a webhook
	if c.Name != "" && len(c.URI) == 0 && !c.Stream { // an event type has a name in the extension alone
		c.Via = client.ViaEvents
	}
	events := (c.Via == "events" || followed) && !c.Stream
	switch {
	case followed && (c.Stream || c.Target != "" || c.ShowSecret || c.TTL != 0):
		return fault.New(fault.Invalid, "--mode %s does not go with --stream, nor with --target, --show-secret and --ttl, which are for webhooks", c.Mode)
	case c.Mode == mcpspec.ModePush && c.Revision != "2026-07-28":
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

// occurrences follows one event type by polls or streams.
func (c *ListenCmd) occurrences(ctx context.Context, caller *client.Client, p *printer, log *slog.Logger) error {
	args, err := arguments(c.Arg)
	if err != nil {
		return err
	}
	f := &client.Follower{Client: caller, Name: c.Name, Arguments: args, Cursor: c.Cursor, Log: log, Event: p.print}
	return f.Run(ctx, c.Mode)
}

// follow reads a stream.
func (c *ListenCmd) follow(ctx context.Context, caller *client.Client, p *printer, log *slog.Logger) error {
	f := &client.Stream{
		Client: caller, URIs: c.URI, Cursor: c.Cursor, Log: log, Event: p.print,
		Opened: func() { log.Info("stream open", "revision", c.Revision, "uris", c.URI) },
	}
	return f.Run(ctx)
}

// receive runs a webhook receiver and the subscription that feeds it.
func (c *ListenCmd) receive(ctx context.Context, g *Globals, caller *client.Client, p *printer, log *slog.Logger) error {
	args, err := arguments(c.Arg)
	if err != nil {
		return err
	}
	r, err := client.NewReceiver(c.Listen, c.Via, p.print, log)
	if err != nil {
		return err
	}
	defer r.Close()
	target := cmp.Or(c.Target, r.URL)
	var s client.Webhook = &client.Registration{Client: caller, URIs: c.URI, Target: target}
	if c.Via == client.ViaEvents {
		s = &client.EventsSubscription{
			Client: caller, Name: c.Name, Arguments: args, Target: target, TTL: c.TTL, Cursor: c.Cursor, Key: client.NewSecret(),
		}
	}
	return client.Hold(ctx, caller, s, r, func() {
		log.Info("receiving webhooks", "via", c.Via, "subscription", s.ID(), "target", target)
		if c.ShowSecret {
			fmt.Fprintln(g.err, "secret:", s.Secret())
		}
	}, log)
}

// arguments turns the texts of --arg into JSON.
func arguments(texts map[string]string) (json.RawMessage, error) {
	args := map[string]json.RawMessage{}
	for name, text := range texts {
		value, _ := json.Marshal(text)               // a string
		name, asJSON := strings.CutSuffix(name, ":") // NAME:=5
		if asJSON || text == "true" || text == "false" || text != "" && (text[0] == '[' || text[0] == '{') {
			value = []byte(text)
		}
		if !json.Valid(value) {
			return nil, fault.New(fault.Invalid, "--arg %s: the value begins like JSON but is not valid JSON", name)
		}
		args[name] = value
	}
	b, err := json.Marshal(args)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "--arg")
	}
	return b, nil
}
