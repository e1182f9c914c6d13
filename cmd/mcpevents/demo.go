package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
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

// What the demo publishes, of the sample catalog.
const (
	demoName   = "github.pull_request"
	demoURI    = "event://github/acme/website/pull_request"
	demoParent = "event://github/acme"
	demoData   = `{"action":"opened","number":42,"pull_request":{"title":"Say hello to everybody","author":"ada","base":"main"}}`
)

// Run implements the command.
func (c *DemoCmd) Run(g *Globals) error {
	src, err := os.ReadFile(c.Catalog)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "read the catalog (run this where catalog.yaml is, or give --catalog)")
	}
	dir, err := os.MkdirTemp("", "mcpevents-demo-")
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "make a temporary directory")
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	if g.LogLevel == "debug" {
		log = g.logger(g.err)
	}
	d := &demo{out: g.out, log: log, began: time.Now(), arrived: make(chan arrival, 16)}
	limits := config.DefaultLimits()
	limits.AllowInsecureTargets = true // the receivers are on this machine
	srv, err := server.New(ctx, server.Options{
		Addr: "127.0.0.1:0", Data: dir, Catalog: src, CatalogName: c.Catalog, Auth: auth.ModeNone,
		Limits: limits, Log: log,
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
	d.remote = client.Server{URL: srv.URL, Agent: agent()}
	err = d.run(ctx)
	if ctx.Err() != nil && interrupted(err) {
		return fault.New(fault.Unavailable, "the demo did not end within %s", c.Timeout)
	}
	return err
}

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

// The four ways.
const (
	wayRegister = "webhook, SEP-1803"
	wayEvents   = "webhook, Events"
	wayModern   = "stream 2026-07-28"
	wayLegacy   = "stream 2025-11-25"
)

func (d *demo) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	caller, err := client.New(d.remote, mcpspec.V20260728)
	if err != nil {
		return err
	}
	d.title("Subscribing, in four ways")
	hooks, endHooks, err := d.hooks(ctx, caller)
	defer endHooks()
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	for _, way := range []string{wayModern, wayLegacy} {
		f, err := d.follower(way)
		if err != nil {
			return err
		}
		open := make(chan struct{})
		f.Opened = sync.OnceFunc(func() { close(open) })
		running.Go(func() {
			if err := f.Run(ctx); err != nil {
				failed <- err
			}
		})
		select {
		case <-open:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		d.say(way, "open, for all below %s", demoParent)
	}
	id := event.NewID()
	if err := d.publish(ctx, id); err != nil {
		return err
	}
	if err := d.await(ctx, id, failed); err != nil {
		return err
	}
	d.title("Ending")
	for _, h := range hooks {
		if err := h.End(ctx); err != nil {
			return err
		}
		d.say("ended", "%s", h.ID())
	}
	d.title("One event, published once, reached two webhooks and two streams.")
	return nil
}

// hooks registers the two webhooks.
func (d *demo) hooks(ctx context.Context, caller *client.Client) (hooks []client.Webhook, end func(), err error) {
	var receivers []*client.Receiver
	end = func() {
		for _, r := range receivers {
			r.Close()
		}
	}
	for _, way := range []string{wayRegister, wayEvents} {
		via := map[string]string{wayRegister: "register", wayEvents: "events"}[way]
		r, err := client.NewReceiver("127.0.0.1:0", via, d.taker(way), d.log)
		if err != nil {
			return nil, end, err
		}
		receivers = append(receivers, r)
		var h client.Webhook = &client.Registration{Client: caller, URIs: []string{demoURI}, Target: r.URL}
		if via == "events" {
			h = &client.EventsSubscription{
				Client: caller, Name: demoName, Arguments: json.RawMessage(`{"owner":"acme","action":"opened"}`), Target: r.URL, Key: client.NewSecret(),
			}
		}
		if err := h.Begin(ctx, r); err != nil {
			return nil, end, err
		}
		hooks = append(hooks, h)
		if via == "events" {
			d.say(way, "events/subscribe %s owner=acme action=opened", demoName)
			d.say("", "challenge answered at %s, subscription %s", r.URL, h.ID())
		} else {
			d.say(way, "resources/subscriptions/register %s", demoURI)
			d.say("", "for %s, as %s", r.URL, h.ID())
		}
	}
	return hooks, end, nil
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

func (d *demo) follower(way string) (*client.Stream, error) {
	version := mcpspec.V20260728
	if way == wayLegacy {
		version = mcpspec.V20251125
	}
	caller, err := client.New(d.remote, version)
	if err != nil {
		return nil, err
	}
	return &client.Stream{Client: caller, URIs: []string{demoParent}, Log: d.log, Event: d.taker(way)}, nil
}

func (d *demo) publish(ctx context.Context, id string) error {
	d.title("Publishing one event")
	url, err := d.remote.Endpoint("/events")
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"id": id, "uri": demoURI, "data": json.RawMessage(demoData)})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the event")
	}
	d.mu.Lock()
	d.published = time.Now()
	d.mu.Unlock()
	resp, answer, err := d.remote.Post(ctx, url, nil, body)
	if err != nil {
		return err
	}
	if resp.StatusCode != 202 {
		return client.Refusal(resp, answer)
	}
	d.say("POST /events", "202, accepted and safe on disk: %s", id)
	return nil
}

// await waits until the event has arrived everywhere, and tells it in order.
func (d *demo) await(ctx context.Context, id string, failed <-chan error) error {
	missing := []string{wayRegister, wayEvents, wayModern, wayLegacy}
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
