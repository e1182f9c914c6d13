package stream

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// PollRequest selects the events of a poll, and where it starts.
type PollRequest struct {
	Workspace string
	Principal string // the reader; it matters only for events of backends
	Pattern   match.Pattern
	// Cursor comes from an earlier poll, stream or webhook of the same pattern. If it is empty, the poll begins at the end of the log.
	Cursor string
	// MaxAge is the maximum age of the events; 0 is no limit. Events may be older by up to [eventlog.Window].
	MaxAge time.Duration
	// Wants reports whether the poll returns an event; nil returns all events.
	Wants func(*event.Event) bool
	// Most limits the number of events, and Bytes limits the total size of their payloads. The first event may be larger than Bytes.
	Most, Bytes int
}

// Page is the result of a poll.
type Page struct {
	Events []*event.Event
	// Cursor is the position after the events. A client can resume from it with a poll, stream or webhook, in any process.
	Cursor string
	// Truncated reports that the log no longer has all events after the request's cursor, or that some of the events cannot be read.
	Truncated bool
	// More reports that the log already has further events after Cursor.
	More bool
	// Quiet is the time since a poll of this client last returned events. Each cursor carries the time of that poll to the next poll.
	Quiet time.Duration
}

// These constants limit the events that one poll examines, and their payloads. Events that the poll drops count too.
const (
	maxExamined      = 2000
	maxExaminedBytes = 8 << 20
)

// maxOpen limits how many entries from the last few seconds ([eventlog.Window]) a poll may return. The next cursor must name each of them
// by a hash, and has room for [eventlog.MaxSent] hashes. maxOpen leaves one hash free per shard, for a last entry with the same key as
// the first entry that waits for the next poll.
const maxOpen = eventlog.MaxSent - eventlog.Shards

// Poll reads the events after a cursor once, and keeps no state. It merges the events of several partitions by their keys, so that the
// new cursor can be one position for all of them.
//
// The new cursor must not pass an event that is committed to a partition after Poll has read the partition. So Poll first asks for the
// log's settled position, up to which no more keys are committed. If the store chooses the keys, Poll reads only up to there. If writers
// choose the keys, it also reads the events of the last few seconds ([eventlog.Window]), but the cursor stays before them and names the
// returned ones. An event for which the cursor has no room waits until it is older than the window.
//
// Poll stops before an item that a later release of the server wrote, but continues in other partitions. So the cursor has a separate
// position for the item's partition. The client gets the rest of this partition from a server of that release.
func (ts *Tails) Poll(ctx context.Context, r PollRequest) (*Page, error) {
	if err := ts.Demand.Want(ctx, r.Workspace, r.Principal, r.Pattern.Key); err != nil {
		return nil, err
	}
	p := poll{tails: ts, request: r, began: ts.Log.Time(), seen: map[string]bool{}, resume: map[uint64]sentEntry{}}
	p.settled = ts.Log.SettledPosition()
	p.lastTraffic = p.began.UnixMicro()
	var reaches int64
	if r.Pattern.Kind != match.Concrete {
		in, err := ts.recordInterest(ctx, r.Workspace, r.Pattern)
		if err != nil {
			return nil, err
		}
		reaches = in.FirstPosition()
	}
	if r.Cursor == "" {
		c, err := p.endCursor(ctx)
		if err != nil {
			return nil, err
		}
		return p.newPage(c), nil
	}
	c, err := ts.Sealer.Open(r.Workspace, r.Cursor)
	if err != nil {
		return nil, err
	}
	parts := r.Pattern.Partitions(ts.Log, r.Workspace)
	var sole eventlog.Partition
	if len(parts) == 1 {
		sole = parts[0]
	}
	p.start, p.truncated = ts.startPosition(c, sole, r.MaxAge)
	if reaches > max(p.start, c.Given) {
		p.start, p.truncated = reaches, true
	}
	p.given = c.Given
	for _, hash := range c.Sent {
		p.resume[hash] = sentEntry{hash: hash}
	}
	p.open = len(p.resume)
	if p.lastTraffic = c.Last; c.Last == 0 {
		p.lastTraffic = c.At
	}
	p.join()
	if len(c.Places) > 0 && len(parts) > 1 {
		for _, s := range p.readers { // an earlier poll may have stopped in some partitions before an item of a later release
			start, truncated := ts.startPosition(c, s.part, r.MaxAge)
			if start < p.start {
				s.start, s.pos, s.apart = start, start, true
				p.truncated = p.truncated || truncated
			}
		}
	}
	if err := p.read(ctx); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "poll the log")
	}
	if len(p.events) > 0 || p.held {
		p.lastTraffic = p.began.UnixMicro()
	}
	return p.newPage(p.nextCursor()), nil
}

