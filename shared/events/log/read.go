package eventlog

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Read returns a page of the entries of p whose keys are greater than the parameter after, oldest first. The parameter limit is the
// approximate number of items to read, which hold one or more entries each. If more is true, the caller passes next as after to get the
// next page. Otherwise the caller has all entries with keys up to next that were committed before the call.
//
// If a later release of the server wrote the first item, Read fails with [ErrLater]. For an item that cannot be decoded, it returns an
// entry with [Entry.Lost].
func (l *Log) Read(ctx context.Context, p Partition, after int64, limit int) (entries []Entry, more bool, next int64, err error) {
	return l.ReadUntil(ctx, p, after, l.DB.End(), limit)
}

// ReadUntil reads like [Log.Read], but only up to the position end, which the caller got from [Log.SettledPosition]. Readers of several
// partitions pass the same end for each of them, so that they see all partitions at the same moment. If writers choose the keys,
// ReadUntil ignores end.
func (l *Log) ReadUntil(ctx context.Context, p Partition, after, end int64, limit int) (entries []Entry, more bool, next int64, err error) {
	return l.read(ctx, p, after, end, limit, false)
}

// ReadPast reads like [Log.Read], but does not stop before an item that a later release of the server wrote. It returns an entry with
// [Entry.Lost] for the item instead, because its callers cannot wait for that release.
func (l *Log) ReadPast(ctx context.Context, p Partition, after int64, limit int) (entries []Entry, more bool, next int64, err error) {
	return l.read(ctx, p, after, l.DB.End(), limit, true)
}

func (l *Log) read(ctx context.Context, p Partition, after, end int64, limit int, past bool) (entries []Entry, more bool, next int64, err error) {
	q := store.Query{Table: store.Log, Partition: p.name, After: afterKey(after), Limit: limit}
	if l.TotalOrder() {
		q.Until = sortKey(end)
	} else {
		end = 0
	}
	page, err := l.DB.Query(ctx, q)
	if err == nil && l.LookBack(p) > 0 { // several writers may have used the same stamp
		err = l.completeStamp(ctx, p, &page)
	}
	if err != nil {
		return nil, false, after, fault.Wrap(fault.Unavailable, err, "read the log")
	}
	next = after
	horizon := l.Time().Add(2 * MaxSkew).UnixMicro()
	for _, item := range page.Items {
		es, err := l.decode(ctx, item)
		key, keyErr := parseKey(item.Sort)
		if err == ErrLater && past {
			es, err = []Entry{lostEntry(item, key)}, nil
		}
		if err == ErrLater && next > after && key > next {
			return entries, true, next, nil // return the entries so far; the next read returns the error
		}
		if err != nil {
			return nil, false, after, err
		}
		if keyErr == nil {
			next = max(next, key)
		}
		for _, e := range es {
			if e.Key > after {
				entries = append(entries, e)
			}
			if e.Key > horizon {
				l.Skewed.Add(1)
			}
		}
	}
	if page.More && page.Last != "" {
		if k, err := parseKey(page.Last); err == nil {
			next = max(next, k)
		}
	}
	if !page.More {
		next = max(next, end)
	}
	return entries, page.More, next, nil
}

// completeStamp reads the remaining items with the same key as the page's last item, and adds them to the page. Otherwise readers would
// miss them, because the next page begins after that key.
func (l *Log) completeStamp(ctx context.Context, p Partition, page *store.Page) error {
	if len(page.Last) < stampSize {
		return nil
	}
	stamp := page.Last[:stampSize]
	for rest := page.More; rest; {
		more, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, After: page.Last, Until: stamp + "~", Limit: 100})
		if err != nil {
			return err
		}
		page.Items = append(page.Items, more.Items...)
		if rest = more.More; rest {
			page.Last = more.Last
		}
	}
	return nil
}

// LatestBytes limits the total size of the payloads that [Log.Latest] and [Log.LatestBelow] return or hold in memory.
const LatestBytes = 1 << 20

