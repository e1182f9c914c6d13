package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/progress"
)

// PublishCmd publishes one or more events.
type PublishCmd struct {
	Remote
	URI   string    `name:"uri" placeholder:"event://…" help:"URI of the event. Without it, --data contains whole events: {\"uri\", \"data\", \"id\"?, \"time\"?}, CloudEvents, or arrays of these."`
	Data  string    `required:"" placeholder:"JSON|@FILE|-" help:"The event's data as JSON, @FILE to read a file, or - to read standard input. Several JSON values in sequence are several events."`
	ID    string    `name:"id" help:"Id of the event. Within five minutes, the server ignores another event with the same id. Default: a new id."`
	Time  time.Time `placeholder:"TIME" help:"When the event happened, e.g. 2026-11-22T12:00:00Z. Default: now."`
	Batch int       `default:"100" help:"Maximum number of events per request. The server accepts all events of a request or none."`
	Tries int       `default:"5" help:"How often an unanswered request is sent."`
	Quiet bool      `short:"q" help:"Do not print the accepted events."`
}

// Help returns the long help of the command.
func (c *PublishCmd) Help() string {
	return `Prints a line {"id","uri"} for each accepted event. A repeated request has the same event ids, so no event is published twice.

Examples:
  mcpevents publish --uri event://ci/build-finished --data '{"build":7,"status":"passed"}'
  mcpevents publish --data @events.ndjson
  producer | mcpevents publish --data -`
}

// Validate checks the ranges of flags.
func (c *PublishCmd) Validate() error {
	if c.Batch < 1 || c.Batch > client.MaxBatch || c.Tries < 1 {
		return fault.New(fault.Invalid, "--batch must be 1 to %d, and --tries at least 1", client.MaxBatch)
	}
	return nil
}

// Run implements the command.
func (c *PublishCmd) Run(g *Globals) error {
	source, size, err := c.open(g)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	ctx, stop := interruptible()
	defer stop()
	lines, accepted := json.NewEncoder(g.out), 0
	if c.Quiet {
		lines = json.NewEncoder(io.Discard)
	}
	p := client.Publisher{
		URL: c.Server, Key: c.Key, Agent: agent(), URI: c.URI, ID: c.ID, Time: c.Time, Batch: c.Batch, Tries: c.Tries,
		Accepted: func(events []client.Accepted) error {
			accepted += len(events)
			for _, e := range events {
				if err := lines.Encode(e); err != nil {
					return fault.Wrap(fault.Unavailable, err, "print")
				}
			}
			return nil
		},
		Waiting: func(text string) { fmt.Fprintln(g.err, "mcpevents:", text) },
	}
	var shown io.Writer
	if isTerminal(g.err) && !isTerminal(g.out) && (size == 0 || size >= muchData) {
		shown = g.err
	}
	data, done := progress.Bytes(shown, "read", size, source)
	err = p.Publish(ctx, data)
	done()
	if err != nil && accepted > 0 {
		return fault.Wrap(fault.Internal, err, "%d events were accepted before this", accepted)
	}
	return err
}

// muchData is the size of data in bytes from which progress is shown.
const muchData = 256 << 10

// open opens the data. The size is 0 if it is unknown.
func (c *PublishCmd) open(g *Globals) (data io.ReadCloser, size int64, err error) {
	switch {
	case c.Data == "-":
		return io.NopCloser(g.in), 0, nil
	case strings.HasPrefix(c.Data, "@"):
		f, err := open("data", c.Data[1:])
		if err != nil {
			return nil, 0, err
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		return f, size, nil
	}
	return io.NopCloser(strings.NewReader(c.Data)), int64(len(c.Data)), nil
}
