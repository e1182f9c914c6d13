// Package event holds what an event is: its fields, the rules they obey, and
// the message in which it travels between the stages.
//
// It knows no transport, no store and no cloud. Go on in shared/catalog (which
// events there are), then shared/delivery (how one travels).
package event

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"

	"mcpevents/shared/fault"
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
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// ValidID reports whether id may be used as an event id as it is.
func ValidID(id string) bool { return idPattern.MatchString(id) }

// NewID returns a fresh id, sortable by time.
func NewID() string { return "evt_" + uuid.Must(uuid.NewV7()).String() }

// ForeignID maps an identifier of another alphabet (a CloudEvents source and
// id, which together are unique) onto an event id: the id itself when it is valid, else
// "ce_" and the base64url SHA-256 of source and id, so that the same pair always
// gives the same event.
func ForeignID(source, id string) string {
	if ValidID(id) {
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

// messageVersion is the version of [Event.MarshalJSON]'s form. A reader takes
// its own version and the one before.
const messageVersion = 1

type message struct {
	V         int             `json:"v"`
	Workspace string          `json:"ws"`
	ID        string          `json:"id"`
	URI       string          `json:"uri"`
	Name      string          `json:"name"`
	Time      int64           `json:"t"` // microseconds since 1970
	Published int64           `json:"pub"`
	Offset    int             `json:"tz,omitempty"` // seconds east of UTC of Time
	Data      json.RawMessage `json:"data"`
}

// MarshalJSON encodes the event as it travels between the stages and rests in
// the log.
func (e Event) MarshalJSON() ([]byte, error) {
	_, offset := e.Time.Zone()
	return json.Marshal(message{
		V: messageVersion, Workspace: e.Workspace, ID: e.ID, URI: e.URI, Name: e.Name,
		Time: e.Time.UnixMicro(), Published: e.Published.UnixMicro(), Offset: offset, Data: e.Data,
	})
}

// UnmarshalJSON decodes what [Event.MarshalJSON] wrote.
func (e *Event) UnmarshalJSON(b []byte) error {
	var m message
	if err := json.Unmarshal(b, &m); err != nil {
		return fault.Wrap(fault.Invalid, err, "decode event")
	}
	if m.V != messageVersion {
		return fault.New(fault.Invalid, "decode event: version %d is not known here", m.V)
	}
	at := time.UnixMicro(m.Time).UTC()
	if m.Offset != 0 {
		at = at.In(time.FixedZone("", m.Offset))
	}
	*e = Event{
		Workspace: m.Workspace, ID: m.ID, URI: m.URI, Name: m.Name,
		Time: at, Published: time.UnixMicro(m.Published).UTC(), Data: m.Data,
	}
	return nil
}

// Timestamp is the event's time as RFC 3339 with its zone.
func (e Event) Timestamp() string { return e.Time.Format(time.RFC3339Nano) }
