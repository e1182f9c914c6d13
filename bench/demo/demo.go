// Package demo is the command mcpevents demo. It shows the product in a few seconds, and uses package client as an application would.
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
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/bench/process"
	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

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

const (
	crashEvents     = 1000
	crashPublishers = 8
	crashAfter      = 100 // kill the server when this many of crashEvents have arrived in each of the four ways
)

// Options configure [Run].
type Options struct {
	Serve   []string      // the program and arguments that start a server; Run adds flags
	Agent   string        // name and version of the demo, which the server sees
	Timeout time.Duration // the longest time that the demo may take
	Out     io.Writer
	Log     *slog.Logger
}

// Run starts a server with its data in a temporary directory, subscribes in four ways, publishes one event, and prints when it arrives.
// Then it kills the server while 1,000 more events are published, and starts it again. Run returns an error unless all events arrive.
func Run(ctx context.Context, o Options) error {
	dir, err := os.MkdirTemp("", "mcpevents-demo-")
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "make a temporary directory")
	}
	defer func() { _ = os.RemoveAll(dir) }()
	catalog := filepath.Join(dir, "catalog.yaml")
	if err := os.WriteFile(catalog, []byte(demoCatalog), 0o600); err != nil {
		return fault.Wrap(fault.Unavailable, err, "write the catalog")
	}
	addrs, err := process.FreeAddresses(1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	d := &demo{options: o, url: "http://" + addrs[0], began: time.Now(), changed: make(chan struct{}, 1), failed: make(chan error, 4)}
	d.serve = append(o.Serve[:len(o.Serve):len(o.Serve)], "--addr", addrs[0], "--data", filepath.Join(dir, "data"), "--catalog", catalog,
		"--auth", "none", "--allow-insecure-targets") // the receivers are on this machine
	if d.server, err = d.start(ctx); err == nil {
		defer func() { d.server.Kill() }() // a clean end is unnecessary, because the data is temporary
		d.say("server", "serving %s/mcp, data in one SQLite file", d.url)
		err = d.run(ctx)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Unavailable, "the demo did not end within %s", o.Timeout)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return cmp.Or(err, fault.Wrap(fault.Unavailable, d.unwritten, "print"))
}

type demo struct {
	options Options
	url     string
	serve   []string // the program and all its arguments
	server  *process.Server
	ways    []*way
	changed chan struct{} // receives a value when an event has arrived
	failed  chan error    // receives the error of a subscription that has ended

	mu        sync.Mutex // guards the following fields, the map arrived of each way, and the output
	began     time.Time  // the moment from which times are printed
	sign      string     // printed before each time: empty at first, and + after beginPublishing
	unwritten error      // the first failure to print
}

type way struct {
	name, revision string
	does           string // what to print when the server has accepted the subscription
	options        client.SubscribeOptions
	arrived        map[string]bool // the ids of the events that have arrived
}

