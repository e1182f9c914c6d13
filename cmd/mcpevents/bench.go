package main

import (
	"os"
	"time"

	"github.com/mcp-events/mcpevents/bench"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// BenchCmd measures how events get from a publisher to endpoints; package bench does the work.
type BenchCmd struct {
	Events      int           `default:"20000" help:"Events to publish."`
	Batch       int           `default:"1" help:"Events per publish request."`
	Publishers  int           `default:"16" help:"Connections that publish."`
	Rate        int           `help:"Events a second; 0 is as fast as the server takes them."`
	URIs        int           `name:"uris" default:"1" help:"Event URIs that the events are spread over."`
	Subscribers int           `default:"1" help:"Webhook subscriptions for each URI, each with an endpoint of its own."`
	Payload     int           `default:"500" help:"Bytes of an event's payload."`
	Hang        int           `placeholder:"N" help:"Measure twice: without and beside N endpoints that never answer. Each subscribes to every URI."`
	HangOrigin  bool          `help:"Put each endpoint of --hang at an origin of its own, not at that of the others."`
	AnswerDelay time.Duration `placeholder:"DURATION" help:"How long each endpoint takes to answer, e.g. 1500ms."`
	Latency     bool          `help:"Publish one event at a time, the next when it has arrived everywhere; at most 2,000."`

	JSON    string   `placeholder:"FILE" help:"Write the results as JSON (- is the standard output)."`
	SVG     string   `placeholder:"FILE" help:"Draw a chart of how long the deliveries took."`
	Adapter []string `placeholder:"FILE" help:"Measure another sender afterwards with the same receiver. The file (YAML or JSON) says how it is driven; docs/explanation/benchmarks.md has an example."`

	Server   string        `placeholder:"URL" help:"Measure this server instead of starting one; its CPU and memory are not known then."`
	Key      string        `help:"With --server, the key or token of a principal that may publish and subscribe."`
	Receiver string        `default:"127.0.0.1:0" placeholder:"ADDR" help:"Address that receives the webhooks."`
	Data     string        `placeholder:"DIR" help:"Directory for the database of the server; a temporary one by default."`
	Timeout  time.Duration `default:"10m" help:"Longest run."`
	Wait     time.Duration `default:"60s" help:"How long to wait for deliveries after the last publish; those that have not arrived by then count as lost."`

	Source        bool `help:"Instead, send requests as GitHub signs them to a source, of 1 KB and of 20 KB, and publish what comes of them, in turn."`
	StreamLatency bool `help:"Instead, publish one event at a time and measure until it is on an open listen."`
	Streams       int  `placeholder:"N" help:"Instead, open N streams and measure their memory, the CPU while quiet, and one event to all of them."`
	Gateway       bool `help:"Instead, put a backend behind the server, and measure what that adds to calls and progress messages, and a change of its tools to 1,000 streams."`
	Calls         int  `default:"1000" help:"With --gateway, calls each way."`
}

// Help is what --help says after the flags' table.
func (*BenchCmd) Help() string {
	return `A server is started as a process of its own, with its database on disk; the driver and the receiver are in this process. All three are in the CPU seconds. Exit code 5 says that deliveries were lost.

  mcpevents bench                                            single publishes on 16 connections
  mcpevents bench --batch 10                                 batches of ten
  mcpevents bench --rate 500 --uris 10                       a steady load
  mcpevents bench --events 500 --subscribers 100             one event to a hundred endpoints
  mcpevents bench --latency                                  one event at a time
  mcpevents bench --events 400 --rate 40 --subscribers 19 --hang 1   beside an endpoint that hangs
  mcpevents bench --events 300 --payload 230000 --subscribers 50 --answer-delay 1500ms   the memory that slow endpoints cost`
}

// Run implements the command.
func (c *BenchCmd) Run(g *Globals) error {
	o, err := c.options(g)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	switch {
	case c.Gateway:
		return bench.Gateway(ctx, o, c.Calls, g.out)
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
	self, err := os.Executable()
	if err != nil {
		return bench.Options{}, fault.Wrap(fault.Unavailable, err, "find this program")
	}
	o := bench.Options{
		Shape: bench.Shape{
			Events: c.Events, Batch: c.Batch, Publishers: c.Publishers, Rate: c.Rate, URIs: c.URIs, Subscribers: c.Subscribers,
			Payload: c.Payload, Latency: c.Latency, Hang: c.Hang, HangOrigin: c.HangOrigin, AnswerDelay: c.AnswerDelay,
		},
		Serve:  []string{self, "--log-level", "error", "serve"},
		Server: c.Server, Token: c.Key, Data: c.Data, Receiver: c.Receiver, Timeout: c.Timeout, Wait: c.Wait,
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
