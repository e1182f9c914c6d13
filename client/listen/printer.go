package listen

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// printer prints what arrives, one line each, and knows how much is wanted.
type printer struct {
	mu   sync.Mutex
	out  io.Writer
	want int // 0 is no end
	got  int
	full func() // called when got reaches want
	seen *bounded.Map[string, struct{}]
}

// maxSeen bounds what a repetition is recognised by.
const maxSeen = 100_000

func newPrinter(out io.Writer, want int, full func()) *printer {
	return &printer{out: out, want: want, full: full, seen: bounded.NewMap[string, struct{}](maxSeen)}
}

// print prints one; repetitions do not count.
func (p *printer) print(r client.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.ID != "" {
		key := r.Via + r.Subscription + r.ID
		_, r.Repeat = p.seen.Get(key)
		p.seen.Put(key, struct{}{})
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
	p.counted()
	return nil
}

// count counts an event that is not printed.
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

// missing is how many events are still wanted.
func (p *printer) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.want-p.got)
}
