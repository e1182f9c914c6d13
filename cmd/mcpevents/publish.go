package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/publish"
)

// PublishCmd publishes one event, or a stream of them.
type PublishCmd struct {
	Remote
	URI   string    `name:"uri" placeholder:"event://…" help:"URI of the event. Without it, every value of the data is a whole event: {\"uri\", \"data\", \"id\"?, \"time\"?}, or an array of these."`
	Data  string    `required:"" placeholder:"JSON|@FILE|-" help:"The payload as JSON, @FILE to read a file, - to read standard input. Several JSON values, one after another, are several events."`
	ID    string    `name:"id" help:"Id of the event; publishing an id again within five minutes does nothing. By default a new one."`
	Time  time.Time `help:"When it happened (RFC 3339); by default now."`
	Batch int       `default:"100" help:"Events in one request, at most. A request is accepted as a whole or not at all."`
	Tries int       `default:"5" help:"How often a request is tried that the server does not answer."`
	Quiet bool      `short:"q" help:"Print nothing of what was accepted."`
}

// Help is the long help of the command.
func (c *PublishCmd) Help() string {
	return `Prints a line {"id","uri"} for each accepted event. A repeated request keeps the ids of its events, so nothing is published twice.

Examples:
  mcpevents publish --uri event://ci/build-finished --data '{"build":7,"status":"passed"}'
  mcpevents publish --data @events.ndjson
  producer | mcpevents publish --data -`
}

// item is an event as POST /events takes it: {"uri","data","id"?,"time"?}, or a
// CloudEvent.
type item map[string]json.RawMessage

// maxBatchBytes bounds the events of one request; the server takes more.
const maxBatchBytes = 1 << 20

// Validate refuses flags that are out of range.
func (c *PublishCmd) Validate() error {
	if c.Batch < 1 || c.Batch > publish.MaxEvents || c.Tries < 1 {
		return fault.New(fault.Invalid, "--batch must be 1 to %d, --tries at least 1", publish.MaxEvents)
	}
	return nil
}

// Run implements the command.
func (c *PublishCmd) Run(g *Globals) error {
	url, err := c.server().Endpoint("/events")
	if err != nil {
		return err
	}
	source, size, err := c.open(g)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	ctx, stop := interruptible()
	defer stop()
	p := &publication{cmd: c, url: url, out: g.out, notes: g.err}
	bar := newBar(g, size)
	err = p.all(ctx, bar.reader(source))
	bar.finish()
	if err != nil && p.accepted > 0 {
		return fault.Wrap(fault.Internal, err, "%d events were accepted before this", p.accepted)
	}
	return err
}

// open finds the data; size is -1 where it is not known.
func (c *PublishCmd) open(g *Globals) (io.ReadCloser, int64, error) {
	switch {
	case c.Data == "-":
		return io.NopCloser(g.in), -1, nil
	case strings.HasPrefix(c.Data, "@"):
		f, err := os.Open(c.Data[1:])
		if err != nil {
			return nil, 0, fault.Wrap(fault.Invalid, err, "read the data")
		}
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return f, -1, nil
		}
		return f, info.Size(), nil
	}
	return io.NopCloser(strings.NewReader(c.Data)), int64(len(c.Data)), nil
}

// publication sends what a reader brings, in batches.
type publication struct {
	cmd      *PublishCmd
	url      string
	out      io.Writer
	notes    io.Writer
	batch    []item
	bytes    int
	read     int // values
	accepted int
}

func (p *publication) all(ctx context.Context, r io.Reader) error {
	d := json.NewDecoder(r)
	for {
		var value json.RawMessage
		err := d.Decode(&value)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fault.New(fault.Invalid, "value %d of the data is not JSON: %v", p.read+1, err)
		}
		p.read++
		items, err := p.items(value)
		if err != nil {
			return err
		}
		for _, it := range items {
			if err := p.add(ctx, it); err != nil {
				return err
			}
		}
	}
	if p.read == 0 {
		return fault.New(fault.Invalid, "the data is empty")
	}
	return p.flush(ctx)
}

// items makes events of one value of the data.
func (p *publication) items(value json.RawMessage) ([]item, error) {
	c := p.cmd
	var items []item
	if c.URI != "" {
		items = []item{{"uri": quoted(c.URI), "data": value}}
	} else {
		if value[0] != '[' {
			value = append(append(json.RawMessage{'['}, value...), ']')
		}
		if err := json.Unmarshal(value, &items); err != nil {
			return nil, fault.New(fault.Invalid, "value %d of the data is neither an event nor a list of events (give --uri if it is a payload)", p.read)
		}
	}
	if c.ID != "" && (p.read > 1 || len(items) > 1) {
		return nil, fault.New(fault.Invalid, "--id is for one event, and there are several")
	}
	for _, it := range items {
		if it["uri"] == nil && it["specversion"] == nil {
			return nil, fault.New(fault.Invalid, "value %d of the data is an event without \"uri\"; give --uri when it is a payload", p.read)
		}
		if c.ID != "" {
			it["id"] = quoted(c.ID)
		}
		if it["id"] == nil {
			// Chosen here, so that a request can be repeated.
			it["id"] = quoted(event.NewID())
		}
		if !c.Time.IsZero() && it["time"] == nil {
			it["time"] = quoted(c.Time.Format(time.RFC3339Nano))
		}
	}
	return items, nil
}

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string
	return b
}