// Latest returns up to n of the newest events of a URI, oldest first, with up to [LatestBytes] of payloads.
func (l *Log) Latest(ctx context.Context, workspace, uri string, unordered bool, n int) ([]event.Event, error) {
	var found []positionedEvent
	for _, p := range l.PartitionsOf(workspace, uri, unordered) {
		page, err := l.DB.Query(ctx, store.Query{Table: store.Log, Partition: p.name, Reverse: true, Limit: n})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the latest events of %s", uri)
		}
		for _, item := range page.Items {
			for i, e := range l.events(ctx, item) {
				found = append(found, positionedEvent{item.Sort, i, e.ID(), *e.Event})
			}
		}
		slices.SortStableFunc(found, func(a, b positionedEvent) int {
			return cmp.Or(strings.Compare(b.segment, a.segment), b.position-a.position)
		})
		seen := map[string]bool{} // an event may be in the log twice, because its batch was repeated
		found = slices.DeleteFunc(found, func(e positionedEvent) bool {
			again := seen[e.id]
			seen[e.id] = true
			return again
		})
		found = takeFitting(found, n, func(e positionedEvent) int { return len(e.event.Data) })
	}
	events := make([]event.Event, len(found))
	for i, e := range found {
		events[len(found)-1-i] = e.event
	}
	return events, nil
}

// positionedEvent is an event with its position in the log, by which [Log.Latest] sorts events.
type positionedEvent struct {
	segment  string // the sort key of the event's segment
	position int    // the index of the event in the segment
	id       string
	event    event.Event
}

// takeFitting returns the first events, at most n, whose payloads together fit into [LatestBytes]. It returns the first event even if its
// payload is larger. It sets the other elements of the slice to zero, so that the garbage collector can free their payloads.
func takeFitting[T any](events []T, n int, size func(T) int) []T {
	fit, bytes := 0, 0
	for fit < min(n, len(events)) {
		if bytes += size(events[fit]); bytes > LatestBytes && fit > 0 {
			break
		}
		fit++
	}
	clear(events[fit:])
	return events[:fit]
}

// Newest returns a page of up to n events, newest first, that were written to the partitions between since and until. The parameter
// before is "" for the first page, and the result next of the previous page for each further page. The result next is "" after the last
// page.
func (l *Log) Newest(ctx context.Context, parts []Partition, since, until time.Time, before string, n int) (events []event.Event, next string, err error) {
	at, skip := parsePosition(before)
	if before = at; skip > 0 {
		before += "!" // read the items with this key again, because only the first events of these were on the previous page
	}
	items, floor, err := l.newestItems(ctx, parts, since, until, before, n+1)
	if err != nil {
		return nil, "", err
	}
	sort, index := "", 0 // the sort key of the current event's item, and how many events with this key came before
	end, last := "", 0   // the sort key of the page's last event, and how many events with this key the pages have so far
	for _, it := range items {
		if it.Sort < floor {
			break
		}
		if it.Sort != sort {
			sort, index = it.Sort, 0
		}
		for _, e := range slices.Backward(l.events(ctx, it)) {
			if e.Event == nil || it.Sort == at && index < skip {
				index++
				continue
			}
			if len(events) == n {
				return events, formatPosition(end, last), nil
			}
			events = append(events, *e.Event)
			index++
			end, last = sort, index
		}
	}
	if floor != "" && sort != "" {
		next = formatPosition(sort, index)
	}
	return events, next, nil
}

// newestItems returns up to n items of each partition, newest first. It considers only items that were written between since and until,
// and whose sort keys are less than the parameter before. If a partition has more than n such items, the result may lack items whose sort
// keys are less than floor.
func (l *Log) newestItems(ctx context.Context, parts []Partition, since, until time.Time, before string, n int) (items []store.Item, floor string, err error) {
	for _, p := range parts {
		q := store.Query{Table: store.Log, Partition: p.name, Reverse: true, Before: before, Limit: n}
		if !since.IsZero() {
			q.After = sortKey(max(since.UnixMicro()-1, 0))
		}
		if !until.IsZero() {
			q.Until = afterKey(until.UnixMicro())
		}
		page, err := l.DB.Query(ctx, q)
		if err != nil {
			return nil, "", fault.Wrap(fault.Unavailable, err, "read the newest events")
		}
		if items = append(items, page.Items...); page.More {
			floor = max(floor, page.Last)
		}
	}
	slices.SortStableFunc(items, func(a, b store.Item) int { return strings.Compare(b.Sort, a.Sort) })
	return items, floor, nil
}

// formatPosition encodes a position for [Log.Newest]. The position is after the first n events with the given sort key. Items of several
// partitions may have this sort key, and n counts the events of all of them.
func formatPosition(sort string, n int) string { return fmt.Sprintf("%s/%d", sort, n) }

// parsePosition decodes a position that formatPosition encoded. A position that the previous release encoded has no number, and is after
// all events with its sort key.
func parsePosition(text string) (sort string, n int) {
	sort, number, _ := strings.Cut(text, "/")
	n, _ = strconv.Atoi(number) // 0 if the number is invalid, because a caller invented the position
	return sort, n
}

