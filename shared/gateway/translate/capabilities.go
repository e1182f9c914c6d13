package translate

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Need is a client capability that a request needs, such as "elicitation.url". It is empty for none.
type Need string

// Lacking returns the capability that a client would need to be asked this but has not declared. For a method that clients do not have
// at all, it returns the method.
func Lacking(capabilities json.RawMessage, method string, params json.RawMessage) Need {
	switch method {
	case spec.MethodRoots:
		return findUndeclared(capabilities, "roots")
	case spec.MethodSample:
		if jsonrpc.Member(params, "tools") != nil || jsonrpc.Member(params, "toolChoice") != nil {
			return findUndeclared(capabilities, "sampling.tools")
		}
		return findUndeclared(capabilities, "sampling")
	case spec.MethodElicit:
		if mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode")); mode == "url" {
			return findUndeclared(capabilities, "elicitation.url")
		}
		// Without a mode, the capability means forms (2025-11-25, Elicitation).
		if findUndeclared(capabilities, "elicitation.url") == "" {
			return findUndeclared(capabilities, "elicitation.form")
		}
		return findUndeclared(capabilities, "elicitation")
	}
	return Need(method)
}

func findUndeclared(capabilities json.RawMessage, n Need) Need {
	at := capabilities
	for part := range strings.SplitSeq(string(n), ".") {
		if at = jsonrpc.Member(at, part); at == nil {
			return n
		}
	}
	return ""
}

// DeclaresTasks reports whether a client's capabilities have the tasks extension.
func DeclaresTasks(capabilities json.RawMessage) bool {
	return jsonrpc.Member(jsonrpc.Member(capabilities, "extensions"), spec.TasksExtension) != nil
}

// WithoutTasks returns a client's capabilities without the tasks extension, which the session-based revisions do not have (SEP-2663,
// Backward Compatibility).
func WithoutTasks(capabilities json.RawMessage) json.RawMessage {
	if !DeclaresTasks(capabilities) {
		return capabilities
	}
	rest := jsonrpc.Without(jsonrpc.Member(capabilities, "extensions"), func(name string) bool { return name == spec.TasksExtension })
	return jsonrpc.Replace(capabilities, "extensions", rest)
}

// MissingTasks returns the error of a request that needs the tasks extension, which the client has not declared.
func MissingTasks() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code: spec.CodeMissingCapability, Message: "the request needs the extension " + spec.TasksExtension + ", which the client does not declare",
		Data: map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{spec.TasksExtension: struct{}{}}}},
	}
}

// Missing returns the error of a call that needs capabilities that the client has not declared.
func Missing(backend string, needs []Need) *jsonrpc.Error {
	required := map[string]map[string]struct{}{}
	for _, n := range needs {
		if strings.Contains(string(n), "/") {
			continue // no client can declare it
		}
		name, mode, deeper := strings.Cut(string(n), ".")
		if required[name] == nil {
			required[name] = map[string]struct{}{}
		}
		if deeper {
			required[name][mode] = struct{}{}
		}
	}
	return &jsonrpc.Error{
		Code: spec.CodeMissingCapability, Message: "backend " + backend + " needs capabilities that the client does not declare",
		Data: map[string]any{"requiredCapabilities": required},
	}
}

// Demanded returns the capabilities that the inputRequests of a result need but the client has not declared.
func Demanded(capabilities, result json.RawMessage) []Need {
	var lacks []Need
	for _, request := range jsonrpc.Members(jsonrpc.Member(result, "inputRequests")) {
		method, _ := jsonrpc.String(jsonrpc.Member(request, "method"))
		if n := Lacking(capabilities, method, jsonrpc.Member(request, "params")); n != "" && !slices.Contains(lacks, n) {
			lacks = append(lacks, n)
		}
	}
	return lacks
}
