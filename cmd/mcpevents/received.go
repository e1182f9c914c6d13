package main

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/fault"
)

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
func (p *printer) print(r client.Event) error {
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
