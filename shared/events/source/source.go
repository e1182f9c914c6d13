// Package source turns what happens elsewhere into events of the catalog, by configuration alone: a provider's webhook
// (GitHub, Stripe, …) or a message that an AWS bus puts into the inbox queue.
//
//	POST /sources/{name} ─▶ verify ─▶ [ReadRequest] ──┐
//	                                                  ├─▶ document ─▶ [Source.Map] ─▶ [Event] ─▶ publish
//	inbox queue ─▶ [ReadEnvelope] ────────────────────┘
//
// A document is JSON as [encoding/json] decodes it, with numbers as [json.Number]. Everything here is a function of it
// and of the source: no request and no store enters. Package pattern chooses the mapping, package verify
// says who sent a request, and package ingest puts all of it together. Go on in shared/events/source/ingest.
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

// From is where a source's documents come from.
type From string

// HTTP sources take requests at POST /sources/{name}. The others are bus sources, which take messages of the inbox queue.
const (
	HTTP        From = ""
	EventBridge From = "eventbridge"
	SNS         From = "sns"
	S3          From = "s3"
)

// Buses are what bus sources can come from.
func Buses() []From { return []From{EventBridge, SNS, S3} }

// ValidName is what a source may be called: its name is a segment of a URL.
var ValidName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Source is the configuration of a source: how its senders are verified, and how its documents become events.
type Source struct {
	Name, Workspace string
	From            From
	// Events are the mappings. The first one that matches a document counts.
	Events []Mapping
	// Line is where the source is in the file of the configuration.
	Line int
	// Verify says how senders are verified. It is zero for a bus, which IAM protects.
	Verify verify.Settings
	// Secrets are the secrets of the scheme. A request may be signed with any of them, so that one can replace another.
	Secrets []secret.Value
}

// Mapping is how a document becomes an event. Make its values with [ParseValue]. As JSON it is what the configuration has.
type Mapping struct {
	// Line is where it stands in the file of the configuration.
	Line int `json:"-"`
	// Match is the documents that it is for; nil is all.
	Match *pattern.Pattern `json:"match,omitempty"`
	// Name is the event type.
	Name string `json:"name"`
	// Variables are those of the type's URI template.
	Variables map[string]Value `json:"variables,omitempty"`
	// ID is the provider's id of the delivery, so that a redelivery is the same event; the zero value is a hash of the
	// body of a request, and for a bus made of the message in the inbox queue.
	ID Value `json:"id,omitzero"`
	// Time is when it happened; the zero value, or one that leads to nothing, is now.
	Time Value `json:"time,omitzero"`
	// Data is the payload; the zero value is the whole body of a request, and the whole document of a bus.
	Data Value `json:"data,omitzero"`
}

// Event is what a document becomes.
type Event struct {
	// Mapping is the index of the mapping that matched.
	Mapping   int
	Name      string
	Variables map[string]string
	// ID is "" if the mapping has none.
	ID string
	// Time is zero if the document has none.
	Time time.Time
	Data json.RawMessage
}

// Unfit is the data of the error of a document that does not fit.
type Unfit struct {
	// Faults have pointers into the mapping, such as /variables/repo.
	Faults []jsonpointer.Fault `json:"faults"`
	// ID is that of the event, if the document has one.
	ID string `json:"-"`
}

// Map makes an event of a document. It is nil if no mapping matches. A document that a mapping matches and does not
// fit is of kind fault.Unprocessable, with [Unfit].
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
	if found, _ := m.ID.In(doc); isBool(found) { // all that is sent would be one of two events
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

// text is a value that a URI or an id is made of.
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
			u.add(pointer, "%s leads to nothing", v)
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
		u.add("/data", "%s leads to nothing", v)
		return nil
	}
	return jsonrpc.Encode(found)
}

// milliseconds is from where on a number is one of milliseconds: as seconds it would be in the year 5138.
const milliseconds = 100_000_000_000

// instant reads a time in one of the spellings of providers.
func instant(v any) (time.Time, bool) {
	text, _ := v.(string)
	if n, ok := v.(json.Number); ok {
		text = n.String()
	} else if t, err := event.ParseTime(text); err == nil {
		return t.UTC(), !t.IsZero()
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if !(err == nil && seconds > 0 && seconds < milliseconds*1000) { // NaN too
		return time.Time{}, false
	}
	if seconds < milliseconds {
		return time.UnixMicro(int64(seconds * 1e6)).UTC(), true
	}
	return time.UnixMicro(int64(seconds * 1e3)).UTC(), true
}
