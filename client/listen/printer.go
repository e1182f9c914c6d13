package listen

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// line is a printed line: an event, or a gap.
type line struct {
	client.Event
	// Envelope is gap for a gap.
	Envelope string `json:"envelope,omitempty"`
}

// printer prints a line of JSON for each event, and calls full after the wanted number of events.
type printer struct {
	mu   sync.Mutex
	out  io.Writer
	want int // 0 is no limit
	got  int
	full func()
}

func (p *printer) print(l line) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(l.Data) == 0 {
		l.Data = json.RawMessage("null")
	}
	b, err := json.Marshal(l)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "encode the event")
	}
	if _, err := p.out.Write(append(b, '\n')); err != nil {
		return fault.Wrap(fault.Internal, err, "print")
	}
	if l.Envelope == "" {
		p.counted()
	}
	return nil
}

// count counts an event without printing it.
func (p *printer) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted()
}

func (p *printer) counted() {
	if p.got++; p.got == p.want {
		p.full()
	}
}

// missing returns the number of events that have not arrived yet.
func (p *printer) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.want-p.got)
}
