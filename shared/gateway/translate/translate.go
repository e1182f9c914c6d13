// Package translate turns requests, results and errors of one revision into those of another.
//
// Between the session-based revisions (up to 2025-11-25) and 2026-07-28 this changes on the way:
//
//	                     client 2026, backend 2025     client 2025, backend 2026
//	requests             _meta of the revision goes    _meta and headers of the revision come
//	results              resultType, caching come      resultType goes
//	errors               -32002, -32042 are mapped     -32020 to -32022, -32602 are mapped
//
// All else is the bytes that came. Everything here is a function of what it gets: it reaches no
// backend, no store and no clock. What a backend asks the client in between is the business of
// shared/gateway.
package translate

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Way is a call's way between two revisions.
type Way struct{ Client, Backend spec.Version }

// MultiRound are the methods that 2026-07-28 lets ask for input.
var MultiRound = map[string]bool{spec.MethodToolsCall: true, spec.MethodPromptsGet: true, spec.MethodRead: true}

// metaOfRequests are the members of _meta that only 2026-07-28 has.
var metaOfRequests = []string{spec.MetaVersion, spec.MetaCapabilities, spec.MetaClient, spec.MetaLogLevel}

func ofRequests(name string) bool { return slices.Contains(metaOfRequests, name) }

// WithoutRounds is params without what a client of 2026-07-28 answers and carries between rounds.
func WithoutRounds(params json.RawMessage) json.RawMessage {
	return jsonrpc.Without(params, func(name string) bool { return name == "inputResponses" || name == "requestState" })
}

// ToSessionBased is params of 2026-07-28 as a session-based backend knows them. If there is a
// progress token it becomes token, since several clients may share the session.
func ToSessionBased(params, token json.RawMessage) (out json.RawMessage, replaced bool) {
	params = WithoutRounds(params)
	meta := jsonrpc.Member(params, "_meta")
	if jsonrpc.Member(meta, "progressToken") != nil {
		meta, replaced = jsonrpc.Replace(meta, "progressToken", token), true
	}
	return jsonrpc.Replace(params, "_meta", jsonrpc.Without(meta, ofRequests)), replaced
}

// Client is what a request of 2026-07-28 says of its client.
type Client struct {
	Info, Capabilities json.RawMessage
	Level              string // of log messages; empty for none
}

// ToStateless is params of a session-based client as a backend of 2026-07-28 wants them.
func ToStateless(params json.RawMessage, version spec.Version, c Client) json.RawMessage {
	meta := jsonrpc.Without(jsonrpc.Member(params, "_meta"), ofRequests)
	if c.Level != "" {
		meta = jsonrpc.Insert(meta, spec.MetaLogLevel, jsonrpc.Quote(c.Level))
	}
	meta = jsonrpc.Insert(meta, spec.MetaClient, c.Info)
	meta = jsonrpc.Insert(meta, spec.MetaCapabilities, c.Capabilities)
	meta = jsonrpc.Insert(meta, spec.MetaVersion, jsonrpc.Quote(string(version)))
	params = jsonrpc.Without(params, func(name string) bool { return name == "_meta" })
	return jsonrpc.Insert(params, "_meta", meta)
}

// InputRequired reports whether a result of 2026-07-28 is a demand for input.
func InputRequired(result json.RawMessage) bool {
	kind, _ := jsonrpc.String(jsonrpc.Member(result, "resultType"))
	return kind == "input_required"
}

// Result is the result of a method as the client's revision has it. One that is no object stays.
func (w Way) Result(method string, result json.RawMessage) json.RawMessage {
	if len(result) == 0 || result[0] != '{' {
		return result
	}
	switch {
	case w.Client.Stateless() && w.Backend.Stateless():
		if jsonrpc.Member(result, "resultType") == nil {
			return complete(result)
		}
	case w.Client.Stateless():
		result = jsonrpc.Without(result, func(name string) bool { return name == "resultType" })
		if method == spec.MethodRead && jsonrpc.Member(result, "ttlMs") == nil {
			result = jsonrpc.Without(result, func(name string) bool { return name == "cacheScope" || name == "ttlMs" })
			result = jsonrpc.Insert(jsonrpc.Insert(result, "cacheScope", json.RawMessage(`"private"`)), "ttlMs", json.RawMessage(`0`))
		}
		return complete(result)
	case w.Backend.Stateless():
		structured := jsonrpc.Member(result, "structuredContent")
		return jsonrpc.Without(result, func(name string) bool {
			// Up to 2025-11-25 it is an object; the content says the same in text.
			return name == "resultType" || name == "structuredContent" && structured != nil && structured[0] != '{'
		})
	}
	return result
}

func complete(result json.RawMessage) json.RawMessage {
	return jsonrpc.Insert(result, "resultType", json.RawMessage(`"complete"`))
}

// ErrorCode is the code of an error as the client's revision has it. Error
// [spec.CodeNeedsURL] of a session-based backend stays for a stateless client: it is a question.
func (w Way) ErrorCode(method string, code int, data json.RawMessage) int {
	switch {
	case w.Client.Stateless():
		switch {
		case code == spec.CodeNeedsURL && w.Backend.Stateless():
			return jsonrpc.InternalError
		case code == spec.CodeResourceNotFound:
			return jsonrpc.InvalidParams
		}
	case w.Backend.Stateless():
		switch code {
		case jsonrpc.InvalidParams:
			if method == spec.MethodRead && jsonrpc.Member(data, "uri") != nil {
				return spec.CodeResourceNotFound
			}
		case spec.CodeMissingCapability:
			return jsonrpc.InvalidRequest
		case spec.CodeHeaderMismatch, spec.CodeUnsupportedVersion: // not the client's doing
			return jsonrpc.InternalError
		}
	}
	return code
}

// Error is an error response with its code as [Way.ErrorCode] has it, and the code that it had.
func (w Way) Error(method string, response json.RawMessage) (out json.RawMessage, had int) {
	failure := jsonrpc.Member(response, "error")
	_ = json.Unmarshal(jsonrpc.Member(failure, "code"), &had) // 0 is none of those that are mapped
	to := w.ErrorCode(method, had, jsonrpc.Member(failure, "data"))
	if to == had {
		return response, had
	}
	return jsonrpc.Replace(response, "error", jsonrpc.Replace(failure, "code", strconv.AppendInt(nil, int64(to), 10))), had
}

// Tool is an entry of a list as a client of the revision can read it. Up to 2025-11-25 the output of a
// tool is an object, and client libraries refuse the whole list for one that is not.
func Tool(entry json.RawMessage, client spec.Version) json.RawMessage {
	output := jsonrpc.Member(entry, "outputSchema")
	if output == nil || client.Stateless() {
		return entry
	}
	if kind, _ := jsonrpc.String(jsonrpc.Member(output, "type")); kind == "object" {
		return entry
	}
	return jsonrpc.Without(entry, func(name string) bool { return name == "outputSchema" })
}
