package translate

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Need is a capability of a client, such as "elicitation.url"; empty for none.
type Need string

// Lacking is what a client would have to declare to be asked this, if it did not. A method
// that no client knows is lacking itself.
func Lacking(capabilities json.RawMessage, method string, params json.RawMessage) Need {
	switch method {
	case spec.MethodRoots:
		return undeclared(capabilities, "roots")
	case spec.MethodSample:
		if jsonrpc.Member(params, "tools") != nil || jsonrpc.Member(params, "toolChoice") != nil {
			return undeclared(capabilities, "sampling.tools")
		}
		return undeclared(capabilities, "sampling")
	case spec.MethodElicit:
		if mode, _ := jsonrpc.String(jsonrpc.Member(params, "mode")); mode == "url" {
			return undeclared(capabilities, "elicitation.url")
		}
		// Without a mode, the capability means forms (2025-11-25, Elicitation).
		if undeclared(capabilities, "elicitation.url") == "" {
			return undeclared(capabilities, "elicitation.form")
		}
		return undeclared(capabilities, "elicitation")
	}
	return Need(method)
}

func undeclared(capabilities json.RawMessage, n Need) Need {
	at := capabilities
	for part := range strings.SplitSeq(string(n), ".") {
		if at = jsonrpc.Member(at, part); at == nil {
			return n
		}
	}
	return ""
}

// Missing is the error of a call that needs more of a client than it declared.
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
		Code: spec.CodeMissingCapability, Message: "backend " + backend + " asks for what the client does not declare",
		Data: map[string]any{"requiredCapabilities": required},
	}
}

// Demanded is what the client would have to declare to be asked what a result asks for.
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
