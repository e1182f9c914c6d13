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

type PublishCmd struct {
	Remote
	URI   string    `name:"uri" placeholder:"event://…" help:"URI of the event. Without it, --data contains whole events: {\"uri\", \"data\", \"id\"?, \"time\"?}, CloudEvents, or arrays of these."`
	Data  string    `required:"" placeholder:"JSON|@FILE|-" help:"The event's data as JSON, @FILE to read a file, or - to read standard input. Several JSON values in sequence are several events."`
	ID    string    `name:"id" help:"Id of the event. Within five minutes, the server ignores another event with the same id. Default: a new id."`
	Time  time.Time `placeholder:"TIME" help:"When the event happened, e.g. 2026-11-22T12:00:00Z. Default: now."`
	Batch int       `default:"100" help:"Maximum number of events per request. The server accepts all events of a request or none."`
	Tries int       `default:"5" help:"How often an unanswered request is sent."`
	JSON  bool      `name:"json" help:"Print one JSON document, in the form of the server's response, instead of a line for each event."`
	Quiet bool      `short:"q" help:"Do not print the accepted events."`
}

func (c *PublishCmd) Help() string {
	return `Prints a line {"id","uri"} for each accepted event or, with --json, one document {"accepted":[{"id","uri"}]}. A repeated request has the same event ids, so no event is published twice.

Examples:
  mcpevents publish --uri event://ci/build-finished --data '{"build":7,"status":"passed"}'
  mcpevents publish --data @events.ndjson
  producer | mcpevents publish --data -`
}

func (c *PublishCmd) Validate() error {
	if c.Batch < 1 || c.Batch > client.MaxBatch || c.Tries < 1 {
		return fault.New(fault.Invalid, "--batch must be 1 to %d, and --tries at least 1", client.MaxBatch)
	}
	return nil
}

func (c *PublishCmd) Run(g *Globals) error {
	source, size, err := c.open(g)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	ctx, stop := interruptible()
	defer stop()
	out := newAcceptedPrinter(c, g.out)
	p := client.Publisher{
		URL: c.Server, Key: c.Key, Agent: agent(), URI: c.URI, ID: c.ID, Time: c.Time, Batch: c.Batch, Tries: c.Tries,
		Accepted: func(events []client.Accepted) error {
			return fault.Wrap(fault.Unavailable, out.print(events), "print")
		},
		Waiting: func(text string) { fmt.Fprintln(g.err, "mcpevents:", text) },
	}
	var shown io.Writer
	if isTerminal(g.err) && !isTerminal(g.out) && (size == 0 || size >= muchData) {
		shown = g.err
	}
	data, done := progress.Bytes(shown, "read", size, source)
	err = p.PublishFrom(ctx, data)
	done()
	if ended := out.end(); err == nil {
		err = fault.Wrap(fault.Unavailable, ended, "print")
	}
	if err != nil && out.events > 0 {
		return fault.Wrap(fault.Internal, err, "%d events were accepted before this", out.events)
	}
	return err
}

// acceptedPrinter prints each event as soon as the server has accepted it: on a line of its own or, with --json, as an element of one
// JSON document.
type acceptedPrinter struct {
	out    io.Writer
	json   bool
	events int // accepted so far
}

func newAcceptedPrinter(c *PublishCmd, out io.Writer) *acceptedPrinter {
	if c.Quiet {
		out = io.Discard
	}
	return &acceptedPrinter{out: out, json: c.JSON}
}

func (p *acceptedPrinter) print(events []client.Accepted) error {
	first := p.events == 0
	p.events += len(events)
	for _, e := range events {
		before, after := "", "\n"
		switch {
		case p.json && first:
			before, after, first = acceptedStart, "", false
		case p.json:
			before, after = ",", ""
		}
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(p.out, "%s%s%s", before, b, after); err != nil {
			return err
		}
	}
	return nil
}

const acceptedStart = `{"accepted":[`

// end completes the JSON document of --json, so that the document is valid even if an error ended the command.
func (p *acceptedPrinter) end() error {
	if !p.json {
		return nil
	}
	text := "]}\n"
	if p.events == 0 {
		text = acceptedStart + text
	}
	_, err := io.WriteString(p.out, text)
	return err
}

// muchData is a size in bytes. The command publish shows its progress if the data is at least this large.
const muchData = 256 << 10

// open opens the data of the flag --data. The result size is the length of the data in bytes. It is 0 if the length is unknown, as for
// standard input.
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
