package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxSchemaFaults bounds an answer.
const maxSchemaFaults = 20

// ValidatePayload checks a payload against the payload schema. A fault is of
// kind fault.Unprocessable with []jsonpointer.Fault as data, at most 20 and in the
// order of their pointers. Text that is not JSON is fault.Invalid.
func (e *Entry) ValidatePayload(payload []byte) error {
	if e.payload == nil {
		return nil
	}
	if !json.Valid(payload) {
		return fault.New(fault.Invalid, "the payload is not valid JSON")
	}
	faults, err := e.payload.faults(jsonrpc.Value(payload))
	if err != nil || len(faults) == 0 {
		return err
	}
	return fault.New(fault.Unprocessable, "the payload does not fit the schema of %s", e.Name).With(faults)
}

// ValidateParams checks values of the template's variables against the params
// schema; variables may be missing unless the schema requires them. Values are
// texts; where the schema asks for a number or truth value, the text is read as
// one. An error is of kind fault.Invalid, names the first fault, and has
// []jsonpointer.Fault as data.
func (e *Entry) ValidateParams(vars map[string]string) error {
	obj := make(map[string]any, len(vars))
	var faults []jsonpointer.Fault
	for k, v := range vars {
		if !slices.Contains(e.vars, k) {
			faults = append(faults, jsonpointer.Fault{Pointer: pointerOf([]string{k}), Message: "is not a variable of this event type"})
			continue
		}
		obj[k] = e.coerce(k, v)
	}
	if len(faults) == 0 && e.params != nil {
		var err error
		if faults, err = e.params.faults(obj); err != nil {
			return err
		}
	}
	return e.unfit("variables", faults)
}

// ValidateArguments checks the arguments of a subscription by name, a JSON object, against
// [Entry.InputSchema]. Errors are as those of [Entry.ValidateParams].
func (e *Entry) ValidateArguments(arguments []byte) error {
	if e.ParamsSchema == nil && string(arguments) == "{}" {
		return nil // and the schema need not be compiled
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(arguments))
	if err != nil {
		return fault.New(fault.Invalid, "the arguments are not valid JSON")
	}
	faults, err := e.arguments.faults(v)
	if err != nil {
		return err
	}
	return e.unfit("arguments", faults)
}

func (e *Entry) unfit(what string, faults []jsonpointer.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	faults = tidyFaults(faults)
	first := strings.TrimPrefix(faults[0].Pointer+" ", "/")
	return fault.New(fault.Invalid, "the %s of %s do not fit: %s", what, e.Name,
		strings.TrimSpace(first+faults[0].Message)).With(faults)
}

// coerce reads the text of a variable as what its schema asks for.
func (e *Entry) coerce(name, text string) any {
	switch e.types[name] {
	case "integer", "number":
		if n := json.Number(text); plausible(n) && json.Valid([]byte(text)) && text != "" && (text[0] == '-' || text[0] >= '0' && text[0] <= '9') {
			return n
		}
	case "boolean":
		if b, err := strconv.ParseBool(text); err == nil && (text == "true" || text == "false") {
			return b
		}
	}
	return text
}

// checkNumbers finds numbers whose exact arithmetic would cost more than any
// payload is worth: 1e999999 is eight bytes, and a million digits to compare.
func checkNumbers(v any, path []string, depth int, faults []jsonpointer.Fault) []jsonpointer.Fault {
	if depth > event.MaxDepth {
		return append(faults, jsonpointer.Fault{Pointer: pointerOf(path), Message: fmt.Sprintf("is nested deeper than %d levels", event.MaxDepth)})
	}
	switch v := v.(type) {
	case json.Number:
		if !plausible(v) {
			faults = append(faults, jsonpointer.Fault{Pointer: pointerOf(path), Message: "is a number with too many digits or too large an exponent"})
		}
	case map[string]any:
		for k, x := range v {
			if len(faults) < maxSchemaFaults {
				faults = checkNumbers(x, append(path, k), depth+1, faults)
			}
		}
	case []any:
		for i, x := range v {
			if len(faults) < maxSchemaFaults {
				faults = checkNumbers(x, append(path, strconv.Itoa(i)), depth+1, faults)
			}
		}
	}
	return faults
}

func plausible(n json.Number) bool {
	if len(n) > 400 {
		return false
	}
	if i := strings.IndexAny(string(n), "eE"); i >= 0 {
		exp, err := strconv.Atoi(string(n[i+1:]))
		return err == nil && exp <= 400 && exp >= -400
	}
	return true
}

// faults are where a value breaks the schema. The error is of a schema that does not compile.
func (s schema) faults(v any) ([]jsonpointer.Fault, error) {
	compiled, err := s()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "compile a stored schema")
	}
	if faults := checkNumbers(v, nil, 0, nil); len(faults) > 0 {
		return faults, nil
	}
	err = compiled.Validate(v)
	if err == nil {
		return nil, nil
	}
	ve, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return []jsonpointer.Fault{{Pointer: "", Message: "cannot be checked against the schema"}}, nil
	}
	return tidyFaults(collect(ve, nil)), nil
}

// collect takes the leaves of the error tree, and the alternatives' own node,
// which says more than the leaves do.
func collect(ve *jsonschema.ValidationError, out []jsonpointer.Fault) []jsonpointer.Fault {
	if len(out) >= 10*maxSchemaFaults {
		return out
	}
	out = append(out, faultsOf(ve)...)
	for _, c := range ve.Causes {
		out = collect(c, out)
	}
	return out
}

