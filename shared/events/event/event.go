// Package event defines the event: its fields, the rules for them, and its encoding in queue messages and in the log.
//
// It does not depend on a transport, store or cloud. Read shared/events/catalog next, which defines event types, and then
// shared/events/delivery, which delivers events.
package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// MaxPayload is the maximum size of a payload in bytes. It leaves enough space for the webhook body and the queue
// message around it to stay below 256 KiB.
const MaxPayload = 240 << 10

// MaxURI is the maximum length of an event URI in bytes.
const MaxURI = 1024

// MaxDepth is the maximum nesting depth of a payload.
const MaxDepth = jsonpointer.MaxDepth

// Event is one occurrence of an event type of the catalog.
type Event struct {
	Workspace string
	// ID identifies the event among the events of its URI. It matches [A-Za-z0-9_-]{1,128}, without dots, because a webhook signature
	// joins the id, the time and the body with dots. It is also the webhook-id of deliveries, except to MCP Events clients with the
	// profile "final" (the Final version of SEP-3415).
	ID        string
	URI       string    // in canonical form
	Name      string    // the name of the event type
	Time      time.Time // when the event happened, according to the publisher
	Published time.Time // when the event was accepted
	// Data is the payload: valid JSON, at most [MaxPayload] bytes.
	Data json.RawMessage
	// Trace is the trace that the event's deliveries belong to. It is empty for most events.
	Trace trace.Context
	// Gap says that this is not an event but a notice without payload. The notice says that a backend, which is an MCP server behind the
	// gateway, has lost events of the URI. It is delivered in order with events.
	Gap bool
}

// ValidID reports whether id can be used as an event id: [A-Za-z0-9_-]{1,128}.
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

// NewID returns a new id. Sorted as texts, ids are in the order of the times at which they were made.
func NewID() string { return idPrefix + uuid.Must(uuid.NewV7()).String() }

// TimeOfID returns the time, to the millisecond, at which [NewID] made an id. It returns false for any other id.
func TimeOfID(id string) (at time.Time, ok bool) {
	rest, ok := strings.CutPrefix(id, idPrefix)
	u, err := uuid.Parse(rest)
	if !ok || err != nil || len(rest) != 36 || u.Version() != 7 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(u[0])<<40 | int64(u[1])<<32 | int64(u[2])<<24 | int64(u[3])<<16 | int64(u[4])<<8 | int64(u[5])), true
}

const idPrefix = "evt_"

// controlPrefix is the prefix of the webhook-id of a control message (SEP-3415: msg_<type>_<random>).
const controlPrefix = "msg_"

// ForeignID returns the event id for an id that a publisher chose. It returns a valid id unchanged. Otherwise the result is
// "ce_" and the base64url SHA-256 of source and id, because CloudEvents ids are unique only within their source. ForeignID also hashes an
// id that begins with "msg_", because receivers would mistake the webhook for a control message.
func ForeignID(source, id string) string {
	if ValidID(id) && !strings.HasPrefix(id, controlPrefix) {
		return id
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s%s", len(source), source, id)
	return "ce_" + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// Key returns a key that identifies the event in its workspace. The id alone is not unique, because events of different URIs may have the
// same id.
func (e Event) Key() string {
	h := sha256.Sum256([]byte(e.URI))
	return e.ID + "#" + base64.RawURLEncoding.EncodeToString(h[:12])
}

// messageVersion is the version of the encoding in [Event.AppendJSON].
const messageVersion = 1

// gapVersion is the version of a message with [Event.Gap]. It is newer than messageVersion, so that earlier releases, which do
// not know gaps, leave the message in the queue. This release reads both versions.
const gapVersion = 2

// AppendJSON appends the event to b, in the encoding of queue messages and of the log. It copies the payload unchanged, because publish
// has already compacted it.
func (e Event) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, len(e.Data)+len(e.URI)+192)
	b = append(b, `{"v":`...)
	if e.Gap {
		b = append(strconv.AppendInt(b, gapVersion, 10), `,"gap":true`...)
	} else {
		b = strconv.AppendInt(b, messageVersion, 10)
	}
	b = jsonrpc.AppendString(append(b, `,"ws":`...), e.Workspace)
	b = jsonrpc.AppendString(append(b, `,"id":`...), e.ID)
	b = jsonrpc.AppendString(append(b, `,"uri":`...), e.URI)
	b = jsonrpc.AppendString(append(b, `,"name":`...), e.Name)
	b = strconv.AppendInt(append(b, `,"t":`...), e.Time.UnixMicro(), 10) // microseconds since 1970
	b = strconv.AppendInt(append(b, `,"pub":`...), e.Published.UnixMicro(), 10)
	if _, offset := e.Time.Zone(); offset != 0 {
		b = strconv.AppendInt(append(b, `,"tz":`...), int64(offset), 10) // offset of Time in seconds east of UTC
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

// MaxSize returns an upper bound of the size of [Event.AppendJSON]'s result in bytes, without encoding the event. It counts the trace
// state twice, because JSON escapes some of its characters. The other texts have no such characters.
func (e *Event) MaxSize() int {
	const names = 192 // bytes for member names, numbers and punctuation
	return names + len(e.Workspace) + len(e.ID) + len(e.URI) + len(e.Name) + len(e.Trace.Parent) + 2*len(e.Trace.State) + len(e.Data)
}

// AppendMember adds a member to the JSON object in b, which must already have another member. The value of the new member is the array of
// events. For large events, this is faster than encoding/json, which would validate them again.
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

// MarshalJSON implements [json.Marshaler] with [Event.AppendJSON].
func (e Event) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil), nil }

