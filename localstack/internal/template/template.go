// Package template parses the deployment template: CloudFormation YAML with the SAM transform, as far as this
// project's template.yaml uses it.
//
// It parses, merges the Globals section, and evaluates intrinsic functions in a [Scope] that the caller provides. It
// does not create resources or know services. Unsupported syntax is an error with its line, so that the local result
// cannot silently differ from the deployment. Read localstack/internal/resource next, which creates the resources,
// and then localstack/runner.
package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxSize is the maximum size in bytes of a template that CloudFormation reads from a bucket.
const maxSize = 1 << 20

// Template is a parsed template.
type Template struct {
	file       string
	parameters map[string]parameter
	conditions map[string]*yaml.Node
	resources  map[string]*Resource
	order      []string
	outputs    []Output
	globals    map[string]*yaml.Node // defaults by section, e.g. Function
}

// Resource is one entry of the Resources section.
type Resource struct {
	// ID is the logical id.
	ID string
	// Type is the CloudFormation type, such as AWS::SQS::Queue.
	Type string
	// Line is the line at which the resource begins.
	Line int
	// DeletionPolicy says what happens to the resource when it is removed from the stack. "" means Delete.
	DeletionPolicy string

	condition  string
	properties *yaml.Node
}

// RetainExceptOnCreate is the policy of a resource that is deleted only by the rollback of the operation that created
// it.
const RetainExceptOnCreate = "RetainExceptOnCreate"

// Output is one entry of the Outputs section.
type Output struct {
	Name string

	condition string
	value     *yaml.Node
}

type parameter struct {
	typ           string
	fallback      *yaml.Node
	allowedValues []string
}

// Error is an error at a line of the template.
type Error struct {
	File    string
	Line    int
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message) }

func (t *Template) errorf(n *yaml.Node, format string, args ...any) error {
	return &Error{File: t.file, Line: n.Line, Message: fmt.Sprintf(format, args...)}
}

// Parse parses a template. Errors contain the name file.
func Parse(file string, src []byte) (*Template, error) {
	if len(src) > maxSize {
		return nil, &Error{File: file, Line: 1, Message: fmt.Sprintf("the template is larger than %d bytes", maxSize)}
	}
	dec := yaml.NewDecoder(bytes.NewReader(src))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &Error{File: file, Line: 1, Message: "the template is empty"}
		}
		return nil, &Error{File: file, Line: 1, Message: err.Error()}
	}
	t := &Template{
		file:       file,
		parameters: map[string]parameter{},
		conditions: map[string]*yaml.Node{},
		resources:  map[string]*Resource{},
		globals:    map[string]*yaml.Node{},
	}
	err := t.each(doc.Content[0], func(key string, k, v *yaml.Node) error {
		switch key {
		case "AWSTemplateFormatVersion", "Transform", "Description", "Metadata", "Rules":
			return nil
		case "Globals":
			return t.each(v, func(section string, k, v *yaml.Node) error {
				if section != "Function" {
					return t.errorf(k, "Globals of %q are not supported", section)
				}
				t.globals[section] = v
				return nil
			})
		case "Parameters":
			return t.each(v, t.parseParameter)
		case "Conditions":
			return t.each(v, func(name string, _, v *yaml.Node) error {
				t.conditions[name] = v
				return nil
			})
		case "Resources":
			return t.each(v, t.parseResource)
		case "Outputs":
			return t.each(v, t.parseOutput)
		default:
			return t.errorf(k, "section %q is not supported", key)
		}
	})
	if err != nil {
		return nil, err
	}
	if len(t.resources) == 0 {
		return nil, &Error{File: file, Line: 1, Message: "the template has no resources"}
	}
	return t, nil
}

// Resources returns the resources in the order of the file.
func (t *Template) Resources() []*Resource {
	list := make([]*Resource, 0, len(t.order))
	for _, id := range t.order {
		list = append(list, t.resources[id])
	}
	return list
}

// Resource returns the resource with a logical id, or nil.
func (t *Template) Resource(id string) *Resource { return t.resources[id] }

// Outputs returns the outputs in the order of the file.
func (t *Template) Outputs() []Output { return slices.Clone(t.outputs) }

// each calls f for every member of a mapping, in order.
func (t *Template) each(n *yaml.Node, f func(key string, k, v *yaml.Node) error) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return t.errorf(n, "a mapping is needed here")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if seen[k.Value] {
			return t.errorf(k, "member %q is there twice", k.Value)
		}
		seen[k.Value] = true
		if err := f(k.Value, k, v); err != nil {
			return err
		}
	}
	return nil
}