func (p *publication) add(ctx context.Context, it item) error {
	size := 0
	for name, value := range it {
		size += len(name) + len(value) + 4
	}
	if len(p.batch) >= p.cmd.Batch || len(p.batch) > 0 && p.bytes+size > maxBatchBytes {
		if err := p.flush(ctx); err != nil {
			return err
		}
	}
	p.batch, p.bytes = append(p.batch, it), p.bytes+size
	return nil
}

// flush sends the batch and prints what was accepted of it.
func (p *publication) flush(ctx context.Context) error {
	if len(p.batch) == 0 {
		return nil
	}
	var body any = p.batch
	if len(p.batch) == 1 {
		body = p.batch[0]
	}
	b, err := json.Marshal(body)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the events")
	}
	answer, err := p.send(ctx, b)
	if err != nil {
		return err
	}
	p.accepted += len(answer)
	p.batch, p.bytes = p.batch[:0], 0
	if p.cmd.Quiet {
		return nil
	}
	lines := json.NewEncoder(p.out)
	for _, a := range answer {
		if err := lines.Encode(a); err != nil {
			return fault.Wrap(fault.Unavailable, err, "print")
		}
	}
	return nil
}

type acceptedEvent struct {
	ID  string `json:"id"`
	URI string `json:"uri"`
}

// silence is after how long without an answer it is said what is waited for.
const silence = time.Second

// send tries until there is an answer that is worth nothing to repeat.
func (p *publication) send(ctx context.Context, body []byte) ([]acceptedEvent, error) {
	for try := 0; ; try++ {
		answer, resp, err := p.once(ctx, body)
		if err == nil || !client.Again(err) || try+1 >= p.cmd.Tries || ctx.Err() != nil {
			return answer, err
		}
		fmt.Fprintf(p.notes, "mcpevents: %v; trying again (try %d of %d)\n", err, try+2, p.cmd.Tries)
		if err := client.Pause(ctx, try, client.RetryAfter(resp)); err != nil {
			return nil, err
		}
	}
}

// once sends a request.
func (p *publication) once(ctx context.Context, body []byte) ([]acceptedEvent, *http.Response, error) {
	done, waiting := make(chan struct{}), sync.WaitGroup{}
	waiting.Go(func() {
		timer := time.NewTimer(silence)
		defer timer.Stop()
		select {
		case <-timer.C:
			fmt.Fprintf(p.notes, "mcpevents: waiting for an answer of %s\n", p.cmd.Server)
		case <-done:
		}
	})
	resp, b, err := p.cmd.server().Post(ctx, p.url, nil, body)
	close(done)
	waiting.Wait()
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		RPC      string          `json:"jsonrpc"` // of an MCP endpoint
		Accepted []acceptedEvent `json:"accepted"`
	}
	err = json.Unmarshal(b, &answer)
	switch {
	case answer.RPC != "":
		return nil, resp, fault.New(fault.Invalid, "%s is an MCP endpoint; publish needs the URL of /events", resp.Request.URL.Redacted())
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, resp, client.Refusal(resp, b)
	case err != nil || answer.Accepted == nil:
		return nil, resp, client.Strange(resp, fault.Invalid)
	}
	return answer.Accepted, resp, nil
}

// bar shows progress on a terminal when there is much to read; else it is nil.
type bar struct {
	progress *mpb.Progress
	bar      *mpb.Bar
}

// muchData is from how many bytes on a bar is shown; an unknown size may be much.
const muchData = 256 << 10

func newBar(g *Globals, size int64) *bar {
	if !g.terminal() || isTerminal(g.out) || size >= 0 && size < muchData {
		return nil
	}
	p := mpb.New(mpb.WithOutput(g.err))
	return &bar{p, p.AddBar(max(size, 0), mpb.PrependDecorators(decor.Name("read "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f")))}
}

func (b *bar) reader(r io.Reader) io.Reader {
	if b == nil {
		return r
	}
	return b.bar.ProxyReader(r)
}

func (b *bar) finish() {
	if b != nil {
		b.bar.SetTotal(-1, true)
		b.progress.Wait()
	}
}
