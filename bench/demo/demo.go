// Package demo publishes one event and prints when it arrives at two webhooks and two streams. It subscribes with package client, as an
// application would.
package demo

import (
	"cmp"
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
)

// The event that the demo publishes, and a catalog with its event type.
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

// Options configure [Run].
type Options struct {
	Agent   string        // what the demo calls itself to the server
	Timeout time.Duration // longest run
	Out     io.Writer
	Log     *slog.Logger
}

// Run starts a server in this process with its data in a temporary directory, subscribes in four ways, publishes one event, and
// prints when the event arrives at each subscription. Run returns an error unless the event arrives at all of them.
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
		_ = srv.Shutdown(last) // a failure is harmless, because the data is temporary
	}()
	d.say("server", "serving %s/mcp, data in one SQLite file", srv.URL)
	d.url, d.agent = srv.URL, o.Agent
	err = d.run(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Unavailable, "the demo did not end within %s", o.Timeout)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return cmp.Or(err, fault.Wrap(fault.Unavailable, d.unwritten, "print"))
}

// endTimeout limits how long the server's shutdown may take.
const endTimeout = 5 * time.Second

// demo is the state of one call of [Run].
type demo struct {
	out   io.Writer
	log   *slog.Logger
	url   string
	agent string
	began time.Time

	arrived   chan arrival
	mu        sync.Mutex // guards the following fields and out
	published time.Time  // when the event was published; zero before that
	unwritten error      // the first failure to write to out
}

// arrival records that an event arrived at the subscription with the name way.
type arrival struct {
	way string
	at  time.Time
	ev  client.Event
}

// say prints a step of the demo and its time: the time since the event was published or, before that, the time since the demo began.
func (d *demo) say(step, format string, args ...any) { d.sayAt(time.Now(), step, format, args...) }

func (d *demo) sayAt(at time.Time, step, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, sign := d.began, " "
	if !d.published.IsZero() {
		since, sign = d.published, "+"
	}
	ms := float64(at.Sub(since).Microseconds()) / 1000
	d.print("%9s ms  %-18s %s\n", fmt.Sprintf("%s%.1f", sign, ms), step, fmt.Sprintf(format, args...))
}

func (d *demo) title(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.print("\n%s\n", text)
}

// print writes to the output and keeps the first error. The caller holds d.mu.
func (d *demo) print(format string, args ...any) {
	_, err := fmt.Fprintf(d.out, format, args...)
	d.unwritten = cmp.Or(d.unwritten, err)
}

func (d *demo) run(ctx context.Context) error {
	d.title("Subscribing, in four ways")
	var missing []string
	var ends []func()
	end := sync.OnceFunc(func() {
		for _, end := range ends {
			end()
		}
	})
	defer end()
	failed := make(chan error, 4)
	stream := client.SubscribeOptions{URIs: []string{demoParent}, Mode: client.ModePush}
	for _, w := range []way{
		{
			"webhook, SEP-1803", "2026-07-28", "resources/subscriptions/register " + demoURI,
			client.SubscribeOptions{URIs: []string{demoURI}, Mode: client.ModeWebhook},
		},
		{
			"webhook, Events", "2026-07-28", "events/subscribe " + demoName + " owner=acme action=opened",
			client.SubscribeOptions{Name: demoName, Arguments: json.RawMessage(`{"owner":"acme","action":"opened"}`), Mode: client.ModeWebhook},
		},
		{"stream 2026-07-28", "2026-07-28", "open, for all below " + demoParent, stream},
		{"stream 2025-11-25", "2025-11-25", "open, for all below " + demoParent, stream},
	} {
		end, err := d.subscribe(ctx, w, failed)
		if err != nil {
			return err
		}
		ends = append(ends, end)
		missing = append(missing, w.name)
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

// way is one of the four ways in which the demo receives the event.
type way struct {
	name, revision string
	does           string // what to print when the server has accepted the subscription
	options        client.SubscribeOptions
}

// subscribe subscribes in one way and receives events until the caller calls end. If the subscription ends with an error, subscribe
// sends the error to the channel failed.
func (d *demo) subscribe(ctx context.Context, w way, failed chan<- error) (end func(), err error) {
	hooks := &client.Handler{Log: d.log}
	stop := func() {}
	if w.options.Mode == client.ModeWebhook {
		if stop, err = hooks.Listen("127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	c, err := client.Connect(ctx, d.url, client.Options{Agent: d.agent, Revision: w.revision, Webhooks: hooks, Log: d.log})
	if err != nil {
		stop()
		return nil, err
	}
	w.options.Event = func(_ context.Context, e client.Event) error {
		select {
		case d.arrived <- arrival{w.name, time.Now(), e}:
		default: // the channel is full, so more than one event has arrived; the demo needs only one
		}
		return nil
	}
	sub, err := c.Subscribe(ctx, w.options)
	if err != nil {
		stop()
		return nil, err
	}
	d.say(w.name, "%s", w.does)
	if sub.ID() != "" {
		d.say("", "for %s, as %s", hooks.URL, sub.ID())
	}
	go func() {
		<-sub.Done()
		if err := sub.Err(); err != nil {
			failed <- err
		}
	}()
	return func() {
		_ = sub.Close() // its error is in failed
		_ = c.Close()
		stop()
		if sub.ID() != "" {
			d.say("ended", "%s", sub.ID())
		}
	}, nil
}

func (d *demo) publish(ctx context.Context, id string) error {
	d.title("Publishing one event")
	d.mu.Lock()
	d.published = time.Now()
	d.mu.Unlock()
	p := client.Publisher{URL: d.url, Agent: d.agent}
	if _, err := p.Publish(ctx, client.Event{URI: demoURI, ID: id, Data: json.RawMessage(demoData)}); err != nil {
		return err
	}
	d.say("POST /events", "202, accepted and safe on disk: %s", id)
	return nil
}

// await waits until the event has arrived at each of the missing subscriptions, and prints each arrival. It fails if a subscription ends
// with an error, or when ctx ends.
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

// account describes a received event for the output.
func account(r client.Event) string {
	var action struct {
		Action string `json:"action"`
	}
	_ = json.Unmarshal(r.Data, &action) // only for show
	what := fmt.Sprintf("action %q", action.Action)
	if r.Verified != nil {
		return "POST received, signature verified, " + what
	}
	return "notifications/resources/updated, " + what
}
