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
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// Publisher publishes events with POST /events, in batches. It repeats a request without an answer with the same event ids, so
// no event is published twice.
type Publisher struct {
	// URL is the server's URL, for example https://events.example.com, or the URL of /events.
	URL string
	// Key is sent as Authorization: Bearer. An empty key sends no header.
	Key string
	// Agent names the program to the server as NAME/VERSION.
	Agent string
	// HTTP sends the requests; nil is [http.DefaultClient].
	HTTP *http.Client

	// URI makes every value that is read the payload of an event with this URI. If it is empty, every value is a whole event,
	// {"uri","data","id"?,"time"?}, a CloudEvent, or an array of these.
	URI string
	// ID is the id of the only event. If it is empty, every event without an id gets a new one.
	ID string
	// Time is the time of events that have none; the zero time leaves it to the server.
	Time time.Time
	// Batch limits the events of a request, which the server accepts as a whole or not at all; 0 is 100.
	Batch int
	// Tries is how often a request without an answer is sent; 0 is 5.
	Tries int
	// Accepted receives the events of each accepted request; its error ends the publisher. It may be nil.
	Accepted func([]Accepted) error
	// Waiting receives a sentence for the user if the server takes long or does not answer. It may be nil.
	Waiting func(string)
}

// Accepted identifies an event that the server has accepted and will not lose.
type Accepted struct {
	ID  string `json:"id"`
	URI string `json:"uri"`
}

const (
	// MaxBatch is the largest number of events that the server accepts in a request.
	MaxBatch = 1000
	// maxBatchBytes limits the events of a request. The server accepts more.
	maxBatchBytes = 1 << 20
	// patience is how long a request waits for an answer before Waiting is called.
	patience = time.Second
)

// item is an event in the form of POST /events.
type item map[string]json.RawMessage

// size returns about how many bytes the event takes in a request.
func (it item) size() int {
	size := 0
	for name, value := range it {
		size += len(name) + len(value) + 4
	}
	return size
}

// Publish reads JSON values from r until its end and publishes them. After an error, events that were given to Accepted stay
// published.
func (p Publisher) Publish(ctx context.Context, r io.Reader) error {
	p.Batch, p.Tries = cmp.Or(p.Batch, 100), cmp.Or(p.Tries, maxTries)
	url, err := p.server().Endpoint("/events")
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

func (p Publisher) server() httpcall.Server {
	return httpcall.Server{URL: p.URL, Key: p.Key, Agent: p.Agent, HTTP: p.HTTP}
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

// items returns the events of value number n of the data.
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

// absent reports whether a member is missing or null. The server treats both alike.
func absent(value json.RawMessage) bool { return value == nil || string(value) == "null" }

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string
	return b
}

// flush sends a batch and reports the accepted events.
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

// send sends a request until its answer is final.
func (p Publisher) send(ctx context.Context, url string, body []byte) ([]Accepted, error) {
	for try := 0; ; try++ {
		accepted, resp, err := p.once(ctx, url, body)
		if err == nil || !Retryable(err) || try+1 >= p.Tries || ctx.Err() != nil {
			return accepted, err
		}
		p.waiting("%v; trying again (try %d of %d)", err, try+2, p.Tries)
		if err := httpcall.Sleep(ctx, try, httpcall.RetryAfter(resp)); err != nil {
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
		case <-time.After(patience):
			p.waiting("waiting for an answer of %s", httpcall.Redact(p.URL))
		case <-done:
		}
	})
	resp, b, err := p.server().Do(ctx, http.MethodPost, url, nil, body)
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
		return nil, resp, httpcall.ReadRefusal(resp, b)
	case err != nil || answer.Accepted == nil:
		return nil, resp, httpcall.UnexpectedAnswer(resp, fault.Invalid)
	}
	return answer.Accepted, resp, nil
}
