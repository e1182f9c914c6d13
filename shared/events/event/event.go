// Package event holds what an event is: its fields, the rules they obey, and
// the message in which it travels between the stages.
//
// It knows no transport, no store and no cloud. Go on in shared/events/catalog (which
// events there are), then shared/events/delivery (how one travels).
package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// MaxPayload is the largest payload in bytes (design: 240 KiB), so that the
// webhook body and the queue message around it stay under 256 KiB.
const MaxPayload = 240 << 10

// MaxURI is the longest event URI in bytes.
const MaxURI = 1024

// MaxDepth is the deepest JSON nesting of a payload.
const MaxDepth = 64

// Event is one occurrence of an event type of the catalog.
type Event struct {
	// Workspace is the tenant that the event belongs to.
	Workspace string
	// ID is unique among the events of its URI: [A-Za-z0-9_-]{1,128}. It is the
	// webhook-id of every delivery, so it must not contain a dot.
	ID string
	// URI is the canonical event:// URI.
	URI string
	// Name is the catalog's name of the event type.
	Name string
	// Time is when it happened, as the publisher says.
	Time time.Time
	// Published is when it was accepted.
	Published time.Time
	// Data is the payload: valid JSON, at most [MaxPayload] bytes.
	Data json.RawMessage
	// Trace is what its deliveries belong to; none for most.
	Trace trace.Context
}

// ValidID reports whether id may be used as an event id as it is: [A-Za-z0-9_-]{1,128}.
func ValidID(id string) bool {
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return 1 <= len(id) && len(id) <= 128
}

// NewID returns a fresh id, sortable by time.
func NewID() string { return idPrefix + uuid.Must(uuid.NewV7()).String() }

// MadeAt returns when [NewID] made an id, to the millisecond; ok is false for an id that it did not make.
func MadeAt(id string) (at time.Time, ok bool) {
	rest, ok := strings.CutPrefix(id, idPrefix)
	u, err := uuid.Parse(rest)
	if !ok || err != nil || len(rest) != 36 || u.Version() != 7 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(u[0])<<40 | int64(u[1])<<32 | int64(u[2])<<24 | int64(u[3])<<16 | int64(u[4])<<8 | int64(u[5])), true
}

const idPrefix = "evt_"

// controlPrefix begins the webhook-id of a control message (SEP-3415: msg_<type>_<random>).
const controlPrefix = "msg_"

// ForeignID maps an identifier that a publisher chose (a CloudEvents source and
// id, which together are unique) onto an event id: the id itself when it is valid, else
// "ce_" and the base64url SHA-256 of source and id, so that the same pair always
// gives the same event. An id that begins with "msg_" is hashed too: receivers
// would take the webhook for a control message.
func ForeignID(source, id string) string {
	if ValidID(id) && !strings.HasPrefix(id, controlPrefix) {
		return id
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s%s", len(source), source, id)
	return "ce_" + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// Key tells the events of a workspace apart. The id alone does not: publishers
// choose it, and events of different URIs may have the same one.
func (e Event) Key() string {
	h := sha256.Sum256([]byte(e.URI))
	return e.ID + "#" + base64.RawURLEncoding.EncodeToString(h[:12])
}

// messageVersion is the version of [Event.AppendJSON]'s form. A reader takes
// its own version and the one before.
const messageVersion = 1

// AppendJSON appends the event as it travels between the stages and rests in the log. Its payload is appended as it
// is: publish has made it compact.
func (e Event) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, len(e.Data)+len(e.URI)+192)
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, messageVersion, 10)
	b = jsonrpc.AppendString(append(b, `,"ws":`...), e.Workspace)
	b = jsonrpc.AppendString(append(b, `,"id":`...), e.ID)
	b = jsonrpc.AppendString(append(b, `,"uri":`...), e.URI)
	b = jsonrpc.AppendString(append(b, `,"name":`...), e.Name)
	b = strconv.AppendInt(append(b, `,"t":`...), e.Time.UnixMicro(), 10) // microseconds since 1970
	b = strconv.AppendInt(append(b, `,"pub":`...), e.Published.UnixMicro(), 10)
	if _, offset := e.Time.Zone(); offset != 0 {
		b = strconv.AppendInt(append(b, `,"tz":`...), int64(offset), 10) // seconds east of UTC of Time
	}
	if e.Trace.Parent != "" {
		b = jsonrpc.AppendString(append(b, `,"tp":`...), e.Trace.Parent)
		if e.Trace.State != "" {
			b = jsonrpc.AppendString(append(b, `,"ts":`...), e.Trace.State)
		}
	}
	b = append(b, `,"data":`...)
	if len(e.Data) == 0 {
		return append(b, `null}`...)
	}
	return append(append(b, e.Data...), '}')
}

// AppendMember appends events as the last member of an object that ends in b, and ends it anew. Where
// there are many bytes of them this spares the checks of encoding/json on what was checked before.
func AppendMember(b []byte, name string, events []Event) []byte {
	b = append(jsonrpc.AppendString(append(b[:len(b)-1], ','), name), ":["...)
	for i, e := range events {
		if i > 0 {
			b = append(b, ',')
		}
		b = e.AppendJSON(b)
	}
	return append(b, "]}"...)
}

// MarshalJSON is [Event.AppendJSON] for encoding/json.
func (e Event) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil), nil }

// Decode reads what [Event.AppendJSON] wrote.
func Decode(b []byte) (e Event, err error) {
	if !json.Valid(b) {
		return Event{}, fault.New(fault.Invalid, "decode event: it is not JSON")
	}
	err = e.decode(b)
	return e, err
}

// UnmarshalJSON is [Decode] for encoding/json, which has checked that b is JSON.
func (e *Event) UnmarshalJSON(b []byte) error { return e.decode(b) }

// decode reads valid JSON.
func (e *Event) decode(b []byte) error {
	var version, at, published, offset int64
	var out Event
	for key, value := range jsonrpc.Members(b) {
		ok := true
		switch string(key) {
		case "v":
			version, ok = integer(value)
		case "ws":
			out.Workspace, ok = jsonrpc.String(value)
		case "id":
			out.ID, ok = jsonrpc.String(value)
		case "uri":
			out.URI, ok = jsonrpc.String(value)
		case "name":
			out.Name, ok = jsonrpc.String(value)
		case "t":
			at, ok = integer(value)
		case "pub":
			published, ok = integer(value)
		case "tz":
			offset, ok = integer(value)
		case "tp":
			out.Trace.Parent, ok = jsonrpc.String(value)
		case "ts":
			out.Trace.State, ok = jsonrpc.String(value)
		case "data":
			out.Data = bytes.Clone(value)
		}
		if !ok && version <= messageVersion {
			return fault.New(fault.Invalid, "decode event: the member %q is of another type", key)
		}
	}
	switch {
	case version > messageVersion: // a newer program reads it
		return fault.New(fault.Unavailable, "decode event: version %d is newer than %d", version, messageVersion)
	case version < 1:
		return fault.New(fault.Invalid, "decode event: unknown version")
	}
	out.Time, out.Published = time.UnixMicro(at).UTC(), time.UnixMicro(published).UTC()
	if offset != 0 {
		out.Time = out.Time.In(time.FixedZone("", int(offset)))
	}
	*e = out
	return nil
}

func integer(value []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	return n, err == nil
}

// Timestamp is the event's time as RFC 3339 with its zone.
func (e Event) Timestamp() string { return e.Time.Format(time.RFC3339Nano) }
