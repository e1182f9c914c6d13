package ingest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const (
	// smallBody is the size up to which the server reads a body from anyone. A request's sender is known only when its body
	// has been read, so memory for larger ones is limited.
	smallBody = 256 << 10
	// largeBodies is how many larger bodies are in memory at the same time.
	largeBodies = 25
	// largeTime is how long the rest of a large body may take, because providers wait no longer for an answer. 5 MiB need
	// 512 KiB per second.
	largeTime = 10 * time.Second
	// largeStall is how long the next largePart bytes of a large body may take.
	largeStall = 2 * time.Second
	largePart  = 64 << 10
	// largeSlow is how long a large body may take if all places are in use and another request needs one.
	largeSlow = 250 * time.Millisecond
	// unpacking is how many requests of one client may wait for their turn to be unpacked before they are verified.
	unpacking = 4
	// grown is how much memory is reserved for a body before any of it has arrived.
	grown = 64 << 10
)

// room limits the memory for bodies whose senders are not known yet. The zero value is ready to use.
type room struct {
	mu      sync.Mutex
	taken   map[*place]struct{}
	waiting map[netip.Prefix]int // to be unpacked

	turn sync.Mutex // held while a body is unpacked that may be a stranger's
}

// place is the permission to hold one large body.
type place struct {
	room     *room
	client   netip.Prefix
	since    time.Time
	received int    // bytes of the body
	cut      func() // ends the reading of the body; nil if it is not being read
	lost     bool   // it was given to another request
}

// enter returns a place for a client's large body. If all are taken, it takes one from a body that arrives slowly. The request
// that reads a body has a cut function.
func (m *room) enter(client netip.Prefix, now time.Time, cut func()) (*place, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.taken) >= largeBodies && !m.makeRoom(client, now) {
		return nil, quota.Exceeded("largeBodies", largeBodies, "%d bodies of more than %d bytes are being read; try again", largeBodies, smallBody)
	}
	if m.taken == nil {
		m.taken = map[*place]struct{}{}
	}
	p := &place{room: m, client: client, since: now, received: smallBody, cut: cut}
	m.taken[p] = struct{}{}
	return p, nil
}

// makeRoom frees the place of the slowest body. A client that has more places than the new one would have loses one even if its
// bodies are quick, so that one client cannot keep the others out. The caller holds the lock.
func (m *room) makeRoom(client netip.Prefix, now time.Time) bool {
	has := map[netip.Prefix]int{}
	for p := range m.taken {
		has[p.client]++
	}
	var slowest *place
	for p := range m.taken {
		if p.cut == nil || has[p.client] <= has[client]+1 && now.Sub(p.since) < largeSlow {
			continue
		}
		if slowest == nil || p.pace(now) < slowest.pace(now) {
			slowest = p
		}
	}
	if slowest == nil {
		return false
	}
	slowest.lost = true
	slowest.cut()
	delete(m.taken, slowest)
	return true
}

// pace returns the bytes per second of a body so far.
func (p *place) pace(now time.Time) float64 {
	return float64(p.received) / max(now.Sub(p.since), time.Millisecond).Seconds()
}

// await counts bytes of the body that have arrived and sets the deadline of the next ones. It returns false if the place was given
// to another request.
func (p *place) await(control *http.ResponseController, until time.Time, arrived int64) bool {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	p.received += int(arrived)
	if !p.lost {
		_ = control.SetReadDeadline(until) // a function has its body already
	}
	return !p.lost
}

// done notes that the reading of the body has ended. It returns false if the place was given to another request. Only a complete body
// has its deadline removed: before net/http answers, it reads what is left of an incomplete one, and would wait for that forever.
func (p *place) done(control *http.ResponseController, complete bool) bool {
	p.room.mu.Lock()
	defer p.room.mu.Unlock()
	p.cut = nil
	if !p.lost && complete {
		_ = control.SetReadDeadline(time.Time{})
	}
	return !p.lost
}

