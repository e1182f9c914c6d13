package publish

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// envelope is the nesting around a payload in a request: an array of objects.
const envelope = 2

// decode parses a JSON body with one event or an array of events. Each event is in our own form or a structured
// CloudEvent; the latter has "specversion". If workspaces is true, an event may name its workspace. Faults are of
// kind fault.Invalid, fault.TooLarge or fault.Unsupported, with a [Refusal].
func decode(body []byte, workspaces bool) ([]Input, error) {
	var r refused
	if jsonrpc.Depth(body) > event.MaxDepth+envelope {
		r.add(fault.Invalid, "", "is nested deeper than %d levels", event.MaxDepth+envelope)
		return nil, r.err(1)
	}
	if !json.Valid(body) {
		r.add(fault.Invalid, "", "is not valid JSON")
		return nil, r.err(1)
	}
	var in []Input
	switch first(body) {
	case '{':
		in = append(in, r.event(body, "", workspaces))
	case '[':
		for e := range jsonrpc.Elements(body) {
			if len(in) == MaxEvents {
				return nil, fault.New(fault.TooLarge, "too many events in a request (at most %d)", MaxEvents).AtLimit("eventsPerRequest", MaxEvents)
			}
			in = append(in, r.event(e, "/"+strconv.Itoa(len(in)), workspaces))
		}
	default:
		r.add(fault.Invalid, "", "is neither an event nor an array of events")
	}
	if err := r.err(len(in)); err != nil {
		return nil, err
	}
	return in, nil
}

// first returns the first byte of a JSON value, or 0.
func first(b []byte) byte {
	for _, c := range b {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
	}
	return 0
}

// event parses one element. At is its JSON Pointer.
func (r *refused) event(raw json.RawMessage, at string, workspaces bool) Input {
	in := Input{at: at, DataAt: at + "/data"}
	if first(raw) != '{' {
		r.add(fault.Invalid, at, "is not an object")
		return in
	}
	if jsonrpc.Member(raw, "specversion") != nil {
		r.parseStructured(raw, &in, workspaces)
		return in
	}
	seen := map[string]bool{}
	for key, value := range jsonrpc.Members(raw) {
		name := string(key)
		if seen[name] {
			r.add(fault.Invalid, at+"/"+name, "is given twice")
			continue
		}
		switch name {
		case "uri":
			in.URI = r.text(value, at+"/uri")
		case "data":
			in.Data = value
		case "id":
			in.ID = r.optional(value, at+"/id")
		case "time":
			in.Time = r.time(r.optional(value, at+"/time"), at+"/time")
		case "workspace":
			if !workspaces {
				r.add(fault.Invalid, at+"/workspace", "cannot be chosen here; events belong to the caller's workspace")
				continue
			}
			in.Workspace = r.text(value, at+"/workspace")
		case "resend":
			if !workspaces {
				r.unknownMember(at, name)
				continue
			}
			in.Resend = r.text(value, at+"/resend")
		default:
			r.unknownMember(at, name)
			continue
		}
		seen[name] = true
	}
	for _, name := range []string{"uri", "data"} {
		if !seen[name] {
			r.add(fault.Invalid, at+"/"+name, "is missing")
		}
	}
	return in
}

func (r *refused) unknownMember(at, name string) {
	if len(name) > 64 {
		r.add(fault.Invalid, at, "has an unknown member (allowed: uri, data, id, time)")
		return
	}
	r.add(fault.Invalid, at, "has the unknown member %q (allowed: uri, data, id, time)", name)
}

// text parses a non-empty string.
func (r *refused) text(value json.RawMessage, at string) string {
	s, ok := jsonrpc.String(value)
	if !ok {
		r.add(fault.Invalid, at, "must be a string")
	} else if s == "" {
		r.add(fault.Invalid, at, "is empty")
	}
	return s
}

// optional decodes a member like text, and also accepts null.
func (r *refused) optional(value json.RawMessage, at string) string {
	if string(value) == "null" {
		return ""
	}
	return r.text(value, at)
}

func (r *refused) time(s, at string) time.Time {
	if s == "" {
		return time.Time{}
	}
	t, err := event.ParseTime(s)
	if err != nil || t.IsZero() {
		r.add(fault.Invalid, at, "is not an RFC 3339 time such as 2026-11-21T09:30:00Z")
	}
	return t
}
