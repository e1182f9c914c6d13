// Package listen implements the command mcpevents listen. It receives events with package client, and prints each event as a line of JSON
// or runs a command for it.
package listen

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/run"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// Options configure [Run].
type Options struct {
	// Agent is the name and version of the calling program, as in [client.Options]. URL and Key are the server's MCP endpoint and the API
	// key.
	URL, Key, Agent string
	Revision        string

	// URIs select events by URI. If Stream is true, the events arrive on a stream, and otherwise as webhooks of SEP-1803.
	URIs   []string
	Stream bool

	// Name is the event type to subscribe to with MCP Events. It is an alternative to URIs. Arguments is a JSON object. Mode is a mode of
	// package client. If it is empty, Run opens a stream or, if the server offers no streams, polls.
	Name      string
	Arguments json.RawMessage
	Mode      string
	TTL       time.Duration
	// OrFollow allows Run to open a stream, or to poll, in cases in which webhooks are impossible. In one case, the server refuses the
	// webhook. In the other case, the server runs on another machine and cannot reach the address Listen.
	OrFollow bool

	// Cursor is the position at which to begin if File does not exist yet.
	Cursor string
	// File is the name of the file for the cursor of a subscription to an event type. With a file, Run does not end a webhook
	// subscription at the server, so that the next run can continue it.
	File string

	// Listen is the address on this machine at which webhooks arrive. Target is the URL at which the server reaches this address. If it
	// is empty, Run uses the URL of Listen.
	Listen, Target string
	// Secret is where Run prints the webhook's secret. If it is nil, Run does not print the secret.
	Secret io.Writer

	// Run is the command to run for each event of the event type. Concurrency is how many commands run at the same time. If Run is nil,
	// events are printed.
	Run         *run.Command
	Concurrency int

	// Run ends after Count events or after the time For, whichever is first. 0 means no limit. If both limits are set and fewer events
	// than Count arrive in time, Run returns an error.
	Count int
	For   time.Duration

	Out io.Writer
	Log *slog.Logger
}

// leastPoll is the shortest time between two polls. It is short because a person watches the output.
const leastPoll = 100 * time.Millisecond

// Run receives events until ctx ends, or until it reaches the limit [Options.Count] or [Options.For].
func Run(ctx context.Context, o Options) error {
	if o.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.For)
		defer cancel()
	}
	ctx, full := context.WithCancel(ctx)
	defer full()
	p := &printer{out: o.Out, want: o.Count, full: full, via: o.Mode}
	err := o.receive(ctx, p)
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = nil
	}
	if err == nil && o.For > 0 && p.missing() > 0 {
		return fault.New(fault.Unavailable, "%d of %d events did not arrive within %s", p.missing(), o.Count, o.For)
	}
	return err
}

// receive subscribes, and receives events until the subscription ends. If webhooks are impossible and OrFollow is true, it uses a stream
// or polls.
func (o *Options) receive(ctx context.Context, p *printer) error {
	if o.OrFollow && !httpcall.IsLocal(o.URL) {
		_, err := o.withoutWebhooks().receiveOneWay(ctx, p, "the server runs on another machine and cannot reach this one (to receive webhooks, give the URL of a tunnel as --target)")
		return err
	}
	accepted, err := o.receiveOneWay(ctx, p, "")
	if accepted || !o.OrFollow || !isRefusal(err) {
		return err
	}
	_, err = o.withoutWebhooks().receiveOneWay(ctx, p, "the server refused a webhook to this machine: "+err.Error())
	return err
}

func (o *Options) withoutWebhooks() *Options {
	follow := *o
	follow.Stream = o.Name == ""
	follow.Mode = ""
	return &follow
}

// isRefusal reports whether err is a permanent refusal of a webhook. A subscription with a stream or polls may succeed then.
func isRefusal(err error) bool {
	if err == nil {
		return false
	}
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.Forbidden, fault.Unauthenticated, fault.Unprocessable, fault.Unsupported:
		return true
	}
	return false
}

