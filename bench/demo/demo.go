// Package demo shows one event going every way, with times: two webhooks and two streams, each subscribed
// to as an application would, by package client.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// What the demo publishes, and the event type of that.
const (
	demoName   = "github.pull_request"
	demoURI    = "event://github/acme/website/pull_request"
	demoParent = "event://github/acme"
	demoData   = `{"action":"opened","number":42,"pull_request":{"title":"Say hello to everybody","author":"ada","base":"main"}}`

	demoCatalog = `
events:
  - name: ` + demoName + `
    uriTemplate: event://github/{owner}/{repo}/pull_request
    title: Pull request changed
    filters: {action: /action}
    payloadSchema: {type: object, required: [action, number, pull_request]}
`
)

// Options say what is shown.
type Options struct {
	Agent   string        // what the demo calls itself to the server
	Timeout time.Duration // longest run
	Out     io.Writer
	Log     *slog.Logger
}

// Run starts a server in this process with its data in a temporary directory, subscribes in four ways,
// publishes one event and tells when it arrived where. It fails unless it arrived everywhere.
func Run(ctx context.Context, o Options) error {
	dir, err := os.MkdirTemp("", "mcpevents-demo-")
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "make a temporary directory")
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	d := &demo{out: o.Out, log: o.Log, began: time.Now(), arrived: make(chan arrival, 16)}
	limits := standalone.DefaultLimits()
	limits.AllowInsecureTargets = true // the receivers are on this machine
	srv, err := standalone.New(ctx, standalone.Options{
		Addr: "127.0.0.1:0", Data: dir, Catalog: []byte(demoCatalog), CatalogName: "the catalog of the demo", Auth: auth.ModeNone,
		Limits: limits, Log: o.Log,
	})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		_ = srv.Shutdown(last) // its data goes with it
	}()
	d.say("server", "serving %s and %s/events, one SQLite file in %s", srv.URL+"/mcp", srv.URL, dir)
	d.remote = client.Server{URL: srv.URL, Agent: o.Agent}
	err = d.run(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Unavailable, "the demo did not end within %s", o.Timeout)
	}
	return err
}

// endTimeout bounds the server's shutdown.
const endTimeout = 5 * time.Second

// demo is one run.
type demo struct {
	out    io.Writer
	log    *slog.Logger
	remote client.Server
	began  time.Time

	arrived   chan arrival
	mu        sync.Mutex // guards out and published
	published time.Time  // zero until it is
}

// arrival is the event at the end of one way.
type arrival struct {
	way string
	at  time.Time
	ev  client.Event
}

// say tells a step with its time: since the event was published, or before that
// since the start.
func (d *demo) say(step, format string, args ...any) { d.sayAt(time.Now(), step, format, args...) }

func (d *demo) sayAt(at time.Time, step, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, sign := d.began, " "
	if !d.published.IsZero() {
		since, sign = d.published, "+"
	}
	ms := float64(at.Sub(since).Microseconds()) / 1000
	fmt.Fprintf(d.out, "%9s ms  %-18s %s\n", fmt.Sprintf("%s%.1f", sign, ms), step, fmt.Sprintf(format, args...))
}

func (d *demo) title(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "\n%s\n", text)
}

func (d *demo) run(ctx context.Context) error {
	d.title("Subscribing, in four ways")
	var missing []string
	var ends []func()
	end := func() {
		for _, end := range ends {
			end()
		}
	}
	defer end()
	failed := make(chan error, 4)
	for _, way := range []struct {
		name    string
		version spec.Version
		receive func(ctx context.Context, caller *client.Client, way string, open func()) error // until ctx ends
	}{
		{"webhook, SEP-1803", spec.V20260728, d.register},
		{"webhook, Events", spec.V20260728, d.subscribe},
		{"stream 2026-07-28", spec.V20260728, d.stream},
		{"stream 2025-11-25", spec.V20251125, d.stream},
	} {
		caller, err := client.New(d.remote, way.version)
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(ctx)
		open, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			if err := way.receive(ctx, caller, way.name, func() { close(open) }); err != nil {
				failed <- err
			}
		}()
		ends = append(ends, func() { stop(); <-done })
		select {
		case <-open:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		missing = append(missing, way.name)
	}
	id := event.NewID()
	if err := d.publish(ctx, id); err != nil {
		return err
	}
	if err := d.await(ctx, id, missing, failed); err != nil {
		return err
	}
	d.title("Ending")
	end()
	select {
	case err := <-failed:
		return err
	default:
	}
	d.title("One event, published once, reached two webhooks and two streams.")
	return nil
}

