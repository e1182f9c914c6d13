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
	// smallBody is the largest body that the server reads from anyone. The sender of a request can be verified only
	// after its body was read, so memory for larger bodies is limited.
	smallBody = 256 << 10
	// largeBodies is the maximum number of larger bodies in memory.
	largeBodies = 25
	// largeTime limits how long the rest of a large body may take to arrive. Providers do not wait longer for a
	// response. 5 MiB in this time is 512 KiB per second.
	largeTime = 10 * time.Second
	// largeStall limits how long each further largePart bytes of a large body may take to arrive.
	largeStall = 2 * time.Second
	largePart  = 64 << 10
	// largeSlow is how long a large body may take when all slots are in use and another request needs one.
	largeSlow = 250 * time.Millisecond
	// unpacking is how many requests of one client may wait to be unpacked before they are verified.
	unpacking = 4
	// grown is the maximum memory reserved for a body before any of it has arrived.
	grown = 64 << 10
)

// bodySlots limits the memory for the bodies of senders that are not verified yet. The zero value is ready to use.
type bodySlots struct {
	mu      sync.Mutex
	taken   map[*bodySlot]struct{}
	waiting map[netip.Prefix]int // number of requests waiting to be unpacked

	turn sync.Mutex // held while unpacking the body of an unverified sender
}

// bodySlot is the permission to hold one large body in memory.
type bodySlot struct {
	slots    *bodySlots
	client   netip.Prefix
	since    time.Time
	received int    // bytes of the body so far
	cut      func() // ends the reading of the body; nil when it is not being read
	lost     bool   // whether the slot was given to another request
}

// reserve returns a slot for a client's large body. If all slots are in use, it takes one away from a body that
// arrives slowly, by calling that request's cut function. A request that has already read its body passes no cut.
func (s *bodySlots) reserve(client netip.Prefix, now time.Time, cut func()) (*bodySlot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.taken) >= largeBodies && !s.makeRoom(client, now) {
		return nil, quota.Exceeded("largeBodies", largeBodies, "%d bodies of more than %d bytes are being read; try again", largeBodies, smallBody)
	}
	if s.taken == nil {
		s.taken = map[*bodySlot]struct{}{}
	}
	slot := &bodySlot{slots: s, client: client, since: now, received: smallBody, cut: cut}
	s.taken[slot] = struct{}{}
	return slot, nil
}

// makeRoom frees the slot of the slowest body. A client that holds more slots than the new client would is a
// candidate even if its bodies arrive quickly, so that one client cannot keep the others out. The caller holds the
// lock.
func (s *bodySlots) makeRoom(client netip.Prefix, now time.Time) bool {
	has := map[netip.Prefix]int{}
	for slot := range s.taken {
		has[slot.client]++
	}
	var slowest *bodySlot
	for slot := range s.taken {
		if slot.cut == nil || has[slot.client] <= has[client]+1 && now.Sub(slot.since) < largeSlow {
			continue
		}
		if slowest == nil || slot.pace(now) < slowest.pace(now) {
			slowest = slot
		}
	}
	if slowest == nil {
		return false
	}
	slowest.lost = true
	slowest.cut()
	delete(s.taken, slowest)
	return true
}

// pace returns the average rate at which the body has arrived, in bytes per second.
func (slot *bodySlot) pace(now time.Time) float64 {
	return float64(slot.received) / max(now.Sub(slot.since), time.Millisecond).Seconds()
}

// await counts bytes that have arrived and sets the deadline for the next ones. It returns false if the slot was
// given to another request.
func (slot *bodySlot) await(control *http.ResponseController, until time.Time, arrived int64) bool {
	slot.slots.mu.Lock()
	defer slot.slots.mu.Unlock()
	slot.received += int(arrived)
	if !slot.lost {
		_ = control.SetReadDeadline(until) // fails in a Lambda function, which has the whole body already
	}
	return !slot.lost
}

// done marks the end of reading the body. It returns false if the slot was given to another request. It removes the
// deadline only from a complete body: before net/http responds, it reads the rest of an incomplete body, and without
// a deadline it could wait forever.
func (slot *bodySlot) done(control *http.ResponseController, complete bool) bool {
	slot.slots.mu.Lock()
	defer slot.slots.mu.Unlock()
	slot.cut = nil
	if !slot.lost && complete {
		_ = control.SetReadDeadline(time.Time{})
	}
	return !slot.lost
}

// release gives the slot back. The receiver may be nil.
func (slot *bodySlot) release() {
	if slot != nil {
		slot.slots.mu.Lock()
		defer slot.slots.mu.Unlock()
		delete(slot.slots.taken, slot)
	}
}

// read reads a body of at most [publish.MaxBody] bytes. It takes a slot only when the body turns out to be large. It
// does not rely on Content-Length, because a few requests that announce large bodies and send nothing would then keep
// all others out. The caller releases the slot, which may be nil, when it no longer needs the body.
func (s *bodySlots) read(w http.ResponseWriter, r *http.Request, clock func() time.Time) (content []byte, slot *bodySlot, err error) {
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, grown)) + bytes.MinRead)
	}
	coming := http.MaxBytesReader(w, r.Body, publish.MaxBody)
	n, err := body.ReadFrom(io.LimitReader(coming, smallBody+1))
	if err == nil && n > smallBody {
		control := http.NewResponseController(w)
		end := time.Now().Add(largeTime)
		slot, err = s.reserve(auth.ClientNetwork(r.RemoteAddr), clock(), func() { _ = control.SetReadDeadline(time.Unix(1, 0)) })
		if err != nil {
			return nil, nil, err
		}
		until := func() time.Time {
			if next := time.Now().Add(largeStall); next.Before(end) {
				return next
			}
			return end
		}
		for n = 0; slot.await(control, until(), n); {
			if n, err = body.ReadFrom(io.LimitReader(coming, largePart)); err != nil || n == 0 {
				break
			}
		}
		if !slot.done(control, err == nil) {
			return nil, nil, quota.Exceeded("largeBodies", largeBodies, "the body arrived too slowly while %d large ones were being read; try again", largeBodies)
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = tooLarge()
	} else if err != nil {
		err = fault.New(fault.Invalid, "the body ended early")
	}
	return body.Bytes(), slot, err
}

// unpack decompresses a body and calls use with the result. It does not call use if the body is malformed. The sender
// is not verified yet, so bodies are unpacked and used one at a time, because a few KiB can become 5 MiB.
func (s *bodySlots) unpack(r *http.Request, received []byte, use func(content []byte)) error {
	client := auth.ClientNetwork(r.RemoteAddr)
	s.mu.Lock()
	if s.waiting[client] >= unpacking {
		s.mu.Unlock()
		return quota.Exceeded("unpacking", unpacking, "%d bodies from this address are waiting to be unpacked; try again", unpacking)
	}
	if s.waiting == nil {
		s.waiting = map[netip.Prefix]int{}
	}
	s.waiting[client]++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.waiting[client]--; s.waiting[client] == 0 {
			delete(s.waiting, client)
		}
	}()
	s.turn.Lock()
	defer s.turn.Unlock()
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

// decode removes the Content-Encoding of a body. It limits the result to [publish.MaxBody] bytes, too.
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

// unzip decompresses a GZIP body to at most the given number of bytes.
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