// leave gives a place back. p may be nil.
func (p *place) leave() {
	if p != nil {
		p.room.mu.Lock()
		defer p.room.mu.Unlock()
		delete(p.room.taken, p)
	}
}

// read reads a body of at most [publish.MaxBody] bytes. It takes a place when the body turns out to be large. It does not
// believe Content-Length, because a few requests that send nothing would then keep out all large ones. The caller leaves the
// place, which may be nil, when the body is no longer in use.
func (m *room) read(w http.ResponseWriter, r *http.Request, clock func() time.Time) (content []byte, p *place, err error) {
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, grown)) + bytes.MinRead)
	}
	coming := http.MaxBytesReader(w, r.Body, publish.MaxBody)
	n, err := body.ReadFrom(io.LimitReader(coming, smallBody+1))
	if err == nil && n > smallBody {
		control := http.NewResponseController(w)
		end := time.Now().Add(largeTime)
		p, err = m.enter(auth.ClientNetwork(r.RemoteAddr), clock(), func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })
		if err != nil {
			return nil, nil, err
		}
		until := func() time.Time {
			if next := time.Now().Add(largeStall); next.Before(end) {
				return next
			}
			return end
		}
		for n = 0; p.await(control, until(), n); {
			if n, err = body.ReadFrom(io.LimitReader(coming, largePart)); err != nil || n == 0 {
				break
			}
		}
		if !p.done(control, err == nil) {
			return nil, nil, quota.Exceeded("largeBodies", largeBodies, "the body arrived too slowly while %d large ones were being read; try again", largeBodies)
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = tooLarge()
	} else if err != nil {
		err = fault.New(fault.Invalid, "the body ended early")
	}
	return body.Bytes(), p, err
}

// unpack calls use with a body without its Content-Encoding, if it has a valid one. The sender is not known yet. Bodies are
// unpacked and used one at a time, because a few KiB can become 5 MiB.
func (m *room) unpack(r *http.Request, received []byte, use func(content []byte)) error {
	client := auth.ClientNetwork(r.RemoteAddr)
	m.mu.Lock()
	if m.waiting[client] >= unpacking {
		m.mu.Unlock()
		return quota.Exceeded("unpacking", unpacking, "%d bodies from this address are waiting to be unpacked; try again", unpacking)
	}
	if m.waiting == nil {
		m.waiting = map[netip.Prefix]int{}
	}
	m.waiting[client]++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.waiting[client]--; m.waiting[client] == 0 {
			delete(m.waiting, client)
		}
	}()
	m.turn.Lock()
	defer m.turn.Unlock()
	if err := r.Context().Err(); err != nil {
		return err
	}
	if content, err := decode(r.Header, received); err == nil {
		use(content)
	}
	return nil
}

// isEncoded reports whether a body has a Content-Encoding.
func isEncoded(h http.Header) bool {
	encoding := h.Get("Content-Encoding")
	return encoding != "" && !strings.EqualFold(encoding, "identity")
}

// decode removes the Content-Encoding of a body. The result has at most [publish.MaxBody] bytes, too.
func decode(h http.Header, body []byte) ([]byte, error) {
	switch encoding := h.Get("Content-Encoding"); {
	case !isEncoded(h):
		return body, nil
	case strings.EqualFold(encoding, "gzip"):
		return unzip(body, publish.MaxBody)
	default:
		return nil, fault.New(fault.Unsupported, "the Content-Encoding %.32q is not supported (allowed: gzip)", encoding)
	}
}

// unzip returns the content of a GZIP body, of at most so many bytes.
func unzip(body []byte, most int) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not GZIP")
	}
	content, err := io.ReadAll(io.LimitReader(z, int64(most)+1))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not GZIP")
	}
	if len(content) > most {
		return nil, tooLarge()
	}
	return content, nil
}

func tooLarge() error {
	return fault.New(fault.TooLarge, "the body is larger than %d bytes", publish.MaxBody).AtLimit("body", publish.MaxBody)
}