// receiveOneWay subscribes in the mode of the options, and receives events until the subscription ends. It reports whether the server
// accepted the subscription. If the parameter noWebhooks is not empty, it is the reason why events do not arrive as webhooks, and
// receiveOneWay logs it.
func (o *Options) receiveOneWay(ctx context.Context, p *printer, noWebhooks string) (accepted bool, err error) {
	what := o.subscription(p)
	settings := client.Options{Key: o.Key, Agent: o.Agent, Revision: o.Revision, MinPoll: leastPoll, Log: o.Log}
	if o.File != "" {
		settings.Store = client.File(o.File)
	}
	if what.Mode == client.ModeWebhook {
		settings.Webhooks = &client.Handler{URL: o.Target, Log: o.Log}
		end, err := settings.Webhooks.Listen(o.Listen)
		if err != nil {
			return false, err
		}
		defer end()
	}
	c, err := client.Connect(ctx, o.URL, settings)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close() }()
	sub, err := c.Subscribe(ctx, what)
	if err != nil {
		return false, err
	}
	p.setMode(sub.Mode())
	if noWebhooks != "" {
		o.Log.Info("following without webhooks", "mode", sub.Mode(), "reason", noWebhooks)
	}
	switch {
	case settings.Webhooks != nil:
		via := "register"
		if o.Name != "" {
			via = "events"
		}
		o.Log.Info("receiving webhooks", "via", via, "subscription", sub.ID(), "target", settings.Webhooks.URL)
		if o.Secret != nil {
			fmt.Fprintln(o.Secret, "secret:", sub.Secret())
		}
	case o.Stream:
		o.Log.Info("stream open", "revision", o.Revision, "uris", o.URIs)
	}
	<-sub.Done()
	return true, sub.Err()
}

func (o *Options) subscription(p *printer) client.SubscribeOptions {
	s := client.SubscribeOptions{
		Cursor: o.Cursor,
		Event:  func(_ context.Context, e client.Event) error { return p.print(line{Event: e}) },
		Gap: func(_ context.Context, g client.Gap) error {
			return p.print(line{Event: client.Event{Via: p.mode(), Name: g.Name, Cursor: g.Cursor, Received: time.Now()}, Envelope: "gap"})
		},
	}
	if o.Name == "" {
		s.URIs, s.Mode, s.Gap = o.URIs, client.ModeWebhook, nil // without a function Gap, the client logs gaps
		if o.Stream {
			s.Mode = client.ModePush
		}
		return s
	}
	s.Name, s.Arguments, s.Mode, s.TTL, s.Concurrency = o.Name, o.Arguments, o.Mode, o.TTL, o.Concurrency
	s.Unsubscribe = o.File == "" // with a file, the next run continues the subscription
	if o.Run != nil {
		s.Gap = nil // without a function Gap, the client logs gaps
		s.Event = func(ctx context.Context, e client.Event) error {
			err := o.Run.Handle(ctx, e)
			if err == nil {
				p.count()
			}
			return err
		}
	}
	return s
}

type line struct {
	client.Event
	// Envelope is "gap" if this line of the output reports lost events. It is empty for an event.
	Envelope string `json:"envelope,omitempty"`
}

// printer prints each event as a line of JSON. It calls the function full after the wanted number of events.
type printer struct {
	mu   sync.Mutex
	out  io.Writer
	want int // 0 is no limit
	got  int
	via  string // the mode of the subscription
	full func()
}

func (p *printer) print(l line) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.Data) == 0 {
		l.Data = json.RawMessage("null")
	}
	b, err := json.Marshal(l)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "encode the event")
	}
	if _, err := p.out.Write(append(b, '\n')); err != nil {
		return fault.Wrap(fault.Internal, err, "print")
	}
	if l.Envelope == "" {
		p.counted()
	}
	return nil
}

func (p *printer) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted()
}

func (p *printer) counted() {
	if p.got++; p.got == p.want {
		p.full()
	}
}

// setMode sets the mode that lines about lost events show, for example "poll".
func (p *printer) setMode(mode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.via = mode
}

func (p *printer) mode() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.via
}

func (p *printer) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.want-p.got)
}

// Arguments converts the values of --arg to a JSON object. With =, a value is a string unless it is true or false, or begins with [ or {.
// With :=, a value is JSON, for example count:=5.
func Arguments(texts map[string]string) (json.RawMessage, error) {
	args := map[string]json.RawMessage{}
	for name, text := range texts {
		value, _ := json.Marshal(text)
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