// NewestBatches returns the events in the newest n items of the partitions, newest first. It considers only items that were
// written since the given time. An item holds the events that were written together, so there may be more than n events.
func (l *Log) NewestBatches(ctx context.Context, parts []Partition, since time.Time, n int) (events []event.Event, err error) {
	items, _, err := l.newestItems(ctx, parts, since, time.Time{}, "", n)
	if err != nil {
		return nil, err
	}
	for _, it := range items[:min(n, len(items))] {
		for _, e := range slices.Backward(l.events(ctx, it)) {
			if e.Event != nil {
				events = append(events, *e.Event)
			}
		}
	}
	return events, nil
}

// Find returns the event with an id from the partitions of a URI, or nil if it does not find the event. An id that [event.NewID] made
// contains its time, so Find looks at n items of each partition from that time on. For any other id, it looks at the newest n items of
// all partitions together.
func (l *Log) Find(ctx context.Context, parts []Partition, id string, n int) (*event.Event, error) {
	made, ok := event.TimeOfID(id)
	if !ok {
		events, err := l.NewestBatches(ctx, parts, time.Time{}, n)
		if i := slices.IndexFunc(events, func(e event.Event) bool { return e.ID == id }); i >= 0 {
			return &events[i], nil
		}
		return nil, err
	}
	for _, p := range parts {
		page, err := l.DB.Query(ctx, store.Query{
			Table: store.Log, Partition: p.name, After: sortKey(made.Add(-2 * MaxSkew).UnixMicro()), Limit: n,
		})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "look for an event")
		}
		for _, it := range page.Items {
			if e := l.findIn(ctx, it, id); e != nil {
				return e, nil
			}
		}
	}
	return nil, nil
}

func (l *Log) findIn(ctx context.Context, segment store.Item, id string) *event.Event {
	for _, e := range slices.Backward(l.events(ctx, segment)) {
		if e.Event != nil && e.Event.ID == id {
			return e.Event
		}
	}
	return nil
}

// Cursor is a client's position in one or more partitions of the log.
type Cursor struct {
	// At is a time in microseconds since 1970. Every entry with a key up to At was sent to the client.
	At int64
	// Sent has the hashes (see [Sealer.Hash]) of entries after At that were also sent to the client. There are at most [MaxSent].
	Sent []uint64
	// Places has separate positions for some partitions, at most [MaxPlaces]. In these partitions, the separate position applies instead
	// of At.
	Places []Place
	// Given is the time at which At was the end of the log, in the unit of At; 0 is unknown. Every entry after At was written after
	// Given. So a cursor is not too old if Given is recent, even if At is old because no events were published for a long time.
	Given int64
	// Last is when a poll last returned events, in the unit of At; 0 is unknown. It only affects how soon the server tells the client to
	// poll again.
	Last int64
}

// Place is a cursor's position in one partition, which applies in that partition instead of [Cursor.At].
type Place struct {
	Partition uint64 // the keyed hash of the partition's name; see [Sealer.PlaceOf]
	At        int64
}

// MaxPlaces is the maximum number of partitions for which a cursor can have separate positions.
const MaxPlaces = 16

// MaxSent is the maximum length of [Cursor.Sent]. If more entries after [Cursor.At] were sent, the cursor leaves some of them out. A client
// that resumes from the cursor gets these entries again, but it never misses any.
const MaxSent = 64

// Sealer encodes cursors as opaque tokens. It authenticates a token with a key of the deployment, so that a client cannot change the
// token or use it in another workspace.
type Sealer struct {
	key     []byte
	hashers sync.Pool // HMACs with the key, which sum reuses
}

// NewSealer returns a sealer. The key must have at least 32 random bytes, and must be the same in all processes of the deployment.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) < 32 {
		return nil, fault.New(fault.Internal, "the cursor key has %d bytes (allowed: at least 32)", len(key))
	}
	return &Sealer{key: slices.Clone(key)}, nil
}

// A token begins with its version. In version 1, [Cursor.At] follows. Version 2 adds Last. Version 3 adds Given, the number of places,
// and the places. In all versions, the hashes of Sent come last.
const (
	tokenVersion       = 1
	tokenVersionLast   = 2
	tokenVersionPlaces = 3

	placeSize = 16
	maxToken  = 1200 // characters; the longest token has 1,080

	macSize = 16
)

