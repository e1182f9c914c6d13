package catalog

import (
	"fmt"
	"math/big"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

var english = sync.OnceValue(func() *message.Printer { return message.NewPrinter(language.English) })

// faultsOf returns the faults for a node of the error tree. Messages name the violated rule but never the value, because errors must not
// contain payloads.
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
		return one("must be one of %s", values(k.Want))
	case *kind.Const:
		return one("must be %s", values([]any{k.Want}))
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

// values formats values of the schema.
func values(want []any) string {
	out := make([]string, 0, len(want))
	for _, v := range want {
		if s, ok := v.(string); ok {
			out = append(out, fmt.Sprintf("%q", s))
		} else {
			out = append(out, fmt.Sprint(v))
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
