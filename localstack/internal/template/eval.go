package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Scope provides the values that only the creator of the resources knows.
type Scope interface {
	// Ref returns the value of a reference to a resource, which is its physical id.
	Ref(id string) (string, error)
	// Attr returns an attribute of a resource, e.g. Arn.
	Attr(id, attribute string) (string, error)
	// Parameter returns the value given for a parameter, or false if the default applies.
	Parameter(name string) (value string, ok bool)
	// Pseudo returns the value of a pseudo parameter, e.g. AWS::Region, or false if it does not exist.
	Pseudo(name string) (value string, ok bool)
}

// absent is the value of AWS::NoValue. A member with this value is removed.
type absent struct{}

// maxDepth is the maximum nesting depth of values and conditions.
const maxDepth = 64

// Included reports whether the resource's condition holds.
func (t *Template) Included(r *Resource, s Scope) (bool, error) { return t.holds(r.condition, s, 0) }

// Properties evaluates a resource's properties, merged with Globals, and decodes them into v, a pointer to a struct
// with json tags. A property that is not in v is an error.
func (t *Template) Properties(r *Resource, s Scope, v any) error {
	var value any = map[string]any{}
	if n := t.merged(r); n != nil {
		p, err := t.eval(n, s, 0)
		if err != nil {
			return err
		}
		value = p
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return &Error{File: t.file, Line: r.Line, Message: fmt.Sprintf("resource %s: %v", r.ID, err)}
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		text := strings.TrimPrefix(err.Error(), "json: ")
		if field, ok := strings.CutPrefix(text, "unknown field "); ok {
			text = "property " + field + " is not supported here"
		}
		return &Error{File: t.file, Line: r.Line, Message: fmt.Sprintf("resource %s (%s): %s", r.ID, r.Type, text)}
	}
	return nil
}

// merged returns a resource's properties with the Globals of its type merged in, as SAM does before CloudFormation
// evaluates them. It returns nil if both are missing.
func (t *Template) merged(r *Resource) *yaml.Node {
	section, ok := strings.CutPrefix(r.Type, "AWS::Serverless::")
	if general := t.globals[section]; ok && general != nil {
		return merge(general, r.properties)
	}
	return r.properties
}

// Text evaluates one property of a resource, which must be a string. It returns "" if the resource does not have the
// property.
func (t *Template) Text(r *Resource, property string, s Scope) (string, error) {
	n := member(t.merged(r), property)
	if n == nil {
		return "", nil
	}
	return t.text(n, s, 0)
}

// Output evaluates an output. It returns false if the output's condition does not hold.
func (t *Template) Output(o Output, s Scope) (value string, ok bool, err error) {
	if ok, err := t.holds(o.condition, s, 0); err != nil || !ok {
		return "", false, err
	}
	v, err := t.text(o.value, s, 0)
	return v, err == nil, err
}

// CheckParameters returns an error for the first name that the template does not declare, or the first value that the
// declaration does not allow.
func (t *Template) CheckParameters(given map[string]string) error {
	for name, value := range given {
		p, ok := t.parameters[name]
		if !ok {
			return fmt.Errorf("%s: there is no parameter %q", t.file, name)
		}
		if p.allowedValues != nil && !slices.Contains(p.allowedValues, value) {
			return fmt.Errorf("%s: parameter %s: %q is not allowed (allowed: %s)", t.file, name, value, strings.Join(p.allowedValues, ", "))
		}
	}
	return nil
}

func (t *Template) eval(n *yaml.Node, s Scope, depth int) (any, error) {
	if depth > maxDepth {
		return nil, t.errorf(n, "values are nested deeper than %d", maxDepth)
	}
	if n.Kind == yaml.AliasNode {
		return t.eval(n.Alias, s, depth+1)
	}
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		return t.call(strings.TrimPrefix(n.Tag, "!"), n, n, s, depth)
	}
	switch n.Kind {
	case yaml.ScalarNode:
		return scalar(n), nil
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			v, err := t.eval(item, s, depth+1)
			if err != nil {
				return nil, err
			}
			if _, none := v.(absent); !none {
				list = append(list, v)
			}
		}
		return list, nil
	case yaml.MappingNode:
		if len(n.Content) == 2 {
			switch key := n.Content[0].Value; {
			case key == "Ref", key == "Condition" && n.Content[1].Kind == yaml.ScalarNode:
				return t.call(key, n, n.Content[1], s, depth)
			case strings.HasPrefix(key, "Fn::"):
				return t.call(strings.TrimPrefix(key, "Fn::"), n, n.Content[1], s, depth)
			}
		}
		out := make(map[string]any, len(n.Content)/2)
		err := t.each(n, func(key string, _, v *yaml.Node) error {
			value, err := t.eval(v, s, depth+1)
			if err != nil {
				return err
			}
			if _, none := value.(absent); !none {
				out[key] = value
			}
			return nil
		})
		return out, err
	}
	return nil, t.errorf(n, "this YAML is not supported")
}

