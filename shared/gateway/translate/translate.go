// Package translate converts requests, results and errors between protocol revisions.
//
// Between the session-based revisions (up to 2025-11-25) and 2026-07-28 it changes:
//
//	                     client 2026, backend 2025         client 2025, backend 2026
//	requests             removes _meta of the revision     adds _meta and headers of the revision
//	results              adds resultType, caching hints    removes resultType
//	error codes          changes -32002, -32022            changes -32020, -32021, -32022, -32602 (see [Revisions.ErrorCode])
//
// All results for clients of 2026-07-28 also get a serverInfo if it is missing (see [AddServer]). The package leaves all other bytes
// alone. All functions are pure: they use no backend, store or clock. Package gateway handles a backend's questions to the client.
package translate

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Revisions has the protocol revisions of a call's client and backend.
type Revisions struct{ Client, Backend spec.Version }

// MultiRound has the methods whose results may be input_required in 2026-07-28.
var MultiRound = map[string]bool{spec.MethodToolsCall: true, spec.MethodPromptsGet: true, spec.MethodRead: true}

// requestMeta lists the members of a request's _meta that only 2026-07-28 has.
var requestMeta = []string{spec.MetaVersion, spec.MetaCapabilities, spec.MetaClient, spec.MetaLogLevel}

func isRequestMeta(name string) bool { return slices.Contains(requestMeta, name) }

// WithoutRounds removes the members of params with which a client of 2026-07-28 answers an input_required result.
func WithoutRounds(params json.RawMessage) json.RawMessage {
	return jsonrpc.Without(params, func(name string) bool { return name == "inputResponses" || name == "requestState" })
}

// ToSessionBased converts the params of a request of 2026-07-28 for a session-based backend. It replaces the progress token by the given
// one, because several clients may share the session. The result replaced is false if the params have no progress token.
func ToSessionBased(params, token json.RawMessage) (out json.RawMessage, replaced bool) {
	params = WithoutRounds(params)
	meta := jsonrpc.Member(params, "_meta")
	if jsonrpc.Member(meta, "progressToken") != nil {
		meta, replaced = jsonrpc.Replace(meta, "progressToken", token), true
	}
	return jsonrpc.Replace(params, "_meta", jsonrpc.Without(meta, isRequestMeta)), replaced
}

// Client is the description of a client that each request of 2026-07-28 contains.
type Client struct {
	Info, Capabilities json.RawMessage
	Level              string // the requested level of log messages, or empty
}

// ToStateless converts the params of a session-based client's request for a backend of 2026-07-28.
func ToStateless(params json.RawMessage, version spec.Version, c Client) json.RawMessage {
	meta := jsonrpc.Without(jsonrpc.Member(params, "_meta"), isRequestMeta)
	if c.Level != "" {
		meta = jsonrpc.Insert(meta, spec.MetaLogLevel, jsonrpc.Quote(c.Level))
	}
	meta = jsonrpc.Insert(meta, spec.MetaClient, c.Info)
	meta = jsonrpc.Insert(meta, spec.MetaCapabilities, c.Capabilities)
	meta = jsonrpc.Insert(meta, spec.MetaVersion, jsonrpc.Quote(string(version)))
	params = jsonrpc.Without(params, func(name string) bool { return name == "_meta" })
	return jsonrpc.Insert(params, "_meta", meta)
}

// InputRequired reports whether a result of 2026-07-28 asks the client for input instead of ending the call.
func InputRequired(result json.RawMessage) bool {
	kind, _ := jsonrpc.String(jsonrpc.Member(result, "resultType"))
	return kind == "input_required"
}

// Result converts the result of a method for the client's revision. It returns a result that is not an object unchanged.
func (r Revisions) Result(method string, result json.RawMessage) json.RawMessage {
	if len(result) == 0 || result[0] != '{' {
		return result
	}
	switch {
	case r.Client.Stateless() && r.Backend.Stateless():
		if jsonrpc.Member(result, "resultType") == nil {
			return addComplete(result)
		}
	case r.Client.Stateless():
		result = jsonrpc.Without(result, func(name string) bool { return name == "resultType" })
		if method == spec.MethodRead && jsonrpc.Member(result, "ttlMs") == nil {
			result = jsonrpc.Without(result, func(name string) bool { return name == "cacheScope" || name == "ttlMs" })
			result = jsonrpc.Insert(jsonrpc.Insert(result, "cacheScope", json.RawMessage(`"private"`)), "ttlMs", json.RawMessage(`0`))
		}
		return addComplete(result)
	case r.Backend.Stateless():
		structured := jsonrpc.Member(result, "structuredContent")
		return jsonrpc.Without(result, func(name string) bool {
			// Up to 2025-11-25, structuredContent must be an object, so remove any other value. The client still has the content as text.
			return name == "resultType" || name == "structuredContent" && structured != nil && structured[0] != '{'
		})
	}
	return result
}

