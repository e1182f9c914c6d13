// Package listen is the command of the same name: it receives events in one of the ways of package client, and prints
// each as a line of JSON, or runs a command for it.
package listen

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/run"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Options say what to receive, how, and what to do with it.
type Options struct {
	Server   client.Server
	Revision spec.Version

	// URIs are what to receive: by webhooks of SEP-1803, or from an open stream if Stream is set.
	URIs   []string
	Stream bool

	// Name is an event type to receive instead (MCP Events); Arguments is an object. Mode is one of package client, or
	// empty for the best without a webhook.
	Name      string
	Arguments json.RawMessage
	Mode      string
	TTL       time.Duration

	// Cursor is where to begin; with File only if that does not exist yet.
	Cursor string
	// File keeps the cursor of Name; empty keeps it nowhere. With a file, a webhook subscription of Name stays at the end.
	File string

	// Listen is the address of the receiver of webhooks, Target the URL at which the server reaches it; empty is that
	// address.
	Listen, Target string
	// Secret is where to print the webhook's secret; nil prints it nowhere.
	Secret io.Writer

	// Run is run for each event of Name, for up to Concurrency at once; nil prints events.
	Run         *run.Command
	Concurrency int

	// Count ends after so many events, For after a time; 0 is no end. With both, too few events are an error.
	Count int
	For   time.Duration

	Out io.Writer
	Log *slog.Logger
}

// Run receives until ctx ends, or as Options say.
func Run(ctx context.Context, o Options) error {
	caller, err := client.New(o.Server, o.Revision)
	if err != nil {
		return err
	}
	if o.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.For)
		defer cancel()
	}
	ctx, full := context.WithCancel(ctx)
	defer full()
	p := newPrinter(o.Out, o.Count, full)
	caller.Log = o.Log
	switch {
	case o.Name != "":
		err = o.subscribe(ctx, caller, p)
	case o.Stream:
		err = o.follow(ctx, caller, p)
	default:
		err = o.receive(ctx, caller, p)
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = nil
	}
	if err == nil && o.For > 0 && p.missing() > 0 {
		return fault.New(fault.Unavailable, "%d of %d events did not arrive within %s", p.missing(), o.Count, o.For)
	}
	return err
}

// follow reads a stream of URIs.
func (o *Options) follow(ctx context.Context, caller *client.Client, p *printer) error {
	f := &client.Stream{
		Client: caller, URIs: o.URIs, Cursor: o.Cursor, Log: o.Log, Event: p.print,
		Opened: func() { o.Log.Info("stream open", "revision", o.Revision, "uris", o.URIs) },
	}
	return f.Run(ctx)
}

// receive runs a receiver, and registers it for URIs.
func (o *Options) receive(ctx context.Context, caller *client.Client, p *printer) error {
	r, err := client.NewReceiver(o.Listen, p.print, o.Log)
	if err != nil {
		return err
	}
	defer r.Close()
	s := &client.Registration{Client: caller, URIs: o.URIs, Target: cmp.Or(o.Target, r.URL)}
	return client.Hold(ctx, caller, s, r, func() { o.receiving("register", s.ID(), s.Target, s.Secret()) }, o.Log)
}

func (o *Options) receiving(via, subscription, target, secret string) {
	o.Log.Info("receiving webhooks", "via", via, "subscription", subscription, "target", target)
	if o.Secret != nil {
		fmt.Fprintln(o.Secret, "secret:", secret)
	}
}

// subscribe receives an event type.
func (o *Options) subscribe(ctx context.Context, caller *client.Client, p *printer) error {
	if o.File != "" {
		caller.Store = client.File(o.File)
	}
	caller.MinPoll = leastPoll
	s := client.Subscription{
		Name: o.Name, Arguments: o.Arguments, Mode: o.Mode, TTL: o.TTL, Cursor: o.Cursor, Concurrency: o.Concurrency,
		Unsubscribe: o.File == "", // with a file, another run continues, or has already begun to
		Event:       func(_ context.Context, e client.Event) error { return p.print(e) },
		Gap: func(_ context.Context, g client.Gap) error {
			return p.print(client.Event{Via: o.Mode, Envelope: "gap", Name: g.Name, Cursor: g.Cursor, Received: time.Now()})
		},
	}
	if o.Run != nil {
		s.Gap = nil // it is logged
		s.Event = func(ctx context.Context, e client.Event) error {
			err := o.Run.Handle(ctx, e)
			if err == nil {
				p.count()
			}
			return err
		}
	}
	if o.Mode == client.ModeWebhook {
		caller.Webhooks = &client.Handler{URL: o.Target, Log: o.Log}
		end, err := caller.Webhooks.Listen(o.Listen)
		if err != nil {
			return err
		}
		defer end()
		s.Begun = func(b client.Begun) { o.receiving("events", b.ID, caller.Webhooks.URL, b.Secret) }
	}
	if err := caller.Begin(ctx); err != nil {
		return err
	}
	defer caller.End(ctx)
	return caller.Subscribe(ctx, s)
}

// leastPoll is the shortest time between two polls: who starts a command looks at what it does.
const leastPoll = 100 * time.Millisecond