// poll is the state of one [Tails.Poll].
type poll struct {
	tails   *Tails
	request PollRequest

	began     time.Time
	settled   int64 // entries with keys up to settled are not committed any more; see [eventlog.Log.SettledPosition]
	start     int64
	given     int64 // [eventlog.Cursor.Given] of the request's cursor
	truncated bool
	exact     bool // the keys of all partitions grow in the order of commits

	readers []*pollReader
	events  []*event.Event
	bytes   int
	seen    map[string]bool // the ids of the entries that this poll has read and that the client gets or already has
	// resume has the entries after the cursor's position that earlier polls already returned, by the hashes with which the cursor names
	// them. The map's values have only the hash until this poll reads the entry.
	resume        map[uint64]sentEntry
	sent          []sentEntry // the entries that this poll returns; empty if exact is true
	open          int         // how many entries the next cursor may have to name
	examined      int
	examinedBytes int
	last          int64 // the key of the last entry that was examined
	lastTraffic   int64 // when a poll last returned events; see [eventlog.Cursor.Last]
	more, held    bool  // held says that an entry waits because the cursor has no room for its hash
}

type sentEntry struct {
	hash uint64
	key  int64
	from *pollReader // nil until this poll has read the entry
}

// pollReader reads the entries of one partition ahead.
type pollReader struct {
	part  eventlog.Partition
	limit int
	ahead []eventlog.Entry
	start int64
	pos   int64 // the position up to which the reader has read
	more  bool
	later bool  // the reader has stopped before an item that a later release wrote
	apart bool  // the cursor needs a separate position, because this reader or an earlier poll has stopped before such an item
	floor int64 // the position from which the next poll reads
}

// takenUntil returns the position up to which the poll has handled all entries of the partition. It returns [math.MaxInt64] if the poll
// has handled the whole partition.
func (s *pollReader) takenUntil() int64 {
	switch {
	case len(s.ahead) > 0:
		return s.ahead[0].Key - 1
	case s.more, s.later:
		return s.pos
	}
	return math.MaxInt64
}

func (p *poll) join() {
	parts := p.request.Pattern.Partitions(p.tails.Log, p.request.Workspace)
	limit := p.request.Most + 1
	if len(parts) > 1 {
		limit = max(10, limit/4)
	}
	// All partitions of a pattern have the same LookBack, so it is enough to check the first one. LookBack is 0 on SQLite. It is also 0
	// for a URI's own partition on DynamoDB, which is the only partition of its pattern.
	p.exact = p.tails.Log.LookBack(parts[0]) == 0
	for _, part := range parts {
		p.readers = append(p.readers, &pollReader{part: part, limit: min(limit, pageSize), start: p.start, pos: p.start, more: true})
	}
}

// endCursor returns a cursor that skips all entries of the log. If keys grow in commit order, the cursor is at the last entry. Otherwise
// the cursor is at [eventlog.Log.Position], and also has the hashes of the entries with later keys. Keys are later, for example, if a
// writer's clock was set back.
func (p *poll) endCursor(ctx context.Context) (c eventlog.Cursor, err error) {
	log, r := p.tails.Log, p.request
	p.start = log.Position()
	if p.join(); p.exact {
		c.Given = p.began.UnixMicro()
		c.At, err = log.EndOf(ctx, r.Workspace, r.Pattern.Key)
		return c, err
	}
	c.At = p.start
	for more := true; more; {
		if err := p.readAll(ctx); err != nil {
			return c, fault.Wrap(fault.Unavailable, err, "read the end of the log")
		}
		more = false
		for _, s := range p.readers {
			for _, e := range s.ahead {
				c.Sent = append(c.Sent, p.tails.Sealer.Hash(e.ID()))
			}
			s.ahead = nil
			more = more || s.more
		}
	}
	return c, nil
}

func (p *poll) readAll(ctx context.Context) error {
	var all errgroup.Group
	for _, s := range p.readers {
		all.Go(func() (err error) {
			defer fault.Recovered(&err)
			return p.readAhead(ctx, s)
		})
	}
	return all.Wait()
}

