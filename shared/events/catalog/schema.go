package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

const maxSchemaFaults = 20 // in an error

// ValidatePayload checks a payload, which must be valid JSON, against the payload schema. The error is of kind
// fault.Unprocessable. Its data is a []jsonpointer.Fault with at most 20 faults, sorted by pointer, or nil if the payload is too
// large to check.
func (e *Entry) ValidatePayload(payload []byte) error {
	if e.payload == nil {
		return nil
	}
	if e.cost*len(payload) > maxCheck {
		return fault.New(fault.Unprocessable, "the payload is too large to check against the schema of %s", e.Name)
	}
	faults, err := e.payload.faults(jsonrpc.Value(payload))
	if err != nil || len(faults) == 0 {
		return err
	}
	return fault.New(fault.Unprocessable, "the payload does not fit the schema of %s", e.Name).With(faults)
}

// ValidateParams checks values of the template's variables against the params schema. Variables may be missing unless the schema requires
// them. If the schema of a variable says number, integer or boolean, the variable's text is converted to this type.
//
// The error is of kind fault.Invalid, names the first fault, and has a []jsonpointer.Fault as data.
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
	return e.newUnfitError("variables", faults)
}

// ValidateArguments checks the arguments of a subscription by name against [Entry.InputSchema]. Its errors have the same form as the
// errors of [Entry.ValidateParams].
func (e *Entry) ValidateArguments(arguments []byte) error {
	if e.ParamsSchema == nil && string(arguments) == "{}" {
		return nil // avoids compiling the schema, which accepts an empty object
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(arguments))
	if err != nil {
		return fault.New(fault.Invalid, "the arguments are not valid JSON")
	}
	faults, err := e.arguments.faults(v)
	if err != nil {
		return err
	}
	return e.newUnfitError("arguments", faults)
}

func (e *Entry) newUnfitError(what string, faults []jsonpointer.Fault) error {
	if len(faults) == 0 {
		return nil
	}
	faults = tidyFaults(faults)
	first := strings.TrimPrefix(faults[0].Pointer+" ", "/")
	return fault.New(fault.Invalid, "the %s of %s do not fit: %s", what, e.Name,
		strings.TrimSpace(first+faults[0].Message)).With(faults)
}

// coerce converts text, the value of the URI variable with the given name, to the JSON type that the variable's schema requires. For
// example, it converts "5" to the number 5 if the schema requires an integer. It returns text unchanged if the conversion is not possible.
func (e *Entry) coerce(name, text string) any {
	switch e.types[name] {
	case "integer", "number":
		if n := json.Number(text); isCheap(n) && json.Valid([]byte(text)) && text != "" && (text[0] == '-' || text[0] >= '0' && text[0] <= '9') {
			return n
		}
	case "boolean":
		if b, err := strconv.ParseBool(text); err == nil && (text == "true" || text == "false") {
			return b
		}
	}
	return text
}

