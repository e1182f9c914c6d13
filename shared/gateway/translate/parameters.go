package translate

import (
	"bytes"
	"encoding/json"
	"math/big"
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A tool may require that headers repeat some of its arguments (2026-07-28, Custom Headers from Tool Parameters). The gateway checks
// these headers for clients of that revision, and adds them for clients of older ones.

const (
	annotation = "x-mcp-header"
)

// Parameter is an argument that a header repeats.
type Parameter struct {
	Header string // canonical
	path   []string
	kind   string // string, integer or boolean
}

var errAnnotation = fault.New(fault.Invalid, "the definition of the tool has "+annotation+" where it must not be")

// Parameters reads the annotations of a tool's definition.
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

// applied has the keywords whose subschemas describe the same arguments or parts of them. An annotation below one of them is
// invalid.
var applied = map[string]bool{
	"items": true, "prefixItems": true, "contains": true, "additionalProperties": true, "patternProperties": true,
	"oneOf": true, "anyOf": true, "allOf": true, "not": true, "if": true, "then": true, "else": true,
	"dependentSchemas": true, "$defs": true, "definitions": true, "additionalItems": true, "unevaluatedProperties": true,
}

// collectParameters collects the annotations of an object schema's properties.
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
				below := append(path[:len(path):len(path)], string(name))
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

// Text returns the value that the header must have for the given arguments. It reports false if the header must be absent.
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

// maxSafe is the largest integer in a header. 2026-07-28 limits integers to the ones that JavaScript represents exactly.
const maxSafe = 1<<53 - 1

// integer parses an integer in any notation, for example 1e3.
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

// Equal reports whether a header has the value that [Parameter.Text] returned.
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