func addComplete(result json.RawMessage) json.RawMessage {
	return jsonrpc.Insert(result, "resultType", json.RawMessage(`"complete"`))
}

// AddServer adds the server's Implementation object to the _meta of a result, unless the backend has identified itself there. It replaces
// a _meta that is not an object, for example null. "Servers SHOULD include this field on every response" (2026-07-28, ResultMetaObject).
func AddServer(result, server json.RawMessage) json.RawMessage {
	if len(result) == 0 || result[0] != '{' {
		return result
	}
	var meta json.RawMessage
	for name, value := range jsonrpc.Members(result) {
		if string(name) == "_meta" {
			meta = value
		}
	}
	if jsonrpc.Member(meta, spec.MetaServer) != nil {
		return result
	}
	added := jsonrpc.Insert(jsonrpc.Without(meta, func(name string) bool { return name == spec.MetaServer }), spec.MetaServer, server)
	if meta != nil {
		return jsonrpc.Replace(result, "_meta", added)
	}
	members := bytes.TrimRight(result[:len(result)-1], " \t\r\n")
	return append(jsonrpc.AppendMember(slices.Clip(members), "_meta", added), '}')
}

// ErrorCode converts the code of a backend's error for the client's revision. It keeps [spec.CodeNeedsURL] of a session-based backend for
// a client of 2026-07-28, because the gateway turns that error into a question.
func (r Revisions) ErrorCode(method string, code int, data json.RawMessage) int {
	switch {
	case code == spec.CodeUnsupportedVersion && !r.Client.Stateless() && !r.Backend.Stateless() && jsonrpc.Member(data, "supported") == nil:
		// The case above keeps the code. Up to 2025-11-25 this code has no meaning, so the backend may use it for an error of its own. If
		// the backend meant the error of 2026-07-28, its data would have the member supported.
	case code == spec.CodeUnsupportedVersion: // the gateway chose the version, and the client must not choose another one
		return jsonrpc.InternalError
	case r.Client.Stateless():
		switch {
		case code == spec.CodeNeedsURL && r.Backend.Stateless():
			return jsonrpc.InternalError
		case code == spec.CodeResourceNotFound:
			return jsonrpc.InvalidParams
		}
	case r.Backend.Stateless():
		switch code {
		case jsonrpc.InvalidParams:
			if method == spec.MethodRead && jsonrpc.Member(data, "uri") != nil {
				return spec.CodeResourceNotFound
			}
		case spec.CodeMissingCapability:
			return jsonrpc.InvalidRequest
		case spec.CodeHeaderMismatch: // the gateway builds the headers for such a backend, so it caused this error
			return jsonrpc.InternalError
		}
	}
	return code
}

// Error converts the code of an error response with [Revisions.ErrorCode]. It also returns the original code.
func (r Revisions) Error(method string, response json.RawMessage) (out json.RawMessage, had int) {
	failure := jsonrpc.Member(response, "error")
	_ = json.Unmarshal(jsonrpc.Member(failure, "code"), &had) // without a valid code, had stays 0, which ErrorCode does not change
	to := r.ErrorCode(method, had, jsonrpc.Member(failure, "data"))
	if to == had {
		return response, had
	}
	return jsonrpc.Replace(response, "error", jsonrpc.Replace(failure, "code", strconv.AppendInt(nil, int64(to), 10))), had
}

// Tool converts a tool's entry in a list for a client of the given revision. Up to 2025-11-25, the output of a tool must be an object,
// and client libraries reject the whole list if one is not. So Tool removes any other output schema.
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

// In revision 2026-07-28, a tool's definition may require that HTTP headers repeat some arguments of a call (Custom Headers from Tool
// Parameters). If the client uses this revision, the gateway checks these headers. If the client uses an older one, the gateway adds the
// headers to its request to the backend.

const annotation = "x-mcp-header"

