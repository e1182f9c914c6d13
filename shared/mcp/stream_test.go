package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// open is a stream that a test reads.
type open struct {
	t      testing.TB
	events chan sse.Event // closed at the end of the stream
	header http.Header
	status int
	cancel context.CancelFunc
	ended  chan struct{}
	hold   chan struct{} // closed: nothing more is read
}

// frame is a message of a stream.
type frame struct {
	ID     json.RawMessage
	Method string
	Params struct {
		URI           string
		Payload       json.RawMessage
		Notifications json.RawMessage
		Meta          map[string]json.RawMessage `json:"_meta"`
	}
	Result struct {
		ResultType string
		Meta       map[string]json.RawMessage `json:"_meta"`
	}
	Error *struct{ Code int }
	sse   sse.Event
}

func (f *fixture) open(req *http.Request) *open {
	f.t.Helper()
	ctx, cancel := context.WithCancel(req.Context())
	f.t.Cleanup(cancel)
	res, err := f.server.Client().Do(req.WithContext(ctx))
	must(f.t, err)
	o := &open{t: f.t, events: make(chan sse.Event, 100), header: res.Header, status: res.StatusCode, cancel: cancel, ended: make(chan struct{}), hold: make(chan struct{})}
	go func() {
		defer close(o.ended)
		defer close(o.events)
		defer res.Body.Close()
		r := sse.NewReader(res.Body, 1<<20)
		for {
			select {
			case <-o.hold:
				<-ctx.Done()
				return
			default:
			}
			e, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && ctx.Err() == nil {
					f.t.Errorf("read the stream: %v", err)
				}
				return
			}
			o.events <- e
		}
	}()
	f.t.Cleanup(func() { <-o.ended })
	f.t.Cleanup(cancel)
	return o
}

// stop leaves the stream open and reads no more.
func (o *open) stop() { close(o.hold) }

// listen opens a subscriptions/listen.
func (f *fixture) listen(key, id, filter string) *open {
	f.t.Helper()
	return f.listenWith(key, id, filter, "")
}

// listenWith adds members to the request's _meta.
func (f *fixture) listenWith(key, id, filter, meta string) *open {
	f.t.Helper()
	if meta != "" {
		meta = "," + meta
	}
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"subscriptions/listen","params":{"notifications":` + filter +
		`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{}}` + meta + `}}}`
	return f.open(f.request("POST", key, body, statelessHeaders(spec.MethodListen, "")...))
}

// stream opens the GET stream of a session.
func (f *fixture) stream(key, session, last string) *open {
	f.t.Helper()
	headers := []string{"Accept:", "Accept: text/event-stream", "Mcp-Session-Id: " + session}
	if last != "" {
		headers = append(headers, "Last-Event-ID: "+last)
	}
	return f.open(f.request("GET", key, "", headers...))
}

// event is the next SSE event; none within the patience ends the test.
func (o *open) event() sse.Event {
	o.t.Helper()
	select {
	case e, ok := <-o.events:
		if !ok {
			o.t.Fatal("the stream ended")
		}
		return e
	case <-time.After(patience):
		o.t.Fatal("nothing came on the stream")
	}
	return sse.Event{}
}

// next is the next message.
func (o *open) next() frame {
	o.t.Helper()
	e := o.event()
	var m frame
	if err := json.Unmarshal(e.Data, &m); err != nil {
		o.t.Fatalf("%q: %v", e.Data, err)
	}
	m.sse = e
	return m
}

// end waits for the end of the stream, with nothing before it.
func (o *open) end() {
	o.t.Helper()
	select {
	case e, ok := <-o.events:
		if ok {
			o.t.Fatalf("more on the stream: %q", e.Data)
		}
	case <-time.After(patience):
		o.t.Fatal("the stream did not end")
	}
}