// scalar converts a scalar to the type that it has in JSON. Dates in policies remain strings.
func scalar(n *yaml.Node) any {
	switch n.Tag {
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value)
		}
	case "!!bool":
		if b, err := strconv.ParseBool(strings.ToLower(n.Value)); err == nil {
			return b
		}
	case "!!null":
		return nil
	}
	return n.Value
}

// call evaluates the intrinsic function name. Arg is its argument, and errors point to at. In the short form both are
// the tagged node.
func (t *Template) call(name string, at, arg *yaml.Node, s Scope, depth int) (any, error) {
	switch name {
	case "Ref":
		return t.ref(at, arg.Value, s)
	case "GetAtt":
		return t.getAtt(at, arg, s)
	case "Sub":
		return t.sub(at, arg, s, depth)
	case "If":
		if arg.Kind != yaml.SequenceNode || len(arg.Content) != 3 {
			return nil, t.errorf(at, "If needs a condition's name and two values")
		}
		ok, err := t.holds(arg.Content[0].Value, s, depth+1)
		if err != nil {
			return nil, err
		}
		if ok {
			return t.eval(arg.Content[1], s, depth+1)
		}
		return t.eval(arg.Content[2], s, depth+1)
	case "Join":
		return t.join(at, arg, s, depth)
	case "Select":
		return t.choose(at, arg, s, depth)
	case "Split":
		return t.split(at, arg, s, depth)
	case "Equals", "And", "Or", "Not", "Condition":
		return t.logic(name, at, arg, s, depth)
	}
	return nil, t.errorf(at, "function %q is not supported", name)
}

// join evaluates Join. Its list is written out, or is a reference to a parameter of a list type.
func (t *Template) join(at, arg *yaml.Node, s Scope, depth int) (any, error) {
	if arg.Kind != yaml.SequenceNode || len(arg.Content) != 2 {
		return nil, t.errorf(at, "Join needs a delimiter and a list")
	}
	value, err := t.eval(arg.Content[1], s, depth+1)
	if err != nil {
		return nil, err
	}
	list, ok := value.([]any)
	if !ok {
		return nil, t.errorf(at, "Join needs a delimiter and a list")
	}
	parts := make([]string, len(list))
	for i, item := range list {
		if parts[i], ok = text(item); !ok {
			return nil, t.errorf(at, "Join needs a list of texts")
		}
	}
	return strings.Join(parts, arg.Content[0].Value), nil
}

func (t *Template) choose(at, arg *yaml.Node, s Scope, depth int) (any, error) {
	if arg.Kind != yaml.SequenceNode || len(arg.Content) != 2 {
		return nil, t.errorf(at, "Select needs an index and a list")
	}
	value, err := t.eval(arg.Content[1], s, depth+1)
	if err != nil {
		return nil, err
	}
	list, _ := value.([]any)
	n, err := strconv.Atoi(arg.Content[0].Value)
	if err != nil || n < 0 || n >= len(list) {
		return nil, t.errorf(at, "Select needs an index and a list that has it")
	}
	return list[n], nil
}

func (t *Template) split(at, arg *yaml.Node, s Scope, depth int) (any, error) {
	if arg.Kind != yaml.SequenceNode || len(arg.Content) != 2 || arg.Content[0].Value == "" {
		return nil, t.errorf(at, "Split needs a delimiter and a text")
	}
	whole, err := t.text(arg.Content[1], s, depth+1)
	if err != nil {
		return nil, err
	}
	list := []any{}
	for part := range strings.SplitSeq(whole, arg.Content[0].Value) {
		list = append(list, part)
	}
	return list, nil
}

