package catalog

import (
	"encoding/json"
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

// schemaCost returns the number of JSON values in a schema whose references are replaced by their targets. It returns more than
// maxSchemaCost for a schema with circular references, whose size has no limit, and with other references than JSON pointers into
// the schema itself.
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
