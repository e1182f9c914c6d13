package translate

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// WithoutOwn removes the members that only the gateway may set from each _meta in a backend's value, for example in a result. The names of
// these members begin with [spec.OwnPrefix]. One of them is the cursor at which a client resumes a stream, so a backend must not be able to
// forge them. The result dropped reports whether WithoutOwn removed a member.
//
// WithoutOwn keeps all other members of _meta, because backends may set them, for example io.modelcontextprotocol/related-task. It does not
// change parts of the value whose content belongs to the backend, such as structuredContent.
func WithoutOwn(value json.RawMessage) (out json.RawMessage, dropped bool) {
	if !mayHaveOwn(value) || !hasOwn(value) {
		return value, false
	}
	return dropOwn(value), true
}

// mayHaveOwn reports whether the JSON may have a name with our prefix in it, in any case and with any escapes. It is much faster than
// reading the JSON, so that messages without such a name, which are nearly all, cost little.
func mayHaveOwn(b []byte) bool {
	const part, hyphen = "mcp-event", len("mcp") // without the s of mcp-events, because the non-ASCII letter ſ folds to s
	for i := 0; ; i++ {
		next := bytes.IndexByte(b[i:], '-')
		if next < 0 {
			break
		}
		i += next
		if from := i - hyphen; from >= 0 && from+len(part) <= len(b) && bytes.EqualFold(b[from:from+len(part)], []byte(part)) {
			return true
		}
	}
	// JSON may also have a letter or the hyphen of our prefix as an escape, for example \u002d for the hyphen.
	for rest := b; ; {
		_, after, found := bytes.Cut(rest, []byte(`\u00`))
		if !found || len(after) < 2 {
			return false
		}
		if c := after[0]; '4' <= c && c <= '7' || c == '2' && (after[1] == 'd' || after[1] == 'D') {
			return true
		}
		rest = after
	}
}

// place describes where a JSON value may contain a _meta that the protocol defines.
type place uint8

const (
	nowhere  place = iota
	itself         // the value is a _meta
	inObject       // the value is an object that may have a _meta, or an array of such objects
	inRows         // the value is an object whose members are such objects
)

// placeOf returns where the value of a member with this name may contain a _meta. Objects that may have a _meta are content blocks, the
// resources embedded in them, the messages of prompts and of sampling, and requests for input. The comparison with _meta ignores case,
// because some readers of JSON do.
func placeOf(name []byte) place {
	switch string(name) {
	case "content", "contents", "elicitations", "messages", "params", "resource", "result":
		return inObject
	case "inputRequests":
		return inRows
	}
	if len(name) == len("_meta") && strings.EqualFold(string(name), "_meta") {
		return itself
	}
	return nowhere
}

func hasOwn(value json.RawMessage) bool {
	for element := range jsonrpc.Elements(value) {
		if hasOwn(element) {
			return true
		}
	}
	for name, member := range jsonrpc.Members(value) {
		switch placeOf(name) {
		case itself:
			for key := range jsonrpc.Members(member) {
				if spec.IsOwn(string(key)) {
					return true
				}
			}
		case inObject:
			if hasOwn(member) {
				return true
			}
		case inRows:
			for _, row := range jsonrpc.Members(member) {
				if hasOwn(row) {
					return true
				}
			}
		}
	}
	return false
}

func dropOwn(value json.RawMessage) json.RawMessage {
	switch value[0] {
	case '[':
		out := []byte{'['}
		for element := range jsonrpc.Elements(value) {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, dropOwn(element)...)
		}
		return append(out, ']')
	case '{':
		return mapMembers(value, func(name []byte, member json.RawMessage) json.RawMessage {
			switch placeOf(name) {
			case itself:
				if member[0] == '{' {
					return jsonrpc.Without(member, spec.IsOwn)
				}
			case inObject:
				return dropOwn(member)
			case inRows:
				return mapMembers(member, func(_ []byte, row json.RawMessage) json.RawMessage { return dropOwn(row) })
			}
			return member
		})
	}
	return value
}

// mapMembers replaces the value of each member of an object by the result of convert. It returns a value that is not an object unchanged.
func mapMembers(object json.RawMessage, convert func(name []byte, member json.RawMessage) json.RawMessage) json.RawMessage {
	if object[0] != '{' {
		return object
	}
	out := []byte{'{'}
	for name, member := range jsonrpc.Members(object) {
		out = jsonrpc.AppendMember(out, string(name), convert(name, member))
	}
	return append(out, '}')
}