// register receives by a webhook of SEP-1803.
func (d *demo) register(ctx context.Context, caller *client.Client, way string, open func()) error {
	r, err := client.NewReceiver("127.0.0.1:0", d.taker(way), d.log)
	if err != nil {
		return err
	}
	defer r.Close()
	s := &client.Registration{Client: caller, URIs: []string{demoURI}, Target: r.URL}
	err = client.Hold(ctx, caller, s, r, func() {
		d.say(way, "resources/subscriptions/register %s", demoURI)
		d.say("", "for %s, as %s", r.URL, s.ID())
		open()
	}, d.log)
	d.say("ended", "%s", s.ID())
	return err
}

// subscribe receives by a webhook of MCP Events.
func (d *demo) subscribe(ctx context.Context, caller *client.Client, way string, open func()) error {
	caller.Webhooks = &client.Handler{Log: d.log}
	end, err := caller.Webhooks.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer end()
	id, taken := "", d.taker(way)
	err = caller.Subscribe(ctx, client.Subscription{
		Name: demoName, Arguments: json.RawMessage(`{"owner":"acme","action":"opened"}`), Mode: client.ModeWebhook,
		Begun: func(b client.Begun) {
			id = b.ID
			d.say(way, "events/subscribe %s owner=acme action=opened", demoName)
			d.say("", "challenge answered at %s, subscription %s", caller.Webhooks.URL, id)
			open()
		},
		Event: func(_ context.Context, e client.Event) error { return taken(e) },
	})
	d.say("ended", "%s", id)
	return err
}

// stream receives from an open stream.
func (d *demo) stream(ctx context.Context, caller *client.Client, way string, open func()) error {
	s := &client.Stream{Client: caller, URIs: []string{demoParent}, Log: d.log, Event: d.taker(way), Opened: sync.OnceFunc(func() {
		d.say(way, "open, for all below %s", demoParent)
		open()
	})}
	return s.Run(ctx)
}

func (d *demo) taker(way string) func(client.Event) error {
	return func(r client.Event) error {
		select {
		case d.arrived <- arrival{way, time.Now(), r}:
		default: // more than one event's worth; the demo has ended or is about to say so
		}
		return nil
	}
}

func (d *demo) publish(ctx context.Context, id string) error {
	d.title("Publishing one event")
	d.mu.Lock()
	d.published = time.Now()
	d.mu.Unlock()
	p := client.Publisher{Server: d.remote, URI: demoURI, ID: id}
	if err := p.Publish(ctx, strings.NewReader(demoData)); err != nil {
		return err
	}
	d.say("POST /events", "202, accepted and safe on disk: %s", id)
	return nil
}

// await waits until the event has arrived by all ways, and shows it in order.
func (d *demo) await(ctx context.Context, id string, missing []string, failed <-chan error) error {
	for len(missing) > 0 {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "the event did not arrive by: %s", strings.Join(missing, "; "))
		case a := <-d.arrived:
			i := slices.Index(missing, a.way)
			if i < 0 {
				continue
			}
			if a.ev.ID != id {
				return fault.New(fault.Internal, "%s brought the event %q, want %q", a.way, a.ev.ID, id)
			}
			missing = slices.Delete(missing, i, i+1)
			d.sayAt(a.at, a.way, "%s", account(a.ev))
		}
	}
	return nil
}

// account says what arrived.
func account(r client.Event) string {
	var action struct {
		Action string `json:"action"`
	}
	_ = json.Unmarshal(r.Data, &action) // only for show
	what := fmt.Sprintf("action %q", action.Action)
	if r.Verified != nil {
		return fmt.Sprintf("POST received, signature verified, webhook-id %s, %s", r.ID, what)
	}
	return fmt.Sprintf("notifications/resources/updated %s, %s", r.URI, what)
}
