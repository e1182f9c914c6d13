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

// Publisher publishes events with POST /events, in batches. If the server does not answer a request, the publisher repeats it with the
// same event ids, so that no event is published twice.
type Publisher struct {
	// URL is the URL of the server, for example https://events.example.com, or of its path /events.
	URL string
	// Key is the API key or access token, which the publisher sends as Authorization: Bearer. If it is empty, the publisher sends no such
	// header.
	Key string
	// Agent is the name and version of the calling program, for example my-app/1.2. The server sees it.
	Agent string
	// HTTP is the HTTP client that sends the requests. If it is nil, [http.DefaultClient] is used.
	HTTP *http.Client

	// URI is the URI of each event that has no URI of its own.
	//
	// It also says what [Publisher.PublishFrom] reads. If URI is set, each JSON value is the data of an event. If URI is empty, the
	// values are whole events, for example {"uri": "event://orders/42/shipped", "data": {}}, or CloudEvents, or arrays of events.
	URI string
	// ID is the id of the event, if only one event is published. If it is empty, the publisher gives an id to each event without one.
	ID string
	// Time is the time of each event that has no time of its own. If it is zero, the server sets the time.
	Time time.Time
	// Batch is the maximum number of events in a request. 0 means 100. The server accepts either all events of a request or no event.
	Batch int
	// Tries is how many times a request is sent if the server does not answer it, or refuses it only temporarily. 0 means 5.
	Tries int
	// Accepted is called with the events of each request that the server has accepted. If it returns an error, publishing stops. It may
	// be nil.
	Accepted func([]Accepted) error
	// Waiting is called with a message for the user if the server is slow or does not answer. If it is nil and no server runs,
	// [Publisher.Publish] says nothing for about five seconds and then returns the error.
	Waiting func(string)
}

// Accepted identifies an event that the server has accepted and stored.
type Accepted struct {
	ID  string `json:"id"`
	URI string `json:"uri"`
}

const (
	// MaxBatch is the maximum number of events that the server accepts in a request.
	MaxBatch = 1000
	// maxBatchBytes limits the size of a request. The server's limit is 5 MiB.
	maxBatchBytes = 1 << 20
	// patience is how long the publisher waits for the answer to a request before it calls [Publisher.Waiting].
	patience = time.Second
	// lull is how long PublishFrom waits for another value before it publishes the events that it has read.
	lull = 100 * time.Millisecond
)

// item is an event in the JSON form that POST /events accepts.
type item map[string]json.RawMessage

func (it item) size() int {
	size := 0
	for name, value := range it {
		size += len(name) + len(value) + 4
	}
	return size
}

// Publish publishes events. It returns the events that the server has accepted, even if a later request fails. It uses the URI, ID, Time
// and Data of each event. An event without a URI gets the publisher's URI.
func (p Publisher) Publish(ctx context.Context, events ...Event) ([]Accepted, error) {
	var accepted []Accepted
	passOn := p.Accepted
	p.Accepted = func(more []Accepted) error {
		accepted = append(accepted, more...)
		if passOn == nil {
			return nil
		}
		return passOn(more)
	}
	b, err := p.newBatch()
	if err != nil {
		return nil, err
	}
	items := make([]item, len(events))
	for i, e := range events {
		e.URI = cmp.Or(e.URI, p.URI)
		if e.URI == "" || !json.Valid(e.Data) {
			return nil, fault.New(fault.Invalid, "event %d needs a URI, and data in JSON", i+1)
		}
		items[i] = item{"uri": quote(e.URI), "data": e.Data}
		if e.ID != "" {
			items[i]["id"] = quote(e.ID)
		}
		if e.Time != "" {
			items[i]["time"] = quote(e.Time)
		}
	}
	if err := p.complete(items, 1); err != nil {
		return nil, err
	}
	err = b.add(ctx, items)
	if err == nil {
		err = b.flush(ctx)
	}
	return accepted, err
}

// PublishFrom reads JSON values from r until its end, and publishes them. When r pauses, PublishFrom publishes what it has read without
// waiting for a full batch. So r may be the output of a running program. If PublishFrom fails, the events that it has passed to
// [Publisher.Accepted] stay published.
func (p Publisher) PublishFrom(ctx context.Context, r io.Reader) error {
	b, err := p.newBatch()
	if err != nil {
		return err
	}
	read := 0
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	values := decodeValues(ctx, r)
	paused := time.NewTimer(lull)
	defer paused.Stop()
	for {
		var next decoded
		select {
		case next = <-values:
		case <-ctx.Done():
			return ctx.Err()
		case <-paused.C:
			if p.ID == "" { // otherwise a second value is an error
				if err := b.flush(ctx); err != nil {
					return err
				}
			}
			continue
		}
		if errors.Is(next.err, io.EOF) {
			break
		}
		if next.err != nil {
			return fault.New(fault.Invalid, "value %d of the data is not JSON: %v", read+1, next.err)
		}
		read++
		items, err := p.parseItems(next.value, read)
		if err != nil {
			return err
		}
		if err := b.add(ctx, items); err != nil {
			return err
		}
		paused.Reset(lull)
	}
	if read == 0 {
		return fault.New(fault.Invalid, "the data is empty")
	}
	return b.flush(ctx)
}

type batch struct {
	Publisher
	url   string
	items []item
	bytes int // the approximate size of the request
	sent  int // events of accepted requests
}

func (p Publisher) newBatch() (*batch, error) {
	p.Batch, p.Tries = cmp.Or(p.Batch, 100), cmp.Or(p.Tries, maxTries)
	url, err := p.server().Endpoint("/events")
	return &batch{Publisher: p, url: url}, err
}

