package main

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// received is an event as it arrived, in one form for every way.
type received struct {
	// Via is webhook (SEP-1803), events (a webhook of MCP Events), poll, push or stream.
	Via string `json:"via"`
	// Envelope is the type of a control message of MCP Events, which is no event.
	Envelope string `json:"envelope,omitempty"`
	// ID is the event's id, which is the webhook-id.
	ID           string `json:"id,omitempty"`
	Name         string `json:"name,omitempty"`
	URI          string `json:"uri,omitempty"`
	Time         string `json:"time,omitempty"`
	Subscription string `json:"subscription,omitempty"`
	// Repeat is true when an event with this id arrived before.
	Repeat bool `json:"repeat,omitempty"`
	// Verified tells of webhooks whether a signature was checked. It is false only
	// where the server sends unsigned ones.
	Verified *bool           `json:"verified,omitempty"`
	Received time.Time       `json:"received"`
	Cursor   string          `json:"cursor,omitempty"`
	Data     json.RawMessage `json:"data"`
}

// printer prints what arrives, one line each, and knows how much is wanted.
type printer struct {
	mu   sync.Mutex
	out  io.Writer
	want int // 0 is no end
	got  int
	full chan struct{} // closed when got reaches want

	// seen are the last ids, oldest first.
	seen  map[string]bool
	order []string
}

// maxSeen bounds what a repetition is recognised by.
const maxSeen = 100_000

func newPrinter(out io.Writer, want int) *printer {
	return &printer{out: out, want: want, full: make(chan struct{}), seen: map[string]bool{}}
}

// print prints one; repetitions do not count.
func (p *printer) print(r received) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.ID != "" {
		key := r.Via + r.Subscription + r.ID
		r.Repeat = p.seen[key]
		if !r.Repeat {
			p.seen[key] = true
			if p.order = append(p.order, key); len(p.order) > maxSeen {
				delete(p.seen, p.order[0])
				p.order = p.order[1:]
			}
		}
	}
	if len(r.Data) == 0 {
		r.Data = json.RawMessage("null")
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "encode what arrived")
	}
	if _, err := p.out.Write(append(b, '\n')); err != nil {
		return fault.Wrap(fault.Internal, err, "print")
	}
	if r.Repeat || r.Envelope != "" {
		return nil
	}
	if p.got++; p.got == p.want {
		close(p.full)
	}
	return nil
}
