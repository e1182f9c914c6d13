package catalog

import (
	"encoding/json"
	"regexp/syntax"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// A backend chooses its schemas, and a small schema can take very long to evaluate: with ten levels of references that each occur twice,
// a value is compared 1,024 times. So schemas of backends have a maximum cost, and so has each check.
const (
	// maxSchemaCost limits the size of a schema in which all references are replaced by their targets.
	maxSchemaCost = 2000
	// maxCheck limits the cost of a schema times the bytes of the payload. Such a check takes about a second at most.
	maxCheck = 50_000_000
)

// schemaCost returns the number of JSON values in a schema whose references are replaced by their targets, and adds the cost of its
// patterns. It returns more than maxSchemaCost for a schema with circular references, whose size has no limit, and with other references
// than JSON pointers into the schema itself. It also does so for draft 4, in which every member "id" may change what such a pointer means.
func schemaCost(raw json.RawMessage) int {
	root := jsonrpc.Value(raw)
	c := coster{root: root, known: map[string]int{}}
	if m, ok := root.(map[string]any); ok {
		delete(m, "$id") // it only names the schema
	}
	return c.of(root)
}

// coster computes the cost of the parts of a schema. While it computes the target of a reference, known has a cost for it that is too
// high, so that circles end.
type coster struct {
	root  any
	known map[string]int
}

const tooExpensive = maxSchemaCost + 1

func (c *coster) of(v any) int {
	sum := 1
	add := func(n int) { sum = min(sum+n, tooExpensive) }
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			add(c.of(x))
		}
	case map[string]any:
		for name, x := range v {
			text, isText := x.(string)
			switch {
			case isText && name == "$ref":
				add(c.target(text))
			case isText && name == "pattern":
				add(patternCost(text))
			case name == "patternProperties":
				for pattern := range members(x) {
					add(patternCost(pattern))
				}
			case isText && name == "$schema" && strings.Contains(text, "draft-04"):
				return tooExpensive
			case isText && (name == "$dynamicRef" || name == "$recursiveRef" || name == "$id"):
				return tooExpensive
			}
			add(c.of(x))
		}
	}
	return sum
}

// target returns the cost of a reference's target.
func (c *coster) target(ref string) int {
	pointer, ok := strings.CutPrefix(ref, "#/")
	path, err := jsonpointer.Parse("/" + pointer)
	if !ok || err != nil || strings.Contains(ref, "%") {
		return tooExpensive
	}
	if n, ok := c.known[pointer]; ok {
		return n
	}
	c.known[pointer] = tooExpensive
	to, ok := path.In(c.root)
	if !ok {
		return tooExpensive
	}
	c.known[pointer] = c.of(to)
	return c.known[pointer]
}

func members(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// statesPerCost is how many states of a pattern take as long, for each byte of a text, as one value of a schema.
const statesPerCost = 4

// patternCost returns the cost of a regular expression. Repetitions multiply its states: x{1000} has eight bytes and 1,000 states.
func patternCost(pattern string) int {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0 // it does not compile either
	}
	return states(re) / statesPerCost
}

// states returns about how many states a regular expression has when its repetitions are written out.
func states(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n = min(n+states(sub), statesPerCost*tooExpensive)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, statesPerCost*tooExpensive)
}