// add adds events to the batch, and sends the batch whenever it is full.
func (b *batch) add(ctx context.Context, items []item) error {
	for _, it := range items {
		size := it.size()
		if len(b.items) >= b.Batch || len(b.items) > 0 && b.bytes+size > maxBatchBytes {
			if err := b.flush(ctx); err != nil {
				return err
			}
		}
		b.items, b.bytes = append(b.items, it), b.bytes+size
	}
	return nil
}

func (b *batch) flush(ctx context.Context) error {
	if len(b.items) == 0 {
		return nil
	}
	var content any = b.items
	if len(b.items) == 1 {
		content = b.items[0]
	}
	body, err := json.Marshal(content)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the events")
	}
	accepted, err := b.send(ctx, b.url, body)
	if err != nil && b.sent > 0 { // say which events these are, because the server's error counts them from the start of this request
		return fault.Wrap(fault.Internal, err, "events %d to %d", b.sent+1, b.sent+len(b.items))
	}
	if err != nil {
		return err
	}
	b.sent += len(b.items)
	b.items, b.bytes = b.items[:0], 0
	if b.Accepted == nil {
		return nil
	}
	return b.Accepted(accepted)
}

func (p Publisher) server() httpcall.Server {
	return httpcall.Server{URL: p.URL, Key: p.Key, Agent: p.Agent, HTTP: p.HTTP}
}

type decoded struct {
	value json.RawMessage
	err   error
}

// decodeValues returns a channel with the JSON values in r. The last element of the channel has an error, which is [io.EOF] at the end of
// r. The goroutine that fills the channel ends after that element. If ctx ends, the goroutine ends, too, but not while it waits for r.
func decodeValues(ctx context.Context, r io.Reader) <-chan decoded {
	values := make(chan decoded)
	go func() {
		for d := json.NewDecoder(r); ; {
			var next decoded
			next.err = d.Decode(&next.value)
			select {
			case values <- next:
			case <-ctx.Done():
				return
			}
			if next.err != nil {
				return
			}
		}
	}()
	return values
}

// parseItems returns the events in a JSON value. The parameter n is for error messages: it is the number of the value in the input,
// counted from 1.
func (p Publisher) parseItems(value json.RawMessage, n int) ([]item, error) {
	var items []item
	if p.URI != "" {
		items = []item{{"uri": quote(p.URI), "data": value}}
	} else {
		if value[0] != '[' {
			value = append(append(json.RawMessage{'['}, value...), ']')
		}
		if err := json.Unmarshal(value, &items); err != nil {
			return nil, fault.New(fault.Invalid, "value %d of the data is not an event or a list of events (if it is the data of an event, give its URI)", n)
		}
	}
	return items, p.complete(items, n)
}

// complete adds ids to events without an id, and times to events without a time. The parameter n is for error messages: it is the number
// of the JSON value that contained the events.
func (p Publisher) complete(items []item, n int) error {
	if p.ID != "" && (n > 1 || len(items) > 1) {
		return fault.New(fault.Invalid, "the id %.100q is for one event, and there are several: leave it out, and each event gets a new one", p.ID)
	}
	for _, it := range items {
		if isAbsent(it["uri"]) && isAbsent(it["specversion"]) {
			return fault.New(fault.Invalid, "value %d of the data is an event without \"uri\" (if it is the data of an event, give its URI)", n)
		}
		if p.ID != "" {
			it["id"] = quote(p.ID)
		}
		if isAbsent(it["id"]) {
			it["id"] = quote(event.NewID()) // chosen here, so that a repeated request has the same ids
		}
		if !p.Time.IsZero() && isAbsent(it["time"]) {
			it["time"] = quote(p.Time.Format(time.RFC3339Nano))
		}
	}
	return nil
}

// isAbsent reports whether a member is missing or null. Both mean the same to the server.
func isAbsent(value json.RawMessage) bool { return value == nil || string(value) == "null" }

func quote(s string) json.RawMessage {
	b, _ := json.Marshal(s)
	return b
}

// send sends a request until the server accepts it or refuses it permanently. It tries again if the server does not answer, or refuses
// the request only temporarily, for example with status 503. It gives up after [Publisher.Tries] requests, or when ctx ends.
func (p Publisher) send(ctx context.Context, url string, body []byte) ([]Accepted, error) {
	var last error
	for try := 0; ; try++ {
		accepted, resp, err := p.sendOnce(ctx, url, body)
		if err != nil && last != nil && ctx.Err() != nil {
			return nil, withReason(ctx, last)
		}
		if err == nil || !Retryable(err) || try+1 >= p.Tries || ctx.Err() != nil {
			return accepted, err
		}
		last = err
		p.tellUser("%v; trying again (try %d of %d)", err, try+2, p.Tries)
		_ = httpcall.Sleep(ctx, try, httpcall.RetryAfter(resp)) // an error means that ctx has ended, and the next try then fails
	}
}

// withReason returns the error of ctx, which has ended, together with the reason why the last request failed.
func withReason(ctx context.Context, reason error) error {
	return fmt.Errorf("%w: %v", ctx.Err(), reason)
}

func (p Publisher) tellUser(format string, args ...any) {
	if p.Waiting != nil {
		p.Waiting(fmt.Sprintf(format, args...))
	}
}

// sendOnce sends a request once. It calls [Publisher.Waiting] if the answer takes longer than patience.
func (p Publisher) sendOnce(ctx context.Context, url string, body []byte) ([]Accepted, *http.Response, error) {
	done, waiting := make(chan struct{}), sync.WaitGroup{}
	waiting.Go(func() {
		select {
		case <-time.After(patience):
			p.tellUser("waiting for %s to answer", httpcall.Redact(p.URL))
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
		RPC      string     `json:"jsonrpc"` // only an MCP endpoint sends it
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