// start starts the server. It removes environment variables such as MCPEVENTS_AUTH, which would change how the server runs.
func (d *demo) start(ctx context.Context) (*process.Server, error) {
	cmd := exec.Command(d.serve[0], d.serve[1:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MCPEVENTS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stderr, os.Stderr // os/exec would open /dev/null for nil, which may not exist
	return process.Start(ctx, cmd, d.url)
}

func (d *demo) say(step, format string, args ...any) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	ms := float64(now.Sub(d.began).Microseconds()) / 1000
	d.print("%9s ms  %-18s %s\n", fmt.Sprintf("%s%.1f", d.sign, ms), step, fmt.Sprintf(format, args...))
}

func (d *demo) title(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.print("\n%s\n", text)
}

// beginPublishing prints a title. The times that the demo prints from then on count from this moment.
func (d *demo) beginPublishing(title string) {
	d.title(title)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.began, d.sign = time.Now(), "+"
}

// print prints a text. It stores the first error of a print in d.unwritten. The caller holds d.mu.
func (d *demo) print(format string, args ...any) {
	_, err := fmt.Fprintf(d.options.Out, format, args...)
	d.unwritten = cmp.Or(d.unwritten, err)
}

func (d *demo) run(ctx context.Context) error {
	d.title("Subscribing, in four ways")
	stream := client.SubscribeOptions{URIs: []string{demoParent}, Mode: client.ModePush}
	for _, w := range []*way{
		{
			name: "webhook, SEP-1803", revision: "2026-07-28", does: "resources/subscriptions/register " + demoURI,
			options: client.SubscribeOptions{URIs: []string{demoURI}, Mode: client.ModeWebhook},
		},
		{
			name: "webhook, Events", revision: "2026-07-28", does: "events/subscribe " + demoName + " owner=acme action=opened",
			options: client.SubscribeOptions{Name: demoName, Arguments: json.RawMessage(`{"owner":"acme","action":"opened"}`), Mode: client.ModeWebhook},
		},
		{name: "stream 2026-07-28", revision: "2026-07-28", does: "open, for all below " + demoParent, options: stream},
		{name: "stream 2025-11-25", revision: "2025-11-25", does: "open, for all below " + demoParent, options: stream},
	} {
		end, err := d.subscribe(ctx, w)
		if err != nil {
			return err
		}
		defer end()
	}
	if err := d.publishOne(ctx); err != nil {
		return err
	}
	if err := d.publishAndKill(ctx); err != nil {
		return err
	}
	d.title("One event reached two webhooks and two streams, and a server that was killed lost none of 1,000.")
	d.title("Next: start a server of your own. See https://github.com/mcp-events/mcpevents#a-first-event")
	return nil
}

// subscribe subscribes in one of the four ways, and records the arriving events until the returned function end is called.
func (d *demo) subscribe(ctx context.Context, w *way) (end func(), err error) {
	hooks := &client.Handler{Log: d.options.Log}
	stop := func() {}
	if w.options.Mode == client.ModeWebhook {
		if stop, err = hooks.Listen("127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	c, err := client.Connect(ctx, d.url, client.Options{Agent: d.options.Agent, Revision: w.revision, Webhooks: hooks, Log: d.options.Log})
	if err != nil {
		stop()
		return nil, err
	}
	w.arrived = map[string]bool{}
	w.options.Event = func(_ context.Context, e client.Event) error {
		d.record(w, e)
		return nil
	}
	sub, err := c.Subscribe(ctx, w.options)
	if err != nil {
		stop()
		return nil, err
	}
	d.ways = append(d.ways, w)
	d.say(w.name, "%s", w.does)
	if sub.ID() != "" {
		d.say("", "for %s, as %s", hooks.URL, sub.ID())
	}
	go func() {
		<-sub.Done()
		if err := sub.Err(); err != nil {
			d.failed <- err
		}
	}()
	return func() {
		_ = sub.Close() // d.failed receives its error
		_ = c.Close()
		stop()
	}, nil
}

// record records that an event has arrived in one of the four ways. It prints the first event of each way, and a message when all events
// have arrived in that way.
func (d *demo) record(w *way, e client.Event) {
	d.mu.Lock()
	before := len(w.arrived)
	w.arrived[e.ID] = true
	after := len(w.arrived)
	d.mu.Unlock()
	switch {
	case before == 0:
		d.say(w.name, "%s", describe(e))
	case before < after && after == 1+crashEvents:
		d.say(w.name, "all 1,000 arrived")
	}
	select {
	case d.changed <- struct{}{}:
	default: // an earlier value is still in the channel, and wakes the waiting goroutine
	}
}

func describe(e client.Event) string {
	var data struct {
		Action string `json:"action"`
	}
	_ = json.Unmarshal(e.Data, &data) // after an error, the action is printed as an empty text
	action := fmt.Sprintf("action %q", data.Action)
	if e.Verified != nil {
		return "POST received, signature verified, " + action
	}
	return "notifications/resources/updated, " + action
}

func (d *demo) publishOne(ctx context.Context) error {
	d.beginPublishing("Publishing one event")
	id := event.NewID()
	if err := d.publish(ctx, id); err != nil {
		return err
	}
	d.say("POST /events", "202, accepted and safe on disk: %s", id)
	return d.await(ctx, 1)
}

func (d *demo) publish(ctx context.Context, id string) error {
	p := client.Publisher{URL: d.url, Agent: d.options.Agent, Tries: 10}
	_, err := p.Publish(ctx, client.Event{URI: demoURI, ID: id, Data: json.RawMessage(demoData)})
	return err
}

// publishAndKill publishes events. It kills the server when some of them have arrived in each of the four ways, and starts the server
// again.
func (d *demo) publishAndKill(ctx context.Context) error {
	d.beginPublishing("Killing the server while 1,000 events are published")
	work, working := errgroup.WithContext(ctx)
	for range crashPublishers {
		work.Go(func() error {
			for range crashEvents / crashPublishers {
				if err := d.publish(working, event.NewID()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	work.Go(func() error {
		if err := d.await(working, 1+crashAfter); err != nil {
			return err
		}
		d.server.Kill()
		d.say("server", "killed with SIGKILL, in the middle of its work")
		server, err := d.start(working)
		if err != nil {
			return err
		}
		d.server = server
		d.say("server", "running again with the same SQLite file")
		return nil
	})
	if err := work.Wait(); err != nil {
		return err
	}
	d.say("POST /events", "202 for all 1,000; the publisher has repeated failed requests, with the same event ids")
	return d.await(ctx, 1+crashEvents)
}

// await waits until each of the four subscriptions has received n events.
func (d *demo) await(ctx context.Context, n int) error {
	for {
		missing := d.missing(n)
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-d.changed:
		case err := <-d.failed:
			return err
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "not all events arrived by: %s", strings.Join(missing, "; "))
		}
	}
}

// missing returns the names of the subscriptions that have received fewer than n events.
func (d *demo) missing(n int) (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.ways {
		if len(w.arrived) < n {
			names = append(names, w.name)
		}
	}
	return names
}