func (t *Template) ref(at *yaml.Node, id string, s Scope) (any, error) {
	if id == "AWS::NoValue" {
		return absent{}, nil
	}
	if v, ok := s.Pseudo(id); ok {
		return v, nil
	}
	if p, ok := t.parameters[id]; ok {
		value, given := s.Parameter(id)
		if !given {
			if p.fallback == nil {
				return nil, t.errorf(at, "parameter %s needs a value", id)
			}
			value = p.fallback.Value
		}
		if p.typ == "CommaDelimitedList" {
			list := []any{}
			for item := range strings.SplitSeq(value, ",") {
				if item = strings.TrimSpace(item); item != "" {
					list = append(list, item)
				}
			}
			return list, nil
		}
		return value, nil
	}
	v, err := s.Ref(id)
	if err != nil {
		return nil, t.errorf(at, "Ref %s: %v", id, err)
	}
	return v, nil
}

func (t *Template) getAtt(at, arg *yaml.Node, s Scope) (any, error) {
	var id, attribute string
	if arg.Kind == yaml.SequenceNode && len(arg.Content) == 2 {
		id, attribute = arg.Content[0].Value, arg.Content[1].Value
	} else {
		var ok bool
		if id, attribute, ok = strings.Cut(arg.Value, "."); !ok {
			return nil, t.errorf(at, "GetAtt needs a resource and an attribute")
		}
	}
	v, err := s.Attr(id, attribute)
	if err != nil {
		return nil, t.errorf(at, "GetAtt %s.%s: %v", id, attribute, err)
	}
	return v, nil
}

var placeholder = regexp.MustCompile(`\$\{(!?)([^}]*)\}`)

func (t *Template) sub(at, arg *yaml.Node, s Scope, depth int) (any, error) {
	text, vars := arg.Value, map[string]string{}
	if arg.Kind == yaml.SequenceNode {
		if len(arg.Content) != 2 {
			return nil, t.errorf(at, "Sub needs a text and a mapping")
		}
		text = arg.Content[0].Value
		err := t.each(arg.Content[1], func(key string, _, v *yaml.Node) error {
			value, err := t.text(v, s, depth+1)
			vars[key] = value
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var fault error
	out := placeholder.ReplaceAllStringFunc(text, func(match string) string {
		m := placeholder.FindStringSubmatch(match)
		name := strings.TrimSpace(m[2])
		if m[1] == "!" {
			return "${" + m[2] + "}"
		}
		if v, ok := vars[name]; ok {
			return v
		}
		var v any
		var err error
		if id, attribute, ok := strings.Cut(name, "."); ok {
			v, err = s.Attr(id, attribute)
		} else {
			v, err = t.ref(at, name, s)
		}
		text, ok := v.(string)
		switch {
		case fault != nil:
		case err != nil:
			fault = t.errorf(at, "Sub ${%s}: %v", name, err)
		case !ok:
			fault = t.errorf(at, "Sub ${%s}: not a text", name)
		}
		return text
	})
	return out, fault
}

func (t *Template) text(n *yaml.Node, s Scope, depth int) (string, error) {
	v, err := t.eval(n, s, depth)
	if err != nil {
		return "", err
	}
	if v, ok := text(v); ok {
		return v, nil
	}
	return "", t.errorf(n, "a text is needed here")
}

// text converts a scalar value to a string.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// holds evaluates a named condition. The empty name always holds.
func (t *Template) holds(name string, s Scope, depth int) (bool, error) {
	if name == "" {
		return true, nil
	}
	n, ok := t.conditions[name]
	if !ok {
		return false, fmt.Errorf("%s: there is no condition %q", t.file, name)
	}
	v, err := t.eval(n, s, depth+1)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, t.errorf(n, "condition %s is neither true nor false", name)
	}
	return b, nil
}

func (t *Template) logic(name string, at, arg *yaml.Node, s Scope, depth int) (any, error) {
	if name == "Condition" {
		return t.holds(arg.Value, s, depth+1)
	}
	if arg.Kind != yaml.SequenceNode || len(arg.Content) == 0 {
		return nil, t.errorf(at, "%s needs a list", name)
	}
	if name == "Equals" {
		if len(arg.Content) != 2 {
			return nil, t.errorf(at, "Equals needs two values")
		}
		a, err := t.text(arg.Content[0], s, depth+1)
		if err != nil {
			return nil, err
		}
		b, err := t.text(arg.Content[1], s, depth+1)
		return a == b, err
	}
	var values []bool
	for _, item := range arg.Content {
		v, err := t.eval(item, s, depth+1)
		if err != nil {
			return nil, err
		}
		b, ok := v.(bool)
		if !ok {
			return nil, t.errorf(item, "%s needs conditions", name)
		}
		values = append(values, b)
	}
	switch name {
	case "And":
		return !slices.Contains(values, false), nil
	case "Or":
		return slices.Contains(values, true), nil
	default:
		return !values[0], nil
	}
}