// Seal encodes a cursor as a token for the workspace.
func (s *Sealer) Seal(workspace string, c Cursor) string {
	sent := c.Sent[:min(len(c.Sent), MaxSent)] // a client that resumes gets the remaining entries again
	b := make([]byte, 0, 17+8*len(sent)+macSize)
	b = append(b, tokenVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(c.At))
	if c.Last != 0 || c.Given != 0 || len(c.Places) > 0 {
		b[0] = tokenVersionLast
		b = binary.BigEndian.AppendUint64(b, uint64(c.Last))
	}
	if c.Given != 0 || len(c.Places) > 0 {
		b[0] = tokenVersionPlaces
		b = binary.BigEndian.AppendUint64(b, uint64(c.Given))
		b = append(b, byte(len(c.Places)))
		for _, p := range c.Places {
			b = binary.BigEndian.AppendUint64(b, p.Partition)
			b = binary.BigEndian.AppendUint64(b, uint64(p.At))
		}
	}
	for _, h := range sent {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	b = append(b, s.mac(workspace, b)...)
	return opaque.Encode(b)
}

// Open decodes a token. It returns an error of kind Invalid if this deployment did not make the token for the workspace.
func (s *Sealer) Open(workspace, token string) (Cursor, error) {
	bad := fault.New(fault.Invalid, "the cursor is not one of this server")
	if len(token) > maxToken {
		return Cursor{}, bad
	}
	b, err := opaque.Decode(token)
	if err != nil || len(b) < 9+macSize {
		return Cursor{}, bad
	}
	body, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	if !hmac.Equal(mac, s.mac(workspace, body)) {
		return Cursor{}, bad
	}
	c := Cursor{At: int64(binary.BigEndian.Uint64(body[1:9]))}
	rest := body[9:]
	if body[0] < tokenVersion || body[0] > tokenVersionPlaces {
		return Cursor{}, bad
	}
	if body[0] >= tokenVersionLast {
		if len(rest) < 8 {
			return Cursor{}, bad
		}
		c.Last, rest = int64(binary.BigEndian.Uint64(rest)), rest[8:]
	}
	if body[0] >= tokenVersionPlaces {
		if len(rest) < 9 || len(rest)-9 < placeSize*int(rest[8]) {
			return Cursor{}, bad
		}
		c.Given, rest = int64(binary.BigEndian.Uint64(rest)), rest[8:]
		n := int(rest[0])
		rest = rest[1:]
		for range n {
			c.Places = append(c.Places, Place{binary.BigEndian.Uint64(rest), int64(binary.BigEndian.Uint64(rest[8:]))})
			rest = rest[placeSize:]
		}
	}
	if len(rest)%8 != 0 {
		return Cursor{}, bad
	}
	for ; len(rest) > 0; rest = rest[8:] {
		c.Sent = append(c.Sent, binary.BigEndian.Uint64(rest))
	}
	return c, nil
}

func (s *Sealer) mac(workspace string, body []byte) []byte {
	return s.sum("cursor\x00"+workspace+"\x00", body)[:macSize]
}

// sum returns the keyed hash of begin followed by rest. It reuses hash objects, because creating one takes longer than hashing.
func (s *Sealer) sum(begin string, rest []byte) []byte {
	h, ok := s.hashers.Get().(hash.Hash)
	if !ok {
		h = hmac.New(sha256.New, s.key)
	}
	defer s.hashers.Put(h)
	h.Reset()
	h.Write([]byte(begin))
	h.Write(rest)
	return h.Sum(nil)
}

// PositionIn returns the position of a cursor in a partition. This is the separate position in [Cursor.Places] if the cursor has one, and
// otherwise [Cursor.At].
func (s *Sealer) PositionIn(c Cursor, p Partition) int64 {
	if len(c.Places) > 0 {
		hash := s.hashPartition(p)
		for _, place := range c.Places {
			if place.Partition == hash {
				return place.At
			}
		}
	}
	return c.At
}

// PlaceOf returns the [Place] of a cursor that has the position at in the partition p.
func (s *Sealer) PlaceOf(p Partition, at int64) Place { return Place{s.hashPartition(p), at} }

func (s *Sealer) hashPartition(p Partition) uint64 { return s.Hash("partition\x00" + p.name) }

// Hash returns the keyed hash by which [Cursor.Sent] names the entry with the given [Entry.ID].
func (s *Sealer) Hash(id string) uint64 {
	return binary.BigEndian.Uint64(s.sum("sent\x00", []byte(id)))
}