func (t *Template) parseParameter(name string, _, v *yaml.Node) error {
	var p parameter
	err := t.each(v, func(key string, k, v *yaml.Node) error {
		switch key {
		case "Type":
			p.typ = v.Value
			if !slices.Contains([]string{"String", "Number", "CommaDelimitedList"}, p.typ) {
				return t.errorf(v, "parameter type %q is not supported", p.typ)
			}
		case "Default":
			p.fallback = v
		case "AllowedValues":
			for _, item := range v.Content {
				p.allowedValues = append(p.allowedValues, item.Value)
			}
		case "Description", "AllowedPattern", "ConstraintDescription", "MinValue", "MaxValue", "MinLength", "MaxLength", "NoEcho":
		default:
			return t.errorf(k, "parameter member %q is not supported", key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.parameters[name] = p
	return nil
}

func (t *Template) parseResource(id string, k, v *yaml.Node) error {
	r := &Resource{ID: id, Line: k.Line}
	err := t.each(v, func(key string, k, v *yaml.Node) error {
		switch key {
		case "Type":
			r.Type = v.Value
		case "Properties":
			r.properties = v
		case "Condition":
			r.condition = v.Value
		case "DeletionPolicy":
			r.DeletionPolicy = v.Value
		case "UpdateReplacePolicy", "DependsOn", "Metadata":
			// The runner replaces only resources that hold no data. References determine the order.
		default:
			return t.errorf(k, "resource member %q is not supported", key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if r.Type == "" {
		return t.errorf(k, "resource %s has no Type", id)
	}
	t.resources[id] = r
	t.order = append(t.order, id)
	return nil
}

func (t *Template) parseOutput(name string, k, v *yaml.Node) error {
	o := Output{Name: name}
	err := t.each(v, func(key string, k, v *yaml.Node) error {
		switch key {
		case "Value":
			o.value = v
		case "Condition":
			o.condition = v.Value
		case "Description", "Export":
		default:
			return t.errorf(k, "output member %q is not supported", key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.value == nil {
		return t.errorf(k, "output %s has no Value", name)
	}
	t.outputs = append(t.outputs, o)
	return nil
}

// merge merges specific into general, as SAM merges Globals into a resource. Mappings are merged member by member,
// lists are appended to the general one, and anything else is replaced, including intrinsic functions.
func merge(general, specific *yaml.Node) *yaml.Node {
	switch {
	case specific == nil:
		return general
	case general.Kind != specific.Kind || isIntrinsic(general) || isIntrinsic(specific):
		return specific
	case specific.Kind == yaml.SequenceNode:
		out := *specific
		out.Content = slices.Concat(general.Content, specific.Content)
		return &out
	case specific.Kind != yaml.MappingNode:
		return specific
	}
	out := *specific
	out.Content = slices.Clone(specific.Content)
	for i := 0; i+1 < len(general.Content); i += 2 {
		k, v := general.Content[i], general.Content[i+1]
		n := slices.IndexFunc(out.Content, func(n *yaml.Node) bool { return n == member(specific, k.Value) })
		if n < 0 {
			out.Content = append(out.Content, k, v)
		} else {
			out.Content[n] = merge(v, out.Content[n])
		}
	}
	return &out
}

// member returns the value of a member of a mapping, or nil.
func member(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i+1]
		}
	}
	return nil
}

// isIntrinsic reports whether a value is an intrinsic function, in its short or long form.
func isIntrinsic(n *yaml.Node) bool {
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		return true
	}
	return n.Kind == yaml.MappingNode && len(n.Content) == 2 && (n.Content[0].Value == "Ref" || strings.HasPrefix(n.Content[0].Value, "Fn::"))
}

// Text is a string property. CloudFormation also accepts numbers and booleans for it.
type Text string

// UnmarshalJSON accepts a JSON string, number or boolean.
func (v *Text) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*v = Text(s)
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err == nil {
		*v = Text(n.String())
		return nil
	}
	var t bool
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("%s is not a string", b)
	}
	*v = Text(strconv.FormatBool(t))
	return nil
}

// Int is an integer property. It may be written as a string, because the values of parameters are strings.
type Int int

// UnmarshalJSON accepts a JSON number or a string that contains one.
func (v *Int) UnmarshalJSON(b []byte) error {
	var t Text
	if err := t.UnmarshalJSON(b); err != nil {
		return err
	}
	n, err := strconv.Atoi(string(t))
	if err != nil {
		return fmt.Errorf("%q is not an integer", string(t))
	}
	*v = Int(n)
	return nil
}

// Bool is a boolean property. It may be written as a string.
type Bool bool

// UnmarshalJSON accepts a JSON boolean or a string that contains one.
func (v *Bool) UnmarshalJSON(b []byte) error {
	var t Text
	if err := t.UnmarshalJSON(b); err != nil {
		return err
	}
	x, err := strconv.ParseBool(string(t))
	if err != nil {
		return fmt.Errorf("%q is not allowed (allowed: true, false)", string(t))
	}
	*v = Bool(x)
	return nil
}