// checkNumbers adds a fault for each number that is expensive to compare exactly, for example 1e999999, and for too deep nesting.
func checkNumbers(v any, path []string, depth int, faults []jsonpointer.Fault) []jsonpointer.Fault {
	if depth > event.MaxDepth {
		return append(faults, jsonpointer.Fault{Pointer: pointerOf(path), Message: fmt.Sprintf("is nested deeper than %d levels", event.MaxDepth)})
	}
	switch v := v.(type) {
	case json.Number:
		if !isCheap(v) {
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

func isCheap(n json.Number) bool {
	if len(n) > 400 {
		return false
	}
	if i := strings.IndexAny(string(n), "eE"); i >= 0 {
		exp, err := strconv.Atoi(string(n[i+1:]))
		return err == nil && exp <= 400 && exp >= -400
	}
	return true
}

// faults returns the faults of a value, which are its violations of the schema. It returns an error only if the schema does not compile.
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
	slices.SortStableFunc(faults, func(a, b jsonpointer.Fault) int {
		return cmp.Or(cmp.Compare(a.Pointer, b.Pointer), cmp.Compare(a.Message, b.Message))
	})
	faults = slices.Compact(faults)
	return faults[:min(len(faults), maxSchemaFaults)]
}

// pointerOf returns the JSON pointer of a path, with long names shortened.
func pointerOf(path []string) string {
	var b strings.Builder
	for _, t := range path {
		b.WriteString(jsonpointer.Member(strictyaml.Clip(t)))
	}
	return b.String()
}

// noLoader is a loader for the JSON Schema library that refuses references to other documents.
type noLoader struct{}

var errNoLoader = errors.New("references to other documents are not followed")

func (noLoader) Load(string) (any, error) { return nil, errNoLoader }

// schemaURL is the base URL of every schema, because the JSON Schema library needs one.
const schemaURL = "catalog:///schema"

// schema is a function that returns a compiled JSON Schema. It compiles the schema on the first call, which saves a Lambda function some
// milliseconds at its start.
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

// readSchema reads a JSON Schema. It compiles the schema to find faults, except in a stored catalog, which was checked before.
func (p *parser) readSchema(n *strictyaml.Node, what string) (json.RawMessage, schema) {
	raw := p.file.Object(n, what, maxSchema)
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

func (p *parser) addSchemaFaults(n *strictyaml.Node, what string, err error) {
	if sv, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if ve, ok := errors.AsType[*jsonschema.ValidationError](sv.Err); ok {
			faults := tidyFaults(collect(pickCause(ve), nil))
			for _, x := range faults[:min(len(faults), 5)] {
				tokens, _ := jsonpointer.Parse(x.Pointer)
				p.file.Add(strictyaml.Line(n, tokens), "%s is not a JSON Schema: %s", what, strings.TrimSpace(x.Pointer+" "+x.Message))
			}
			return
		}
	}
	if le, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		p.file.Add(n.Line, "%s refers to %s; %v", what, strictyaml.Clip(le.URL), errNoLoader)
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

// pickCause keeps only one cause of each anyOf in an error of the meta-schema, which describes JSON Schemas. A misspelled type is
// therefore reported once. pickCause keeps the cause that failed deepest in the schema, because there the author came closest to a valid
// schema.
func pickCause(ve *jsonschema.ValidationError) *jsonschema.ValidationError {
	if _, ok := ve.ErrorKind.(*kind.AnyOf); ok && len(ve.Causes) > 0 {
		return pickCause(slices.MaxFunc(ve.Causes, func(a, b *jsonschema.ValidationError) int {
			depthA, kindA := deepestCause(a)
			depthB, kindB := deepestCause(b)
			return cmp.Or(cmp.Compare(depthA, depthB), cmp.Compare(kindA, kindB))
		}))
	}
	out := *ve
	out.Causes = make([]*jsonschema.ValidationError, len(ve.Causes))
	for i, c := range ve.Causes {
		out.Causes[i] = pickCause(c)
	}
	return &out
}

// deepestCause returns the depth of the deepest cause of a validation error. The result other is 0 if this cause is a value of a wrong
// type, and 1 otherwise. Of two causes with the same depth, deepestCause prefers the one with other = 1.
func deepestCause(ve *jsonschema.ValidationError) (depth, other int) {
	if len(ve.Causes) == 0 {
		if _, ok := ve.ErrorKind.(*kind.Type); !ok {
			other = 1
		}
		return len(ve.InstanceLocation), other
	}
	for _, c := range ve.Causes {
		if d, o := deepestCause(c); d > depth || d == depth && o > other {
			depth, other = d, o
		}
	}
	return depth, other
}

var english = sync.OnceValue(func() *message.Printer { return message.NewPrinter(language.English) })

// faultsOf returns the faults of one validation error without its causes. The messages do not contain the value, which may be confidential.
func faultsOf(ve *jsonschema.ValidationError) []jsonpointer.Fault {
	at := pointerOf(ve.InstanceLocation)
	one := func(format string, args ...any) []jsonpointer.Fault {
		return []jsonpointer.Fault{{Pointer: at, Message: fmt.Sprintf("%.300s", fmt.Sprintf(format, args...))}}
	}
	switch k := ve.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		if len(ve.Causes) > 0 {
			return nil
		}
	case *kind.Required:
		return one("lacks %s", quoteAll(k.Missing))
	case *kind.DependentRequired:
		return one("lacks %s, which %q needs", quoteAll(k.Missing), strictyaml.Clip(k.Prop))
	case *kind.AdditionalProperties:
		out := make([]jsonpointer.Fault, 0, len(k.Properties))
		for _, prop := range k.Properties[:min(len(k.Properties), maxSchemaFaults)] {
			out = append(out, jsonpointer.Fault{Pointer: at + pointerOf([]string{prop}), Message: "is not a member of the schema"})
		}
		return out
	case *kind.Type:
		return one("must be %s, not %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		return one("must be one of %s", formatValues(k.Want))
	case *kind.Const:
		return one("must be %s", formatValues([]any{k.Want}))
	case *kind.Pattern:
		return one("must match the pattern %s", k.Want)
	case *kind.Format:
		return one("must be of the format %s", k.Want)
	case *kind.PropertyNames:
		return one("has a member whose name is not allowed")
	case *kind.Minimum:
		return one("must be at least %s", number(k.Want))
	case *kind.Maximum:
		return one("must be at most %s", number(k.Want))
	case *kind.ExclusiveMinimum:
		return one("must be greater than %s", number(k.Want))
	case *kind.ExclusiveMaximum:
		return one("must be less than %s", number(k.Want))
	case *kind.MultipleOf:
		return one("must be a multiple of %s", number(k.Want))
	case *kind.AnyOf:
		return one("fits none of the alternatives (anyOf)")
	case *kind.OneOf:
		if k.Subschemas == nil {
			return one("fits none of the alternatives (oneOf)")
		}
		return one("fits more than one of the alternatives (oneOf)")
	case *kind.Not:
		return one("fits a schema that is excluded (not)")
	case *kind.FalseSchema:
		return one("is not allowed")
	}
	return one("%s", ve.ErrorKind.LocalizedString(english()))
}

func quoteAll(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", strictyaml.Clip(n))
	}
	return strings.Join(out, ", ")
}

func formatValues(want []any) string {
	out := make([]string, 0, len(want))
	for _, v := range want {
		if s, ok := v.(string); ok {
			out = append(out, fmt.Sprintf("%q", s))
		} else {
			b, _ := json.Marshal(v)
			out = append(out, string(b))
		}
	}
	return strings.Join(out, ", ")
}

func number(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return fmt.Sprint(f)
}

// A backend chooses its schemas, and a small schema can take very long to evaluate: with ten levels of references that each occur twice, a
// value is compared 1,024 times. So the cost of a backend's schema is limited, and so is the cost of checking one payload.
const (
	// maxSchemaCost is the highest [schemaCost] of a backend's schema.
	maxSchemaCost = 2000
	// maxCheck limits the schema's cost multiplied by the payload's bytes. A check at the limit takes about a second.
	maxCheck = 50_000_000
)

// schemaCost estimates how long a schema takes to evaluate: the number of JSON values in it after each reference is replaced by its
// target, plus the cost of its patterns. The result exceeds maxSchemaCost if the schema has
//   - a circular reference,
//   - a reference other than a JSON pointer into the schema, or
//   - draft 4, in which a member "id" may change what a reference means.
func schemaCost(raw json.RawMessage) int {
	root := jsonrpc.Value(raw)
	c := coster{root: root, known: map[string]int{}}
	if m, ok := root.(map[string]any); ok {
		delete(m, "$id") // it only names the schema
	}
	return c.cost(root)
}

// coster computes the cost of a schema. The field known caches the cost of each reference's target. While a target's cost is being
// computed, its value in known is tooExpensive. So a circular reference ends the recursion, and makes the schema too expensive.
type coster struct {
	root  any
	known map[string]int
}

const tooExpensive = maxSchemaCost + 1

func (c *coster) cost(v any) int {
	sum := 1
	add := func(n int) { sum = min(sum+n, tooExpensive) }
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			add(c.cost(x))
		}
	case map[string]any:
		for name, x := range v {
			text, isText := x.(string)
			switch {
			case isText && name == "$ref":
				add(c.costOfTarget(text))
			case isText && name == "pattern":
				add(patternCost(text))
			case name == "patternProperties":
				patterns, _ := x.(map[string]any)
				for pattern := range patterns {
					add(patternCost(pattern))
				}
			case isText && name == "$schema" && strings.Contains(text, "draft-04"):
				return tooExpensive
			case isText && (name == "$dynamicRef" || name == "$recursiveRef" || name == "$id"):
				return tooExpensive
			}
			add(c.cost(x))
		}
	}
	return sum
}

func (c *coster) costOfTarget(ref string) int {
	pointer, ok := strings.CutPrefix(ref, "#/")
	path, err := jsonpointer.Parse("/" + pointer)
	if !ok || err != nil || strings.Contains(ref, "%") {
		return tooExpensive
	}
	if n, ok := c.known[pointer]; ok {
		return n
	}
	c.known[pointer] = tooExpensive
	to, ok := path.ValueIn(c.root)
	if !ok {
		return tooExpensive
	}
	c.known[pointer] = c.cost(to)
	return c.known[pointer]
}

// statesPerCost is how many states of a regular expression cost as much in [schemaCost] as one JSON value of a schema.
const statesPerCost = 4

// patternCost returns the cost of a regular expression in a schema. Repetitions multiply its states. For example, x{1000} has 1,000
// states.
func patternCost(pattern string) int {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0 // the schema library refuses a schema with such a pattern
	}
	return countStates(re) / statesPerCost
}

// countStates estimates the number of states of a regular expression with all repetitions written out.
func countStates(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n = min(n+countStates(sub), statesPerCost*tooExpensive)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, statesPerCost*tooExpensive)
}