// Parameter is an argument of a tool that an HTTP header repeats.
type Parameter struct {
	Header string // in the form of [http.CanonicalHeaderKey]
	path   []string
	kind   string // the type of the argument: string, integer or boolean
}

var errAnnotation = fault.New(fault.Invalid, "the definition of the tool has "+annotation+" where it must not be")

// Parameters returns the arguments of a tool that headers must repeat, according to the annotations x-mcp-header in its definition.
func Parameters(tool json.RawMessage) ([]Parameter, error) {
	if !bytes.Contains(tool, []byte(annotation)) {
		return nil, nil
	}
	var out []Parameter
	if err := collectParameters(jsonrpc.Member(tool, "inputSchema"), nil, &out); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, p := range out {
		if seen[p.Header] {
			return nil, errAnnotation
		}
		seen[p.Header] = true
	}
	return out, nil
}

// applied has the JSON Schema keywords, except properties, that contain further schemas. The annotation x-mcp-header is invalid in these
// schemas.
var applied = map[string]bool{
	"items": true, "prefixItems": true, "contains": true, "additionalProperties": true, "patternProperties": true,
	"oneOf": true, "anyOf": true, "allOf": true, "not": true, "if": true, "then": true, "else": true,
	"dependentSchemas": true, "$defs": true, "definitions": true, "additionalItems": true, "unevaluatedProperties": true,
}