// read fills the page with entries in the order of their keys, until it reaches a limit or the end of the log.
func (p *poll) read(ctx context.Context) error {
	if err := p.readAll(ctx); err != nil {
		return err
	}
	for {
		s, err := p.nextReader(ctx)
		if err != nil || s == nil {
			return err
		}
		if p.examined == maxExamined || p.examinedBytes >= maxExaminedBytes {
			p.more = true
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e := s.ahead[0].Event; e != nil {
			p.examinedBytes += len(e.Data)
		}
		if !p.take(s, s.ahead[0]) {
			return nil
		}
		p.examined++
		p.last = s.ahead[0].Key
		s.ahead = s.ahead[1:]
	}
}

// nextReader returns the reader whose next entry has the smallest key, or nil if there are no more entries.
func (p *poll) nextReader(ctx context.Context) (first *pollReader, err error) {
	for _, s := range p.readers {
		if err := p.readAhead(ctx, s); err != nil {
			return nil, err
		}
		if len(s.ahead) > 0 && (first == nil || s.ahead[0].Key < first.ahead[0].Key) {
			first = s
		}
	}
	return first, nil
}

// readAhead makes sure that a reader has its next entry, unless the partition ends or a later release wrote the next item.
func (p *poll) readAhead(ctx context.Context, s *pollReader) (err error) {
	for len(s.ahead) == 0 && s.more {
		s.ahead, s.more, s.pos, err = p.tails.Log.ReadUntil(ctx, s.part, s.pos, p.settled, s.limit)
		if errors.Is(err, eventlog.ErrLater) { // package eventlog has already logged it
			s.more, s.later, s.apart = false, true, len(p.readers) > 1
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take adds an entry to the page, unless the client already has the entry or does not want it. take returns false if the entry must wait
// for the next poll, because the page is full or the cursor cannot name another recent entry (see [maxOpen]).
func (p *poll) take(s *pollReader, e eventlog.Entry) bool {
	id := e.ID()
	if e.Event == nil && !e.Lost || p.seen[id] || e.Event != nil && p.request.Wants != nil && !p.request.Wants(e.Event) {
		return true
	}
	hash := p.tails.Sealer.Hash(id)
	open := !p.exact && e.Key > p.settled
	if _, known := p.resume[hash]; known {
		p.seen[id] = true
		if p.resume[hash] = (sentEntry{hash, e.Key, s}); !open {
			p.open--
		}
		return true
	}
	size := sizeOf(e)
	switch {
	case !e.Lost && (len(p.events) >= p.request.Most || len(p.events) > 0 && p.bytes+size > p.request.Bytes):
		p.more = true
		return false
	case open && p.open >= maxOpen:
		p.held = true
		return false
	case open:
		p.open++
	}
	if !p.exact {
		p.sent = append(p.sent, sentEntry{hash, e.Key, s})
	}
	p.seen[id] = true
	if e.Lost {
		p.truncated = true
		return true
	}
	p.events = append(p.events, e.Event)
	p.bytes += size
	return true
}

func (p *poll) nextCursor() eventlog.Cursor {
	at, rest := int64(math.MaxInt64), false
	for _, s := range p.readers {
		reached := s.takenUntil()
		rest = rest || reached < math.MaxInt64
		if !s.apart {
			at = min(at, reached)
		}
	}
	switch {
	case !p.exact:
		at = min(at, p.settled)
	case at == math.MaxInt64:
		at = max(p.last, p.settled)
	}
	c := eventlog.Cursor{At: max(at, p.start)}
	for _, s := range p.readers {
		s.floor = c.At
		if !s.apart {
			continue
		}
		reached := s.takenUntil()
		if !p.exact {
			reached = min(reached, p.settled)
		}
		if s.floor = min(c.At, max(reached, s.start)); s.floor < c.At {
			c.Places = append(c.Places, p.tails.Sealer.PlaceOf(s.part, s.floor))
		}
	}
	given := p.began.UnixMicro()
	if rest {
		given = p.given // the entries after the new position were all written after the request's cursor was given
	}
	c.Given = p.tails.Log.GivenAt(given)
	for _, s := range p.sent {
		if s.key > s.from.floor {
			c.Sent = append(c.Sent, s.hash)
		}
	}
	for hash, s := range p.resume {
		if s.from == nil && rest || s.from != nil && s.key > s.from.floor {
			c.Sent = append(c.Sent, hash)
		}
	}
	return c
}

func (p *poll) newPage(c eventlog.Cursor) *Page {
	c.Last = p.lastTraffic
	return &Page{
		Events: p.events, Truncated: p.truncated, More: p.more,
		Cursor: p.tails.Sealer.Seal(p.request.Workspace, c),
		Quiet:  max(0, p.began.Sub(time.UnixMicro(p.lastTraffic))),
	}
}
