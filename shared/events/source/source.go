// Package source turns webhooks of providers (GitHub, Stripe, …) and messages that AWS services put into the inbox
// queue into events of the catalog. A source needs only configuration, no code.
//
//	POST /sources/{name} ─▶ verify ─▶ [ReadRequest] ──┐
//	                                                  ├─▶ document ─▶ [Source.Map] ─▶ [Event] ─▶ publish
//	inbox queue ─▶ [ReadEnvelope] ────────────────────┘
//
// A document is JSON as [encoding/json] decodes it, with numbers as [json.Number]. The functions here depend only on
// the document and the source. They use no store, and the request only to make its document. Package pattern selects
// the mapping, package verify authenticates senders, and package ingest connects them. Read
// shared/events/source/ingest next.
package source

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/source/pattern"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// From names the service that a source's documents come from.
type From string

// HTTP sources receive requests at POST /sources/{name}. The others are bus sources, which receive messages from the
// inbox queue.
const (
	HTTP        From = ""
	EventBridge From = "eventbridge"
	SNS         From = "sns"
	S3          From = "s3"
)

// Buses returns the possible origins of a bus source.
func Buses() []From { return []From{EventBridge, SNS, S3} }

// ValidName matches valid names of sources. A name is a segment of a URL.
var ValidName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Source is the configuration of a source: how to verify its senders, and how to turn its documents into events.
type Source struct {
	Name, Workspace string
	From            From
	// Events are the mappings. The first one that matches a document is used.
	Events []Mapping
	// Line is the line of the source in the configuration file.
	Line int
	// Verify configures the verification of senders. It is zero for a bus source, because IAM controls access to the
	// inbox queue.
	Verify verify.Settings
	// Secrets are the secrets of the scheme. A request may be signed with any of them, so that a secret can be
	// rotated.
	Secrets []secret.Value
}

// Mapping describes how a document becomes an event. Make its values with [ParseValue]. It has the same JSON form as in the
// configuration.
type Mapping struct {
	// Line is the line of the mapping in the configuration file.
	Line int `json:"-"`
	// Match selects the documents that the mapping applies to. Nil selects all.
	Match *pattern.Pattern `json:"match,omitempty"`
	// Name is the event type.
	Name string `json:"name"`
	// Variables are the values of the variables in the event type's URI template.
	Variables map[string]Value `json:"variables,omitempty"`
	// ID is the provider's id of the delivery, which makes a redelivery the same event. If it is zero, a request's
	// event gets a hash of the body as its id, and a bus document's event an id derived from the message in the inbox
	// queue.
	ID Value `json:"id,omitzero"`
	// Time is when the event happened. If it is zero or finds no value, the current time is used.
	Time Value `json:"time,omitzero"`
	// Data is the payload. If it is zero, the payload is the whole body of a request, or the whole document of a bus
	// source.
	Data Value `json:"data,omitzero"`
}

// Event is the result of mapping a document.
type Event struct {
	// Mapping is the index of the mapping that matched.
	Mapping   int
	Name      string
	Variables map[string]string
	// ID is empty if the mapping has no ID.
	ID string
	// Time is zero if the document has no time.
	Time time.Time
	Data json.RawMessage
}

// Unfit is the data of the error that [Source.Map] returns for a document that matches a mapping but lacks values
// that it needs.
type Unfit struct {
	// Faults have pointers into the mapping, such as /variables/repo.
	Faults []jsonpointer.Fault `json:"faults"`
	// ID is the id of the event, if it could be determined.
	ID string `json:"-"`
}

// Map makes an event from a document. It returns nil if no mapping matches. If a mapping matches but the document
// lacks a value that it needs, the error is of kind fault.Unprocessable and its data is an [Unfit].
func (s Source) Map(doc any) (*Event, error) {
	for i := range s.Events {
		if m := &s.Events[i]; m.Match == nil || m.Match.Matches(doc) {
			e, err := m.event(doc, s.From)
			if e != nil {
				e.Mapping = i
			}
			return e, err
		}
	}
	return nil, nil
}

func (m *Mapping) event(doc any, from From) (*Event, error) {
	e := &Event{Name: m.Name, Variables: make(map[string]string, len(m.Variables))}
	var unfit Unfit
	for _, name := range slices.Sorted(maps.Keys(m.Variables)) {
		e.Variables[name] = unfit.text(m.Variables[name], doc, "/variables"+jsonpointer.Member(name))
	}
	if found, _ := m.ID.In(doc); isBool(found) { // with only two values, all later deliveries would count as redeliveries
		unfit.add("/id", "%s is neither a string nor a number", m.ID)
	} else if m.ID.given() {
		e.ID = unfit.text(m.ID, doc, "/id")
	}
	if found, ok := m.Time.In(doc); ok && found != nil {
		if e.Time, ok = instant(found); !ok {
			unfit.add("/time", "%s is neither an RFC 3339 time nor a number of seconds or milliseconds since 1970", m.Time)
		}
	}
	e.Data = unfit.data(m.Data, doc, from)
	if len(unfit.Faults) == 0 {
		return e, nil
	}
	first := unfit.Faults[0]
	unfit.ID = e.ID
	return nil, fault.New(fault.Unprocessable, "%s: %s", m.Name, first).With(unfit)
}

func isBool(v any) bool { _, ok := v.(bool); return ok }

func (u *Unfit) add(pointer, format string, args ...any) {
	u.Faults = append(u.Faults, jsonpointer.Fault{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

// text returns a value as the string that goes into a URI or an id.
func (u *Unfit) text(v Value, doc any, pointer string) string {
	found, ok := v.In(doc)
	switch x := found.(type) {
	case string:
		if x != "" {
			return x
		}
		u.add(pointer, "%s is empty", v)
	case json.Number:
		return x.String()
	case bool:
		return strconv.FormatBool(x)
	default:
		if !ok || x == nil {
			u.add(pointer, "%s finds no value", v)
		} else {
			u.add(pointer, "%s is neither a string nor a number", v)
		}
	}
	return ""
}

func (u *Unfit) data(v Value, doc any, from From) json.RawMessage {
	if !v.given() {
		if v = whole; from == HTTP {
			v = wholeBody
		}
	}
	found, ok := v.In(doc)
	if !ok {
		u.add("/data", "%s finds no value", v)
		return nil
	}
	return jsonrpc.Encode(found)
}

// milliseconds is the smallest number that is read as milliseconds. As seconds it would be in the year 5138.
const milliseconds = 100_000_000_000

// instant parses a time in any of the formats that providers use.
func instant(v any) (time.Time, bool) {
	text, _ := v.(string)
	if n, ok := v.(json.Number); ok {
		text = n.String()
	} else if t, err := event.ParseTime(text); err == nil {
		return t.UTC(), !t.IsZero()
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if !(err == nil && seconds > 0 && seconds < milliseconds*1000) { // also refuses NaN
		return time.Time{}, false
	}
	if seconds < milliseconds {
		return time.UnixMicro(int64(seconds * 1e6)).UTC(), true
	}
	return time.UnixMicro(int64(seconds * 1e3)).UTC(), true
}
