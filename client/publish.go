package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Publisher publishes what it reads by POST /events, in batches. A request that the server does not
// answer is repeated with the same event ids, so nothing is published twice.
type Publisher struct {
	Server Server
	// URI makes every value that is read a payload of this event. Without it every value is a whole
	// event, {"uri","data","id"?,"time"?}, a CloudEvent, or an array of these.
	URI string
	// ID is the event's id; with it one event may be read only. Without it every event that has
	// none gets a new one.
	ID string
	// Time is when the events happened that do not say so; the zero time leaves it to the server.
	Time time.Time
	// Batch is how many events a request holds at most; a request is accepted as a whole or not
	// at all. Tries is how often a request is sent that is not answered. 0 is 100, and 5.
	Batch, Tries int
	// Accepted is called with the events of each accepted request; its error ends the publisher.
	// Waiting is called with a sentence for the user when the server takes long or does not answer.
	// Both may be nil.
	Accepted func([]Accepted) error
	Waiting  func(string)
}

// Accepted is an event that the server has accepted: it survives whatever happens to the server.
type Accepted struct {
	ID  string `json:"id"`
	URI string `json:"uri"`
}

const (
	// MaxBatch is how many events the server takes in one request.
	MaxBatch = 1000
	// maxBatchBytes bounds the events of one request; the server takes more.
	maxBatchBytes = 1 << 20
	// silence is after how long without an answer it is said what is waited for.
	silence = time.Second
)

// item is an event as POST /events takes it.
type item map[string]json.RawMessage

// size is about what it takes in a request.
func (it item) size() int {
	size := 0
	for name, value := range it {
		size += len(name) + len(value) + 4
	}
	return size
}

// Publish reads JSON values from r until its end and publishes them. After an error, what was given
// to Accepted stays published.
func (p Publisher) Publish(ctx context.Context, r io.Reader) error {
	p.Batch, p.Tries = cmp.Or(p.Batch, 100), cmp.Or(p.Tries, maxTries)
	url, err := p.Server.Endpoint("/events")
	if err != nil {
		return err
	}
	var batch []item
	bytes, read := 0, 0
	in := untilDone(ctx, r)
	defer func() { _ = in.Close() }()
	for d := json.NewDecoder(in); ; {
		var value json.RawMessage
		err := d.Decode(&value)
		if errors.Is(err, io.EOF) {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fault.New(fault.Invalid, "value %d of the data is not JSON: %v", read+1, err)
		}
		read++
		items, err := p.items(value, read)
		if err != nil {
			return err
		}
		for _, it := range items {
			size := it.size()
			if len(batch) >= p.Batch || len(batch) > 0 && bytes+size > maxBatchBytes {
				if err := p.flush(ctx, url, batch); err != nil {
					return err
				}
				batch, bytes = batch[:0], 0
			}
			batch, bytes = append(batch, it), bytes+size
		}
	}
	if read == 0 {
		return fault.New(fault.Invalid, "the data is empty")
	}
	return p.flush(ctx, url, batch)
}

// untilDone reads from r until ctx ends, also while r has nothing to read. A goroutine stays until r returns.
func untilDone(ctx context.Context, r io.Reader) *io.PipeReader {
	out, in := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = out.CloseWithError(ctx.Err()) })
	go func() {
		defer stop()
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err) // nil is io.EOF
	}()
	return out
}

// items makes events of value number n of the data.
func (p Publisher) items(value json.RawMessage, n int) ([]item, error) {
	var items []item
	if p.URI != "" {
		items = []item{{"uri": quoted(p.URI), "data": value}}
	} else {
		if value[0] != '[' {
			value = append(append(json.RawMessage{'['}, value...), ']')
		}
		if err := json.Unmarshal(value, &items); err != nil {
			return nil, fault.New(fault.Invalid, "value %d of the data is neither an event nor a list of events (give --uri if it is a payload)", n)
		}
	}
	if p.ID != "" && (n > 1 || len(items) > 1) {
		return nil, fault.New(fault.Invalid, "--id is for one event, and there are several")
	}
	for _, it := range items {
		if absent(it["uri"]) && absent(it["specversion"]) {
			return nil, fault.New(fault.Invalid, "value %d of the data is an event without \"uri\"; give --uri when it is a payload", n)
		}
		if p.ID != "" {
			it["id"] = quoted(p.ID)
		}
		if absent(it["id"]) {
			it["id"] = quoted(event.NewID()) // chosen here, so that a request can be repeated
		}
		if !p.Time.IsZero() && absent(it["time"]) {
			it["time"] = quoted(p.Time.Format(time.RFC3339Nano))
		}
	}
	return items, nil
}

// absent reports whether a member is missing or null, which the server treats alike.
func absent(value json.RawMessage) bool { return value == nil || string(value) == "null" }

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string
	return b
}

// flush sends a batch and hands on what was accepted of it.
func (p Publisher) flush(ctx context.Context, url string, batch []item) error {
	if len(batch) == 0 {
		return nil
	}
	var body any = batch
	if len(batch) == 1 {
		body = batch[0]
	}
	b, err := json.Marshal(body)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the events")
	}
	accepted, err := p.send(ctx, url, b)
	if err != nil || p.Accepted == nil {
		return err
	}
	return p.Accepted(accepted)
}

// send tries until there is an answer that is worth nothing to repeat.
func (p Publisher) send(ctx context.Context, url string, body []byte) ([]Accepted, error) {
	for try := 0; ; try++ {
		accepted, resp, err := p.once(ctx, url, body)
		if err == nil || !Again(err) || try+1 >= p.Tries || ctx.Err() != nil {
			return accepted, err
		}
		p.waiting("%v; trying again (try %d of %d)", err, try+2, p.Tries)
		if err := Pause(ctx, try, retryAfter(resp)); err != nil {
			return nil, err
		}
	}
}

func (p Publisher) waiting(format string, args ...any) {
	if p.Waiting != nil {
		p.Waiting(fmt.Sprintf(format, args...))
	}
}

// once sends a request.
func (p Publisher) once(ctx context.Context, url string, body []byte) ([]Accepted, *http.Response, error) {
	done, waiting := make(chan struct{}), sync.WaitGroup{}
	waiting.Go(func() {
		select {
		case <-time.After(silence):
			p.waiting("waiting for an answer of %s", p.Server.URL)
		case <-done:
		}
	})
	resp, b, err := p.Server.Do(ctx, http.MethodPost, url, nil, body)
	close(done)
	waiting.Wait()
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		RPC      string     `json:"jsonrpc"` // of an MCP endpoint
		Accepted []Accepted `json:"accepted"`
	}
	err = json.Unmarshal(b, &answer)
	switch {
	case answer.RPC != "":
		return nil, resp, fault.New(fault.Invalid, "%s is an MCP endpoint; publish needs the URL of /events", resp.Request.URL.Redacted())
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, resp, Refusal(resp, b)
	case err != nil || answer.Accepted == nil:
		return nil, resp, Strange(resp, fault.Invalid)
	}
	return answer.Accepted, resp, nil
}