// collectParameters appends a [Parameter] to out for each annotation x-mcp-header in the schema or in its properties, at any
// depth. The path has the names of the properties that lead from the tool's input schema to this schema.
func collectParameters(schema json.RawMessage, path []string, out *[]Parameter) error {
	for keyword, value := range jsonrpc.Members(schema) {
		switch {
		case applied[string(keyword)] && bytes.Contains(value, []byte(`"`+annotation+`"`)):
			return errAnnotation
		case string(keyword) == annotation && len(path) == 0:
			return errAnnotation
		case string(keyword) == annotation:
			name, _ := jsonrpc.String(value)
			kind, _ := jsonrpc.String(jsonrpc.Member(schema, "type"))
			if !isToken(name) || kind != "string" && kind != "integer" && kind != "boolean" {
				return errAnnotation
			}
			*out = append(*out, Parameter{http.CanonicalHeaderKey(spec.HeaderParameter + name), path, kind})
		case string(keyword) == "properties":
			for name, property := range jsonrpc.Members(value) {
				below := append(slices.Clip(path), string(name))
				if err := collectParameters(property, below, out); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// isToken reports whether s is a valid header name (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	return s != "" && strings.Trim(s, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&'*+-.^_`|~") == ""
}

// Text returns the value that the parameter's header must have for the given arguments of a call. It returns false if the header must be
// absent.
func (p Parameter) Text(arguments json.RawMessage) (string, bool) {
	at := arguments
	for _, name := range p.path {
		if at = jsonrpc.Member(at, name); at == nil {
			return "", false
		}
	}
	switch p.kind {
	case "string":
		return jsonrpc.String(at)
	case "boolean":
		return string(at), string(at) == "true" || string(at) == "false"
	}
	n, ok := integer(string(at))
	if !ok {
		return "", false
	}
	return n.String(), true
}

// maxSafe is the largest integer that a header may have. 2026-07-28 limits integers to the ones that JavaScript represents exactly.
const maxSafe = 1<<53 - 1

// integer parses an integer in any notation, for example 1e3. It returns false for all other text, and beyond maxSafe.
func integer(s string) (*big.Int, bool) {
	if len(s) > 64 {
		return nil, false
	}
	f, _, err := big.ParseFloat(s, 10, 128, big.ToZero)
	if err != nil || !f.IsInt() || f.MantExp(nil) > 64 {
		return nil, false
	}
	n, _ := f.Int(nil)
	return n, n.CmpAbs(big.NewInt(maxSafe)) <= 0
}

// Equal reports whether a header's value stands for the value want, a result of [Parameter.Text]. An integer in the header may have any
// notation, for example 1e3 for 1000.
func (p Parameter) Equal(header, want string) bool {
	got, err := spec.DecodeHeader(header)
	if err != nil {
		return false
	}
	if p.kind != "integer" {
		return got == want
	}
	n, ok := integer(got)
	return ok && n.String() == want
}

// Digest returns a hash of a JSON value. It does not depend on the order of members or on formatting.
func Digest(value json.RawMessage) string {
	if len(value) > 0 {
		value, _ = json.Marshal(jsonrpc.Value(value)) // sorts the members
	}
	h := sha256.Sum256(value)
	return base64.RawURLEncoding.EncodeToString(h[:18])
}

// QuestionDigest returns a digest of a question's params that stays the same when a backend asks the question again. It ignores _meta and
// the id of an elicitation, also where the elicitation's URL contains the id.
func QuestionDigest(params json.RawMessage) string {
	id, _ := jsonrpc.String(jsonrpc.Member(params, "elicitationId"))
	params = jsonrpc.Without(params, func(name string) bool { return name == "_meta" || name == "elicitationId" })
	if url, ok := jsonrpc.String(jsonrpc.Member(params, "url")); ok && len(id) >= 8 {
		params = jsonrpc.Replace(params, "url", jsonrpc.Quote(strings.ReplaceAll(url, id, "")))
	}
	return Digest(params)
}

// AppendInput appends a backend's question to the object inputRequests of an input_required result. It removes the progress token,
// because the gateway reports no progress between rounds, and the elicitationId, which 2026-07-28 does not have.
func AppendInput(b []byte, key, method string, params json.RawMessage) []byte {
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = jsonrpc.AppendString(append(jsonrpc.AppendString(b, key), `:{"method":`...), method)
	if params != nil {
		meta := jsonrpc.Without(jsonrpc.Member(params, "_meta"), func(name string) bool { return name == "progressToken" })
		params = jsonrpc.Without(params, func(name string) bool {
			return name == "elicitationId" || name == "_meta" && len(meta) <= len(`{}`)
		})
		b = append(append(b, `,"params":`...), jsonrpc.Replace(params, "_meta", meta)...)
	}
	return append(b, '}')
}

// Need is a client capability that a backend's question needs, such as "elicitation.url". It is empty if the question needs no
// capability.
type Need string

// FindMissing returns the capability that a question needs but the client has not declared, or "". If there is no capability for the
// method, it returns the method.
func FindMissing(capabilities json.RawMessage, method string, params json.RawMessage) Need {
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
		// A client that declares elicitation without a mode supports forms (2025-11-25, Elicitation). So it must declare the mode form
		// only if it declares the mode url.
		if findUndeclared(capabilities, "elicitation.url") == "" {
			return findUndeclared(capabilities, "elicitation.form")
		}
		return findUndeclared(capabilities, "elicitation")
	}
	return Need(method)
}

// MayBeAsked reports whether a client declares that it can answer at least one kind of question.
func MayBeAsked(capabilities json.RawMessage) bool {
	return slices.ContainsFunc([]Need{"elicitation", "sampling", "roots"}, func(n Need) bool { return findUndeclared(capabilities, n) == "" })
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

// WithoutClientTasks returns a client's capabilities without the tasks of 2025-11-25, whose methods the gateway does not relay. If a
// backend learned of them, it could turn a question into a task, and ask the client for the answer with these methods.
func WithoutClientTasks(capabilities json.RawMessage) json.RawMessage {
	if jsonrpc.Member(capabilities, "tasks") == nil {
		return capabilities
	}
	return jsonrpc.Without(capabilities, func(name string) bool { return name == "tasks" })
}

// MissingTasks returns the error for a request that needs the tasks extension although the client has not declared it.
func MissingTasks() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code: spec.CodeMissingCapability, Message: "the request needs the extension " + spec.TasksExtension + ", which the client does not declare",
		Data: map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{spec.TasksExtension: struct{}{}}}},
	}
}

// NewMissingError returns the error for a call that needs client capabilities which the client has not declared.
func NewMissingError(backend string, needs []Need) *jsonrpc.Error {
	required := map[string]map[string]struct{}{}
	for _, n := range needs {
		if strings.Contains(string(n), "/") {
			continue // n is a method for which there is no capability
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

// ListMissing returns the capabilities that the inputRequests of a result need but the client has not declared.
func ListMissing(capabilities, result json.RawMessage) []Need {
	var lacks []Need
	for _, request := range jsonrpc.Members(jsonrpc.Member(result, "inputRequests")) {
		method, _ := jsonrpc.String(jsonrpc.Member(request, "method"))
		if n := FindMissing(capabilities, method, jsonrpc.Member(request, "params")); n != "" && !slices.Contains(lacks, n) {
			lacks = append(lacks, n)
		}
	}
	return lacks
}