// Decode decodes the encoding of [Event.AppendJSON].
func Decode(b []byte) (e Event, err error) {
	if !json.Valid(b) {
		return Event{}, fault.New(fault.Invalid, "decode event: it is not JSON")
	}
	err = e.decode(b)
	return e, err
}

// UnmarshalJSON implements [json.Unmarshaler]. encoding/json has already checked that b is valid JSON.
func (e *Event) UnmarshalJSON(b []byte) error { return e.decode(b) }

// decode decodes an event from b, which must be valid JSON. It changes e only if it succeeds.
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
		case "gap":
			out.Gap = string(value) == "true"
		case "data":
			out.Data = bytes.Clone(value)
		}
		if !ok && version <= messageVersion {
			return fault.New(fault.Invalid, "decode event: the member %q has the wrong type", key)
		}
	}
	switch {
	case version > messageVersion && !(out.Gap && version == gapVersion):
		// Return a temporary error, so that a newer release can still read the message.
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

// Timestamp returns the event's time in RFC 3339, with its time zone.
func (e Event) Timestamp() string { return e.Time.Format(time.RFC3339Nano) }

// maxTime is the maximum length of a time in bytes. RFC 3339 itself does not limit the digits of a fraction.
const maxTime = 64

var errTime = errors.New("not a date-time of RFC 3339")

// ParseTime parses a date-time of RFC 3339. Unlike [time.Parse], it accepts t and z in lower case (section 5.6), and refuses a
// comma before the fraction, hours with one digit and offsets such as +24:00. It also refuses a time whose year has more or
// fewer than four digits in UTC, because encoding/json and the receivers of webhooks refuse such a time.
func ParseTime(text string) (time.Time, error) {
	if len(text) < len("2006-01-02T15:04:05Z") || len(text) > maxTime || text[len("2006-01-02T15")] != ':' || strings.Contains(text, ",") {
		return time.Time{}, errTime
	}
	if strings.ContainsAny(text, "tz") {
		text = strings.ToUpper(text)
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || text[len(text)-1] != 'Z' && text[len(text)-len("00"):] > "59" || !ValidTime(t) {
		return time.Time{}, errTime
	}
	return t, nil
}

// ValidTime reports whether RFC 3339 can express a time: its year has four digits, both in its own zone and in UTC, and its offset is less
// than a day. A program that embeds the server may pass other times, which webhooks and lists of events cannot contain.
func ValidTime(t time.Time) bool {
	const day = 24 * 60 * 60
	_, offset := t.Zone()
	own, utc := t.Year(), t.UTC().Year()
	return min(own, utc) >= 0 && max(own, utc) <= 9999 && -day < offset && offset < day
}