func tidyFaults(faults []jsonpointer.Fault) []jsonpointer.Fault {
	slices.SortFunc(faults, func(a, b jsonpointer.Fault) int {
		return cmp.Or(cmp.Compare(a.Pointer, b.Pointer), cmp.Compare(a.Message, b.Message))
	})
	faults = slices.Compact(faults)
	return faults[:min(len(faults), maxSchemaFaults)]
}

// pointerOf builds a JSON pointer; names as long as a payload are cut.
func pointerOf(path []string) string {
	var b strings.Builder
	for _, t := range path {
		b.WriteString(jsonpointer.Member(strictyaml.Clip(t)))
	}
	return b.String()
}

// noLoader refuses every reference that leaves the schema.
type noLoader struct{}

var errNoLoader = errors.New("references to other documents are not followed")

func (noLoader) Load(string) (any, error) { return nil, errNoLoader }

// schemaURL is where a schema thinks it lives; nothing can be fetched from there.
const schemaURL = "catalog:///schema"

// schema is a JSON Schema that is compiled at its first use at the latest. Compiling
// a catalog of eight event types takes two milliseconds, which a function that
// only lists them, or sees one of them, need not spend when it starts.
type schema func() (*jsonschema.Schema, error)

func newSchema(raw json.RawMessage) schema {
	return sync.OnceValues(func() (*jsonschema.Schema, error) { return compile(raw) })
}

func compile(raw json.RawMessage) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// readSchema reads a JSON Schema. Unless the catalog passed all checks before, it also compiles the schema.
func (p *parser) readSchema(n *strictyaml.Node, what string) (json.RawMessage, schema) {
	raw := p.file.Object(n, what, MaxSchema)
	if raw == nil {
		return nil, nil
	}
	s := newSchema(raw)
	if !p.checked {
		if _, err := s(); err != nil {
			p.addSchemaFaults(n, what, err)
			return nil, nil
		}
	}
	return raw, s
}

// addSchemaFaults reports why a schema does not compile, each reason with its own line if that is known.
func (p *parser) addSchemaFaults(n *strictyaml.Node, what string, err error) {
	if sv, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if ve, ok := errors.AsType[*jsonschema.ValidationError](sv.Err); ok {
			faults := tidyFaults(collect(meant(ve), nil))
			for _, x := range faults[:min(len(faults), 5)] {
				tokens, _ := jsonpointer.Parse(x.Pointer)
				p.file.Add(strictyaml.Line(n, tokens), "%s is not a JSON Schema: %s", what, strings.TrimSpace(x.Pointer+" "+x.Message))
			}
			return
		}
	}
	if le, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		p.file.Add(refLine(n, le.URL), "%s refers to %s; %v", what, strictyaml.Clip(le.URL), errNoLoader)
		return
	}
	line := n.Line
	if ie, ok := errors.AsType[*jsonschema.InvalidRegexError](err); ok {
		if _, pointer, ok := strings.Cut(ie.URL, "#"); ok {
			tokens, _ := jsonpointer.Parse(pointer)
			line = strictyaml.Line(n, tokens)
		}
	}
	p.file.Add(line, "%s is not a JSON Schema: %.300s", what, err)
}

// meant is an error of the meta-schema with that alternative alone that the author most likely
// meant: the one that failed deepest inside, or else not for the type of the value as a whole.
func meant(ve *jsonschema.ValidationError) *jsonschema.ValidationError {
	if _, ok := ve.ErrorKind.(*kind.AnyOf); ok && len(ve.Causes) > 0 {
		return meant(slices.MaxFunc(ve.Causes, func(a, b *jsonschema.ValidationError) int {
			depthA, kindA := closest(a)
			depthB, kindB := closest(b)
			return cmp.Or(cmp.Compare(depthA, depthB), cmp.Compare(kindA, kindB))
		}))
	}
	out := *ve
	out.Causes = make([]*jsonschema.ValidationError, len(ve.Causes))
	for i, c := range ve.Causes {
		out.Causes[i] = meant(c)
	}
	return &out
}

// closest is how deep the deepest leaf of an error lies, and 1 if that is not about a type.
func closest(ve *jsonschema.ValidationError) (depth, other int) {
	if len(ve.Causes) == 0 {
		if _, ok := ve.ErrorKind.(*kind.Type); !ok {
			other = 1
		}
		return len(ve.InstanceLocation), other
	}
	for _, c := range ve.Causes {
		if d, o := closest(c); d > depth || d == depth && o > other {
			depth, other = d, o
		}
	}
	return depth, other
}

// refLine finds the reference that leads to a URL.
func refLine(n *strictyaml.Node, url string) int {
	best := n.Line
	var walk func(n *strictyaml.Node, depth int) bool
	walk = func(n *strictyaml.Node, depth int) bool {
		if depth > 64 {
			return false
		}
		for i, c := range n.Content {
			if i%2 == 1 && n.Content[i-1].Value == "$ref" && c.Value != "" {
				ref, _, _ := strings.Cut(c.Value, "#")
				if ref != "" && strings.HasSuffix(url, strings.TrimPrefix(ref, ".")) {
					best = c.Line
					return true
				}
			}
			if walk(c, depth+1) {
				return true
			}
		}
		return false
	}
	walk(n, 0)
	return best
}
