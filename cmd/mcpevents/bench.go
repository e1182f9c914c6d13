package main

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/bench"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

type BenchCmd struct {
	Events      int           `default:"20000" help:"Events to publish."`
	Batch       int           `default:"1" help:"Events per publish request."`
	Publishers  int           `default:"16" help:"Number of connections that publish."`
	Rate        int           `help:"Events per second; 0 publishes as fast as the server accepts them."`
	URIs        int           `name:"uris" default:"1" help:"Number of URIs over which the events are spread."`
	Subscribers int           `default:"1" help:"Number of webhook subscriptions per URI, each with its own endpoint."`
	Payload     int           `default:"500" help:"Size of an event's data in bytes."`
	Hang        int           `placeholder:"N" help:"Measure twice: without and with N endpoints that never answer. Each subscribes to every URI."`
	HangOrigin  bool          `help:"Give each endpoint of --hang its own origin."`
	AnswerDelay time.Duration `placeholder:"DURATION" help:"How long each endpoint takes to answer, e.g. 1500ms."`
	Client      string        `default:"own" enum:"own,net/http" help:"HTTP code of the publishers and the receiver: own uses little CPU time, net/http is Go's and allows comparisons with other programs."`
	Latency     bool          `help:"Publish one event at a time, each after the previous one has arrived everywhere; at most 2,000 events."`

	JSON       string   `placeholder:"FILE" help:"Write the results as JSON to this file, or with - to standard output."`
	SVG        string   `placeholder:"FILE" help:"Write a chart of the delivery times to this file."`
	CPUProfile string   `name:"cpu-profile" placeholder:"FILE" help:"Write a CPU profile of the server's first ten seconds to this file."`
	Adapter    []string `placeholder:"FILE" help:"Then measure another sender with the same receiver. The file (YAML or JSON) describes how to run it; docs/internals/benchmarks.md has an example."`

	Server   string        `placeholder:"URL" help:"Measure this server instead of starting one. Its CPU time and memory are then unknown."`
	Key      string        `help:"With --server: the key or token of a principal that may publish and subscribe."`
	Receiver string        `default:"127.0.0.1:0" placeholder:"ADDR" help:"Address on which webhooks are received."`
	Data     string        `placeholder:"DIR" help:"Directory for the server's database. Default: a temporary directory."`
	Timeout  time.Duration `default:"10m" help:"Time limit of the benchmark."`
	Wait     time.Duration `default:"60s" help:"How long to wait for deliveries after the last publish. Deliveries that have not arrived by then count as lost."`

	Source        bool   `help:"Instead, measure a source: signed GitHub requests of 1 KB and of 20 KB in turn."`
	StreamLatency bool   `help:"Instead, measure the time from publishing an event until it is on an open stream, one event at a time."`
	Streams       int    `placeholder:"N" help:"Instead, open N streams and measure their memory, the CPU time while no event is published, and the delivery of one event to all of them."`
	Gateway       bool   `help:"Instead, measure the gateway: the time that it adds to calls and progress messages, a change of the backend's tools to 1,000 streams, and the time that it adds to events of a backend."`
	Calls         int    `default:"1000" help:"With --gateway: number of calls, with and without the gateway, and of events of a backend."`
	Against       string `placeholder:"PROGRAM" help:"With --gateway: also measure this mcpevents program, for example of an earlier version, in turn."`
	Sessions      int    `placeholder:"N" help:"With --gateway: also measure the memory of N idle sessions."`
}

func (*BenchCmd) Help() string {
	return `Starts a server in a process of its own, with its database on disk. This process publishes the events and receives the webhooks. The CPU seconds include both processes. Exit code 5 means that deliveries were lost.

Examples:
  mcpevents bench                                            single publishes on 16 connections
  mcpevents bench --batch 10                                 batches of ten
  mcpevents bench --rate 500 --uris 10                       a steady load
  mcpevents bench --events 500 --subscribers 100             one event to a hundred endpoints
  mcpevents bench --latency                                  one event at a time
  mcpevents bench --events 400 --rate 40 --subscribers 19 --hang 1   with an endpoint that hangs
  mcpevents bench --events 1000 --answer-delay 100ms         a burst to one endpoint that takes 100 ms
  mcpevents bench --events 100 --batch 100 --answer-delay 100ms      the same as one array
  mcpevents bench --client net/http                          with Go's HTTP client and server
  mcpevents bench --events 300 --payload 230000 --subscribers 50 --answer-delay 1500ms   the memory that slow endpoints need`
}

func (c *BenchCmd) Validate() error {
	for name, n := range map[string]int{
		"events": c.Events, "batch": c.Batch, "publishers": c.Publishers, "rate": c.Rate, "uris": c.URIs, "subscribers": c.Subscribers,
		"payload": c.Payload, "hang": c.Hang, "streams": c.Streams, "calls": c.Calls, "sessions": c.Sessions,
	} {
		if n < 0 {
			return fault.New(fault.Invalid, "--%s must not be negative", name)
		}
	}
	if min(c.AnswerDelay, c.Timeout, c.Wait) < 0 {
		return fault.New(fault.Invalid, "--answer-delay, --timeout and --wait must not be negative")
	}
	return nil
}

func (c *BenchCmd) Run(g *Globals) error {
	o, err := c.options(g)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	err = c.measure(ctx, o, g)
	if err == nil {
		return nil
	}
	// Ctrl-C in a terminal ends the benchmark's server, too. So a request may fail just before ctx ends. Wait briefly, and then return
	// the error of ctx instead.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(100 * time.Millisecond):
		return err
	}
}

func (c *BenchCmd) measure(ctx context.Context, o bench.Options, g *Globals) error {
	switch {
	case c.Gateway:
		return bench.Gateway(ctx, o, c.Calls, c.Sessions, g.out)
	case c.StreamLatency:
		return bench.StreamLatency(ctx, o, g.out)
	case c.Streams > 0:
		return bench.Streams(ctx, o, c.Streams, g.out)
	}
	run := bench.Run
	if c.Source {
		run = bench.Source
	}
	report, err := run(ctx, o)
	if err != nil {
		return err
	}
	if c.JSON != "-" {
		if err := report.WriteText(g.out); err != nil {
			return err
		}
	}
	if err := bench.WriteTo(c.JSON, g.out, report.WriteJSON); err != nil {
		return err
	}
	if err := bench.WriteTo(c.SVG, g.out, report.WriteSVG); err != nil {
		return err
	}
	return report.Err()
}

func (c *BenchCmd) options(g *Globals) (bench.Options, error) {
	o := bench.Options{
		Shape: bench.Shape{
			Events: c.Events, Batch: c.Batch, Publishers: c.Publishers, Rate: c.Rate, URIs: c.URIs, Subscribers: c.Subscribers,
			Payload: c.Payload, Latency: c.Latency, Hang: c.Hang, HangOrigin: c.HangOrigin, AnswerDelay: c.AnswerDelay,
			Client: c.Client,
		},
		Serve:  []string{executable(), "--log-level", "error", "serve"},
		Server: c.Server, Token: c.Key, Data: c.Data, Receiver: c.Receiver, Timeout: c.Timeout, Wait: c.Wait,
		Against: c.Against, Profile: c.CPUProfile,
	}
	if c.Latency || c.StreamLatency {
		o.Events = min(o.Events, 2000)
	}
	if isTerminal(g.err) {
		o.Progress = g.err
	}
	for _, file := range c.Adapter {
		a, err := bench.ReadAdapter(file)
		if err != nil {
			return o, err
		}
		o.Adapters = append(o.Adapters, a)
	}
	return o, nil
}
